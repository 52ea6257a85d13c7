import { z } from 'zod';
import { GatewayOptionsInput } from './batches.ts';
import { cursor, optionalInteger, queryInteger } from '../lists.ts';
import { text } from '../scalars.ts';

/** How a line is: it has no result yet, it is in the output file, or it is in the error file (or will be). */
const lineOutcomes = ['pending', 'completed', 'failed'] as const;

export const BatchLineListQuery = z.object({
  after: cursor().describe('the `last_id` of the page before: a line number'),
  limit: queryInteger({ min: 1, max: 100, fallback: 20 }),
  outcome: z.enum(lineOutcomes).optional(),
  code: text({ min: 1, max: 100 }).optional().describe('the error code, such as `rate_limit_exceeded`'),
  status_code: optionalInteger({ min: 100, max: 599 }).describe('the HTTP status of the answer'),
  model: text({ min: 1, max: 200 }).optional().describe('the model as the answer names it'),
  custom_id: text({ min: 1, max: 512 }).optional(),
  search: text({ min: 1, max: 200 }).optional().describe('text in the request or the answer, by its bytes'),
});
export type BatchLineListQuery = z.output<typeof BatchLineListQuery>;

/** One line of a batch. What an answer does not say, or is too large to be looked for, is null. */
export const BatchLineObject = z.object({
  id: z.string().describe('the number of the line, from 1; blank lines are not counted'),
  object: z.literal('batch.line'),
  line: z.int(),
  custom_id: z.string().nullable(),
  outcome: z.enum(lineOutcomes),
  result_id: z.string().describe('the id of its line in the output or error file'),
  status_code: z.int().nullable(),
  error: z.object({ code: z.string().nullable(), message: z.string().nullable() }).nullable(),
  model: z.string().nullable(),
  usage: z.object({ input_tokens: z.int(), output_tokens: z.int() }).nullable(),
  request_id: z.string().nullable(),
  result_bytes: z.int().nullable(),
});
export type BatchLineObject = z.output<typeof BatchLineObject>;

export const BatchLineList = z.object({
  object: z.literal('list'),
  data: z.array(BatchLineObject),
  first_id: z.string().nullable(),
  last_id: z.string().nullable().describe('where the next page begins: the last line that was looked at'),
  has_more: z.boolean().describe('whether there are lines after `last_id`; a search may have found none so far'),
  searched_lines: z.int().describe('how many lines this page looked at'),
});

export const BatchLineDetails = BatchLineObject.extend({
  request: z.unknown().describe('the line of the input file; null if that was deleted, or the line has over 1 MiB'),
  result: z.unknown().describe('its line in the output or error file; null if there is none yet, or it has over 1 MiB'),
  log: z
    .object({
      id: z.string(),
      attempts: z.int(),
      fallbacks: z.int().nullable(),
      duration_ms: z.number(),
      cost_usd: z.string().nullable().describe('US dollars as a decimal'),
      provider: z.string().nullable(),
      trace_id: z.string().nullable(),
      created_at: z.iso.datetime(),
    })
    .nullable()
    .describe('its record in the request log; null if there is none any more, or it is not quickly found'),
});
export type BatchLineDetails = z.output<typeof BatchLineDetails>;

/** Failed lines by what made them fail, most lines first. */
export const BatchFailures = z.object({
  object: z.literal('batch.failures'),
  batch_id: z.string(),
  failed_lines: z.int(),
  examined_lines: z.int().describe('at most 100,000; the groups count these'),
  groups: z.array(
    z.object({
      code: z.string().nullable(),
      status_code: z.int().nullable(),
      count: z.int(),
      lines: z.array(z.int()).describe('the first five'),
      message: z.string().nullable().describe('of the first one'),
    }),
  ),
  other_lines: z.int().describe('lines of the groups beyond the first 50'),
});
export type BatchFailures = z.output<typeof BatchFailures>;

/** Body of POST /batches/{batch_id}/retry. */
export const RetryBatchRequest = z.strictObject({
  lines: z
    .enum(['failed', 'unfinished', 'all_failed'])
    .optional()
    .describe(
      '`failed` (default): lines that were answered with an error; `unfinished`: those that were not called because the ' +
        'batch expired or was cancelled; `all_failed`: both',
    ),
  completion_window: z.enum(['immediate', '24h']).optional(),
  gateway_options: GatewayOptionsInput.nullish().describe(
    'as of a new batch; without them and without credentials in headers, those of the first batch',
  ),
});
export type RetryBatchRequest = z.output<typeof RetryBatchRequest>;
