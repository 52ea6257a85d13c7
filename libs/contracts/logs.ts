import { z } from 'zod';
import { cursor, listOf, queryInteger, wholeNumberText } from './lists.ts';
import { integer, text } from './scalars.ts';

// GET /logs and /logs/{id}: the request log. Prompts and answers are not in it.

const filter = () => text({ min: 1, max: 200 }).optional();

/** A moment in whole Unix seconds, up to the year 9999. */
const unixSeconds = () =>
  z.preprocess(wholeNumberText, integer({ min: 0, max: 253_402_300_799 }).optional()).optional();

/** Filters and keyset paging, newest first; all filters must match. */
export const LogListQuery = z.object({
  after: cursor(),
  limit: queryInteger({ min: 1, max: 100, fallback: 20 }),
  trace_id: text({ min: 1, max: 256 }).optional(),
  status: z
    .string()
    .regex(/^(?:[1-5]\d\d|[1-5]xx|error)$/)
    .optional()
    .describe('a status like 429, a class like 5xx, or `error`: 400 and above, an error code, or no answer'),
  kind: z.enum(['live', 'batch']).optional(),
  model: filter().describe('the requested model'),
  provider: filter(),
  virtual_key: filter(),
  batch_id: filter(),
  created_after: unixSeconds().describe('recorded at or after this second'),
  created_before: unixSeconds().describe('recorded before this second'),
});
export type LogListQuery = z.output<typeof LogListQuery>;

const tokens = () => z.int().nullable();

export const LogRecord = z.object({
  id: z.string(),
  object: z.literal('log'),
  created_at: z.int().describe('Unix seconds at which the request had ended and was recorded'),
  started_at: z.string().describe('ISO 8601 with milliseconds'),
  kind: z.enum(['live', 'batch']),
  operation: z.string(),
  request_id: z.string(),
  trace_id: z.string().nullable(),
  span_id: z.string().nullable(),
  parent_span_id: z.string().nullable(),
  span_name: z.string().nullable(),
  metadata: z.record(z.string(), z.string()).nullable(),
  api_key_id: z.string().nullable(),
  virtual_key: z.string().nullable(),
  provider: z.string().nullable(),
  model: z.string().nullable().describe('the requested model'),
  response_model: z.string().nullable().describe('the model that the provider says it used'),
  provider_request_id: z.string().nullable(),
  stream: z.boolean(),
  status: z.int().nullable().describe('HTTP status of the answer; null if there was none'),
  error_code: z.string().nullable(),
  finish_reason: z.string().nullable(),
  attempts: z.int().describe('calls made to providers'),
  duration_ms: z.number(),
  first_event_ms: z.number().nullable().describe('milliseconds until the first event of a stream'),
  usage: z
    .object({
      input_tokens: tokens(),
      cached_tokens: tokens(),
      output_tokens: tokens(),
      reasoning_tokens: tokens(),
    })
    .nullable()
    .describe('as counted by the provider; null if it did not say'),
  batch_id: z.string().nullable(),
  batch_line: z.int().nullable(),
  last_used_option: z.string().nullable().describe('the target of the config that answered, like config.targets[1]'),
  process_id: z.string().describe('the gateway process that recorded it'),
  sequence: z.int().describe('numbers the records of that process from 1; a missing number means a lost record'),
});
export type LogRecord = z.output<typeof LogRecord>;

export const LogList = listOf(LogRecord);
