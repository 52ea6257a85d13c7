import { z } from 'zod';
import { cursor, listOf, queryInteger, wholeNumberText } from './lists.ts';
import { integer, text } from './scalars.ts';

// GET /logs and /logs/{id}: the request log (DESIGN, "Interface for operators and scripts"). Prompts and answers are
// not in it.

/** Filters and keyset paging, newest first; all filters must match. */
export const LogListQuery = z.object({
  after: cursor(),
  limit: queryInteger({ min: 1, max: 100, fallback: 20 }),
  trace_id: text({ min: 1, max: 200 }).optional(),
  status: z.preprocess(wholeNumberText, integer({ min: 100, max: 599 }).optional()).optional(),
  model: text({ min: 1, max: 200 }).optional(),
  provider: text({ min: 1, max: 200 }).optional(),
  batch_id: text({ min: 1, max: 200 }).optional(),
});
export type LogListQuery = z.output<typeof LogListQuery>;

export const LogRecord = z.object({
  id: z.string(),
  object: z.literal('log'),
  created_at: z.int(),
  trace_id: z.string(),
  span_id: z.string().nullable(),
  parent_span_id: z.string().nullable(),
  span_name: z.string().nullable(),
  request_id: z.string(),
  api_key_id: z.string().nullable(),
  virtual_key: z.string().nullable(),
  config_id: z.string().nullable(),
  endpoint: z.string(),
  provider: z.string().nullable(),
  model: z.string().nullable(),
  status: z.int().describe('HTTP status that the caller got'),
  error_code: z.string().nullable(),
  stream: z.boolean(),
  attempts: z.int().describe('calls made to providers'),
  cache_status: z.string().nullable(),
  duration_ms: z.number(),
  provider_duration_ms: z.number().nullable(),
  first_byte_ms: z.number().nullable(),
  usage: z
    .object({
      input_tokens: z.int(),
      cached_tokens: z.int(),
      output_tokens: z.int(),
      reasoning_tokens: z.int(),
    })
    .nullable(),
  cost: z.number().nullable(),
  batch_id: z.string().nullable(),
  batch_line: z.int().nullable(),
  metadata: z.record(z.string(), z.string()).nullable(),
});
export type LogRecord = z.output<typeof LogRecord>;

export const LogList = listOf(LogRecord);
