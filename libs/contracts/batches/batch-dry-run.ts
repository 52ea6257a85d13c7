import { z } from 'zod';
import { BatchError } from './batches.ts';

const dollars = () => z.string().nullable();

const DryRunModel = z.object({
  model: z.string().nullable().describe('as the lines name it; null: made of a prompt, or beyond the first 100 models'),
  lines: z.int(),
  input_tokens: z.int().describe('estimated from the texts: about four characters each'),
  output_tokens_max: z.int().describe('of the lines that set a maximum'),
  unbounded_lines: z.int().describe('lines that set no maximum of tokens, or are made of a prompt'),
  target: z.array(z.string()).describe('where calls for this model would go, in sentences'),
  problem: z
    .object({ code: z.string().nullable(), message: z.string() })
    .nullable()
    .describe('why all of its lines would be refused'),
  cost_of_input_usd: dollars().describe('US dollars as a decimal; null if the price is not known'),
  cost_max_usd: dollars().describe('with the longest answers; null also if lines set no maximum'),
});

const DryRunLimit = z.object({
  limit: z.string().describe('the id of the policy, key or workspace that has the budget'),
  label: z.string(),
  measure: z.enum(['cost', 'tokens']),
  left: z.string().describe('US dollars for a budget in money, otherwise tokens'),
  needed: z.string().nullable().describe('what the lines of this budget may need, in the same unit; null: not known'),
  suffices: z.boolean().nullable(),
});

/** The answer to POST /batches/dry-run. Nothing is created. */
export const BatchDryRun = z.object({
  object: z.literal('batch.dry_run'),
  valid: z.boolean().describe('whether a batch of this file would run; false if it would fail in validation'),
  is_whole: z.boolean().describe('false: the file is so large that only its first lines were read within the time'),
  request_counts: z.object({ total: z.int() }),
  errors: z.object({ object: z.literal('list'), data: z.array(BatchError) }).nullable(),
  models: z.array(DryRunModel),
  cost_of_input_usd: dollars().describe('US dollars of all lines; null if one price is not known'),
  cost_max_usd: dollars(),
  limits: z.array(DryRunLimit).describe('budgets that the lines would draw from'),
});
export type BatchDryRun = z.output<typeof BatchDryRun>;
