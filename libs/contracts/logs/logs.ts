import { z } from 'zod';
import {
  columnList,
  type Column,
  type ColumnName,
  type Columns,
  type NamesWith,
  type RequestLogTable,
} from '#libs/request-log/columns.ts';
import { callFilters, moment, workspaceChoice } from './call-filters.ts';
import { cursor, listOf, queryInteger, wholeNumberText } from '../lists.ts';
import { integer, text } from '../scalars.ts';

// GET /logs and /logs/{id}: the request log. It contains prompts and answers only if a workspace or key asks for it.

/** The columns that can be filtered by a single value. */
export type ExactFilterName = NamesWith<{ filter: { isExact: true } }>;
type ExactFilters = { [Name in ExactFilterName]: z.ZodType<NonNullable<RequestLogTable[Name]> | undefined> };
const exactFilters = Object.fromEntries(
  columnList.flatMap(([name, { filter, shown }]) => {
    if (filter?.isExact !== true) return [];
    const shape = (shown?.schema ?? text({ min: 1, max: 200 })).optional();
    return [[name, shown?.description === undefined ? shape : shape.describe(shown.description)]];
  }),
) as unknown as ExactFilters;

/** A moment in whole Unix seconds, up to the year 9999. */
const unixSeconds = () =>
  z.preprocess(wholeNumberText, integer({ min: 0, max: 253_402_300_799 }).optional()).optional();

/** Filters, which must all match, and keyset paging, newest first. */
export const LogListQuery = z.object({
  after: cursor(),
  limit: queryInteger({ min: 1, max: 100, fallback: 20 }),
  ...workspaceChoice,
  ...callFilters,
  time_of_generation_min: moment().optional().describe('Recorded at or after this time, in ISO 8601 or Unix seconds.'),
  time_of_generation_max: moment().optional().describe('Recorded at or before this time.'),
  status: z
    .string()
    .regex(/^(?:[1-5]\d\d|[1-5]xx|error|refused|failed)$/)
    .optional()
    .describe(
      'A status like 429, a class like 5xx, or `error` (400 and above, an error code, or no answer). `refused` selects errors of this gateway, and `failed` selects errors of providers.',
    ),
  ...exactFilters,
  created_after: unixSeconds().describe('Recorded at or after this second.'),
  created_before: unixSeconds().describe('Recorded before this second.'),
});
export type LogListQuery = z.output<typeof LogListQuery>;

/** How the API shows the columns of each type. */
const shapes: Readonly<Record<Column['type'], () => z.ZodType>> = {
  text: z.string,
  uuid: z.string,
  date: z.string,
  time: z.string,
  cents: z.string,
  integer: z.int,
  float: z.number,
  boolean: z.boolean,
  json: () => z.record(z.string(), z.unknown()),
};

type MemberName<Name extends ColumnName, Place> = Columns[Name] extends { shown: infer Shown }
  ? (Shown extends { in: infer Other } ? Other : 'record') extends Place
    ? Shown extends { name: infer Other extends string }
      ? Other
      : Name
    : never
  : never;
type MemberValue<Name extends ColumnName> = Columns[Name] extends { shown: { schema: infer Schema extends z.ZodType } }
  ? z.output<Schema> | Extract<RequestLogTable[Name], null>
  : RequestLogTable[Name] extends Date
    ? string
    : RequestLogTable[Name];
/** The members that show columns of the request log, by their location: in the record itself, or in its `usage`. */
export type ColumnMembers = {
  record: { [Name in ColumnName as MemberName<Name, 'record'>]: MemberValue<Name> };
  usage: { [Name in ColumnName as MemberName<Name, 'usage'>]: MemberValue<Name> };
};
type Shapes<Members> = { [Name in keyof Members]: z.ZodType<Members[Name]> };

function columnShapes<Place extends keyof ColumnMembers>(place: Place) {
  const entries = columnList.flatMap(([name, { type, isRequired, shown }]) => {
    if (shown === undefined || (shown.in ?? 'record') !== place) return [];
    const shape = shown.schema ?? shapes[type]();
    const member = isRequired === true ? shape : shape.nullable();
    return [[shown.name ?? name, shown.description === undefined ? member : member.describe(shown.description)]];
  });
  return Object.fromEntries(entries) as Shapes<ColumnMembers[Place]>;
}

/** The members of answers in addition to the record itself. */
const keyName = {
  api_key_name: z
    .string()
    .nullable()
    .describe('The name of the API key, even if it was deleted, or the e-mail address of a signed-in user.'),
};

export const LogRecord = z.object({
  id: z.string(),
  object: z.literal('log'),
  created_at: z.string().describe('When the request ended and was recorded, in ISO 8601.'),
  ...columnShapes('record'),
  config: z
    .object({ id: z.string(), slug: z.string().nullable(), version: z.int().nullable() })
    .nullable()
    .describe('The stored config at the time of the call.'),
  outcome: z
    .enum(['succeeded', 'refused', 'failed'])
    .describe('`refused` by this gateway, for example by a budget or a guardrail, or `failed` at the provider.'),
  gateway_ms: z.number().describe('The part of `duration_ms` spent in this gateway, including waits before retries.'),
  usage: z
    .object(columnShapes('usage'))
    .nullable()
    .describe('As counted by the provider. Null if the provider did not report it.'),
});
export type LogRecord = z.output<typeof LogRecord>;

const CallStep = z.object({
  kind: z.enum(['input_guardrails', 'attempt', 'output_guardrails']),
  at_ms: z.number().describe('Milliseconds after the start of the call.'),
  duration_ms: z.number().describe('For a stream, the time until its first event.'),
  status: z.int().nullable().optional().describe('The status of an attempt. Null if there was no answer.'),
  error_code: z.string().optional(),
  provider: z.string().optional(),
  target: z.string().optional().describe('The slug of the virtual key, or the provider.'),
  model: z.string().optional(),
  outcome: z.enum(['passed', 'failed', 'denied']).optional().describe('The result of guardrails.'),
});
/** An attempt at a provider, or a run of guardrails, as it is stored in the request log. */
export type CallStep = z.output<typeof CallStep>;

const nullableText = () => z.string().nullable();
const anyMembers = () => z.record(z.string(), z.unknown());

/** The answer to GET of one record: the record, and the members that clients of Portkey read. */
export const LogDetails = LogRecord.extend({
  ...keyName,
  steps: z
    .array(CallStep)
    .nullable()
    .describe(
      'The steps in order, with at most 24 attempts. Null if there was only one attempt, without a wait or a failure, and no guardrails.',
    ),
  _id: z.string().describe('The same as id.'),
  organisation_id: z.string(),
  request: z.object({
    url: z.string(),
    method: z.string(),
    headers: anyMembers(),
    body: anyMembers().nullable().describe('Null if it was not recorded (docs/logs.md).'),
    gatewayHeaders: anyMembers().describe('The headers that can be derived from the record.'),
  }),
  response: z.object({
    status: z.int().describe('0 if there was no answer.'),
    headers: anyMembers(),
    body: anyMembers().nullable(),
    responseTime: z.int().describe('Milliseconds.'),
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
    cost_currency: z.literal('USD').describe('The currency of `cost`, which is in cents.'),
    request_url: z.string(),
    request_method: nullableText(),
    response_status_code: z.int().nullable(),
    response_time: z.int(),
    is_proxy_call: z.boolean().describe('Whether the call was forwarded unchanged.'),
    cache_status: nullableText(),
    cache_type: nullableText(),
    stream_mode: z.int().describe('1 if the answer was a stream.'),
    retry_success_count: z.int(),
    trace_id: nullableText(),
    span_id: nullableText(),
    span_name: nullableText(),
    parent_span_id: nullableText(),
    mode: nullableText(),
    virtual_key: nullableText(),
    source: z.string(),
    last_used_option_index: z.int().nullable(),
    runtime: nullableText().describe('Null, because the runtime of the client is not recorded.'),
    runtime_version: nullableText(),
    sdk_version: nullableText(),
    internal_trace_id: z.string(),
    workspace_slug: nullableText(),
    'metadata.key': z.array(z.string()),
    'metadata.value': z.array(z.string()),
    api_key_id: nullableText(),
    request_parsing_time: z
      .int()
      .nullable()
      .describe('Null, because it is only measured as part of gateway_processing_time.'),
    pre_processing_time: z.int().nullable().describe('Null, like request_parsing_time.'),
    cache_processing_time: z.int().nullable().describe('The time for an answer from the cache.'),
    response_parsing_time: z.int().nullable().describe('Null, like request_parsing_time.'),
    gateway_processing_time: z.int().nullable(),
    upstream_response_time: z.int().nullable(),
  }),
});
export type LogDetails = z.output<typeof LogDetails>;

export const LogList = listOf(LogRecord.extend(keyName));
