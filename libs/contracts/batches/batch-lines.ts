import { z } from 'zod';
import { GatewayOptionsInput } from './batches.ts';
import { cursor, optionalInteger, queryInteger } from '../lists.ts';
import { text } from '../scalars.ts';

/** The state of a line: it has no result yet, it is in the output file, or it is in the error file (or will be). */
const lineOutcomes = ['pending', 'completed', 'failed'] as const;

export const BatchLineListQuery = z.object({
  after: cursor().describe('The `last_id` of the previous page, which is a line number.'),
  limit: queryInteger({ min: 1, max: 100, fallback: 20 }),
  outcome: z.enum(lineOutcomes).optional(),
  code: text({ min: 1, max: 100 }).optional().describe('The error code, such as `rate_limit_exceeded`.'),
  status_code: optionalInteger({ min: 100, max: 599 }).describe('The HTTP status of the answer.'),
  model: text({ min: 1, max: 200 }).optional().describe('The model named in the answer.'),
  custom_id: text({ min: 1, max: 512 }).optional(),
  search: text({ min: 1, max: 200 })
    .optional()
    .describe('Text to find in the request or the answer. Matches exact bytes.'),
});
export type BatchLineListQuery = z.output<typeof BatchLineListQuery>;

export const BatchResultsQuery = z.object({
  after: cursor().describe('The `cursor` of the last line that you received.'),
  status: z.enum(['completed', 'failed']).optional().describe('Only lines of the output file, or of the error file.'),
  wait: queryInteger({ min: 0, max: 60, fallback: 0 }).describe(
    'How many seconds to wait for the next result of a running batch before the response ends.',
  ),
});

/** One line of a batch. A value that is missing in the answer, or too large to be searched for, is null. */
export const BatchLineObject = z.object({
  id: z.string().describe('The number of the line, starting at 1. Blank lines are not counted.'),
  object: z.literal('batch.line'),
  line: z.int(),
  custom_id: z.string().nullable(),
  outcome: z.enum(lineOutcomes),
  result_id: z.string().describe('The ID of its line in the output or error file.'),
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
  last_id: z.string().nullable().describe('The last line that was searched. Send it as `after` to get the next page.'),
  has_more: z
    .boolean()
    .describe('Whether there are lines after `last_id`. A search can return an empty page while more lines remain.'),
  searched_lines: z.int().describe('The number of lines that were searched for this page.'),
});

export const BatchLineDetails = BatchLineObject.extend({
  request: z
    .unknown()
    .describe('The line of the input file. Null if the file was deleted or the line is larger than 1 MiB.'),
  result: z
    .unknown()
    .describe('The line of the output or error file. Null if there is no result yet or it is larger than 1 MiB.'),
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
    .describe('A summary of the request-log record. Null if the record was deleted or cannot be found quickly.'),
});
export type BatchLineDetails = z.output<typeof BatchLineDetails>;

/** Failed lines by their error, most frequent first. */
export const BatchFailures = z.object({
  object: z.literal('batch.failures'),
  batch_id: z.string(),
  failed_lines: z.int(),
  examined_lines: z.int().describe('The number of failed lines that were grouped.'),
  groups: z.array(
    z.object({
      code: z.string().nullable(),
      status_code: z.int().nullable(),
      count: z.int(),
      lines: z.array(z.int()).describe('The first five lines.'),
      message: z.string().nullable().describe('The message of the first line.'),
    }),
  ),
  other_lines: z.int().describe('Failed lines that are not in the first 50 groups.'),
});
export type BatchFailures = z.output<typeof BatchFailures>;

/** Body of POST /batches/{batch_id}/retry. */
export const RetryBatchRequest = z.strictObject({
  lines: z
    .enum(['failed', 'unfinished', 'all_failed'])
    .optional()
    .describe(
      '`failed` (default) selects lines that returned an error, `unfinished` selects lines that were not called before the batch expired or was cancelled, and `all_failed` selects both.',
    ),
  completion_window: z.enum(['immediate', '24h']).optional(),
  gateway_options: GatewayOptionsInput.nullish().describe(
    'The same options as for a new batch. Without options and without credentials in headers, those of the original batch apply.',
  ),
});
export type RetryBatchRequest = z.output<typeof RetryBatchRequest>;
