import { z } from 'zod';
import { callFilters, moment, workspaceChoice } from './call-filters.ts';
import { cursor, listOf, queryInteger, wholeNumberText } from './lists.ts';
import { integer, text } from './scalars.ts';

// GET /logs and /logs/{id}: the request log. Prompts and answers are in it only where a workspace or key asks for it.

const filter = () => text({ min: 1, max: 200 }).optional();

/** A moment in whole Unix seconds, up to the year 9999. */
const unixSeconds = () =>
  z.preprocess(wholeNumberText, integer({ min: 0, max: 253_402_300_799 }).optional()).optional();

/** Filters, which must all match, and keyset paging, newest first. */
export const LogListQuery = z.object({
  after: cursor(),
  limit: queryInteger({ min: 1, max: 100, fallback: 20 }),
  ...workspaceChoice,
  ...callFilters,
  time_of_generation_min: moment().optional().describe('recorded at or after this time: ISO 8601 or Unix seconds'),
  time_of_generation_max: moment().optional().describe('recorded at or before this time'),
  status: z
    .string()
    .regex(/^(?:[1-5]\d\d|[1-5]xx|error|refused|failed)$/)
    .optional()
    .describe(
      'a status like 429, a class like 5xx, `error` (400 and above, an error code, or no answer), or one of its parts: `refused` by this gateway, `failed` at the provider',
    ),
  kind: z.enum(['live', 'batch', 'imported']).optional(),
  model: filter().describe('the requested model'),
  provider: filter(),
  virtual_key: filter(),
  batch_id: filter(),
  created_after: unixSeconds().describe('recorded at or after this second'),
  created_before: unixSeconds().describe('recorded before this second'),
});
export type LogListQuery = z.output<typeof LogListQuery>;

const tokens = () => z.int().nullable();

/** What answers have beside the record itself. */
const keyName = {
  api_key_name: z
    .string()
    .nullable()
    .describe('name of the API key, also of a deleted one; of a sign-in the e-mail address'),
};

export const LogRecord = z.object({
  id: z.string(),
  object: z.literal('log'),
  created_at: z.string().describe('ISO 8601: when the request had ended and was recorded'),
  started_at: z.string().describe('ISO 8601 with milliseconds'),
  kind: z.enum(['live', 'batch', 'imported']),
  operation: z.string(),
  request_id: z.string(),
  trace_id: z.string().nullable(),
  span_id: z.string().nullable(),
  parent_span_id: z.string().nullable(),
  span_name: z.string().nullable(),
  metadata: z.record(z.string(), z.string()).nullable(),
  api_key_id: z.string().nullable(),
  user_id: z.string().nullable(),
  virtual_key: z.string().nullable(),
  integration: z.string().nullable(),
  config: z
    .object({ id: z.string(), slug: z.string().nullable(), version: z.int().nullable() })
    .nullable()
    .describe('the stored config, as it was'),
  mode: z.string().nullable().describe('how the config chooses: single, fallback, loadbalance or conditional'),
  prompt_slug: z.string().nullable(),
  prompt_version: z.int().nullable(),
  method: z.string().nullable(),
  path: z.string().nullable(),
  provider: z.string().nullable(),
  model: z.string().nullable().describe('the requested model'),
  response_model: z.string().nullable().describe('the model that the provider says it used'),
  provider_request_id: z.string().nullable(),
  stream: z.boolean(),
  status: z.int().nullable().describe('HTTP status of the answer; null if there was none'),
  error_code: z.string().nullable(),
  outcome: z
    .enum(['succeeded', 'refused', 'failed'])
    .describe('refused: by this gateway, such as by a budget or a guardrail; failed: at the provider'),
  finish_reason: z.string().nullable(),
  attempts: z.int().describe('calls made to providers'),
  retries: z.int().nullable().describe('attempts that repeated another one at the same target'),
  fallbacks: z.int().nullable().describe('targets that were left for another one'),
  cache_status: z.string().nullable().describe('HIT, MISS or REFRESH of a call that may be answered from the cache'),
  duration_ms: z.number(),
  upstream_ms: z.number().nullable().describe('the part of it that providers took'),
  gateway_ms: z.number().nullable().describe('the rest: this gateway, and its waits before retries'),
  first_event_ms: z.number().nullable().describe('milliseconds until the first event of a stream'),
  usage: z
    .object({
      input_tokens: tokens(),
      cached_tokens: tokens(),
      cache_write_tokens: tokens(),
      audio_input_tokens: tokens(),
      output_tokens: tokens(),
      reasoning_tokens: tokens(),
      audio_output_tokens: tokens(),
      details: z
        .record(z.string(), z.unknown())
        .nullable()
        .describe(
          'images, seconds, characters, searches, other tokens and the class of service, where there are any; `usage_implausible` is true if the provider reported more than the request can have used, and the tokens are an estimate',
        ),
    })
    .nullable()
    .describe('as counted by the provider; null if it did not say'),
  cost_usd: z
    .string()
    .nullable()
    .describe(
      'US dollars as a decimal, of all attempts; 0 for an answer from the cache, null if the price or the usage is not known',
    ),
  saved_cost_usd: z.string().nullable().describe('US dollars that an answer from the cache would have cost'),
  is_estimate: z
    .boolean()
    .describe('usage and cost are estimates by length, or an attempt without an answer may have cost something'),
  price_version: z.string().nullable().describe('the prices that counted: the same version gives the same cost'),
  batch_id: z.string().nullable(),
  batch_line: z.int().nullable(),
  last_used_option: z.string().nullable().describe('the target of the config that answered, like config.targets[1]'),
  process_id: z.string().describe('the gateway process that recorded it'),
  sequence: z.int().describe('numbers the records of that process from 1; a missing number means a lost record'),
});
export type LogRecord = z.output<typeof LogRecord>;

const CallStep = z.object({
  kind: z.enum(['input_guardrails', 'attempt', 'output_guardrails']),
  at_ms: z.number().describe('milliseconds after the start of the call'),
  duration_ms: z.number().describe('of a stream, until its first event'),
  status: z.int().nullable().optional().describe('of an attempt; null if it had no answer'),
  error_code: z.string().optional(),
  provider: z.string().optional(),
  target: z.string().optional().describe('the slug of the virtual key, or the provider'),
  model: z.string().optional(),
  outcome: z.enum(['passed', 'failed', 'denied']).optional().describe('of guardrails'),
});
/** An attempt at a provider, or a run of guardrails, as the request log keeps it. */
export type CallStep = z.output<typeof CallStep>;

const nullableText = () => z.string().nullable();
const anyMembers = () => z.record(z.string(), z.unknown());

/** The answer to GET of one record: the record, and the members that clients of Portkey read. */
export const LogDetails = LogRecord.extend({
  ...keyName,
  steps: z
    .array(CallStep)
    .nullable()
    .describe('in order, at most 24 attempts; null: one attempt, made at once and answered, and no guardrails'),
  _id: z.string().describe('the same as id'),
  organisation_id: z.string(),
  request: z.object({
    url: z.string(),
    method: z.string(),
    headers: anyMembers(),
    body: anyMembers().nullable().describe('null: it was not recorded (docs/logs.md)'),
    gatewayHeaders: anyMembers().describe('those that the record tells of'),
  }),
  response: z.object({
    status: z.int().describe('0 if there was no answer'),
    headers: anyMembers(),
    body: anyMembers().nullable(),
    responseTime: z.int().describe('milliseconds'),
    lastUsedOptionJsonPath: z.string(),
  }),
  metrics: z.object({
    id: z.string(),
    organisation_id: z.string(),
    organisation_name: z.string(),
    prompt_id: nullableText(),
    prompt_slug: nullableText(),
    prompt_version_id: nullableText(),
    config: nullableText(),
    config_id: nullableText(),
    config_version_id: nullableText(),
    created_at: z.string(),
    is_success: z.boolean(),
    ai_org: nullableText(),
    ai_model: nullableText(),
    req_units: z.int(),
    res_units: z.int(),
    total_units: z.int(),
    cost: z.number().nullable().describe('US cents'),
    cost_currency: z.literal('USD').describe('the currency of which `cost` has cents'),
    request_url: z.string(),
    request_method: nullableText(),
    response_status_code: z.int().nullable(),
    response_time: z.int(),
    is_proxy_call: z.boolean().describe('the call was passed through unchanged'),
    cache_status: nullableText(),
    cache_type: nullableText(),
    stream_mode: z.int().describe('1: the answer was a stream'),
    retry_success_count: z.int(),
    trace_id: nullableText(),
    span_id: nullableText(),
    span_name: nullableText(),
    parent_span_id: nullableText(),
    mode: nullableText(),
    virtual_key: nullableText(),
    source: z.string(),
    last_used_option_index: z.int().nullable(),
    runtime: nullableText().describe('null: what the client ran on is not recorded'),
    runtime_version: nullableText(),
    sdk_version: nullableText(),
    internal_trace_id: z.string(),
    workspace_slug: nullableText(),
    'metadata.key': z.array(z.string()),
    'metadata.value': z.array(z.string()),
    api_key_id: nullableText(),
    request_parsing_time: z.int().nullable().describe('null: measured only as part of gateway_processing_time'),
    pre_processing_time: z.int().nullable().describe('the same'),
    cache_processing_time: z.int().nullable().describe('of an answer from the cache'),
    response_parsing_time: z.int().nullable().describe('null: as request_parsing_time'),
    gateway_processing_time: z.int().nullable(),
    upstream_response_time: z.int().nullable(),
  }),
});
export type LogDetails = z.output<typeof LogDetails>;

export const LogList = listOf(LogRecord.extend(keyName));
