import { z } from 'zod';
import { BatchError } from './batches.ts';

const dollars = () => z.string().nullable();

const DryRunModel = z.object({
  model: z
    .string()
    .nullable()
    .describe('The model named in the lines. Null if a prompt sets it, and for models after the first 100.'),
  lines: z.int(),
  input_tokens: z.int().describe('An estimate from the length of the prompts, at about four characters per token.'),
  output_tokens_max: z.int().describe('The sum for lines that limit their output tokens.'),
  unbounded_lines: z.int().describe('Lines that do not limit their output tokens, or that use a stored prompt.'),
  target: z.array(z.string()).describe('Where calls for this model would go, in sentences.'),
  problem: z
    .object({ code: z.string().nullable(), message: z.string() })
    .nullable()
    .describe('Why all lines for this model would be rejected.'),
  cost_of_input_usd: dollars().describe('US dollars as a decimal. Null if the price is unknown.'),
  cost_max_usd: dollars().describe(
    'The cost with the longest possible answers. Null if the price is unknown or a line does not limit its output tokens.',
  ),
});

const DryRunLimit = z.object({
  limit: z
    .string()
    .describe('The ID of the policy, key or workspace that has the budget, or `max_cost` for the bound of the batch.'),
  label: z.string(),
  measure: z.enum(['cost', 'tokens']),
  left: z.string().describe('US dollars for a cost budget, or tokens.'),
  needed: z
    .string()
    .nullable()
    .describe('The most that these lines can use of the budget, in the same unit. Null if unknown.'),
  suffices: z.boolean().nullable(),
});

/** The answer to POST /batches/dry-run. Nothing is created. */
export const BatchDryRun = z.object({
  object: z.literal('batch.dry_run'),
  valid: z.boolean().describe('Whether a batch with this file would run. False if it would fail validation.'),
  is_whole: z.boolean().describe('False if only the first lines of the file could be read in time.'),
  request_counts: z.object({ total: z.int() }),
  errors: z.object({ object: z.literal('list'), data: z.array(BatchError) }).nullable(),
  models: z.array(DryRunModel),
  cost_of_input_usd: dollars().describe('US dollars for all lines. Null if any price is unknown.'),
  cost_max_usd: dollars(),
  limits: z.array(DryRunLimit).describe('Budgets that the lines would use.'),
});
export type BatchDryRun = z.output<typeof BatchDryRun>;
