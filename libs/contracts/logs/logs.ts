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

// GET /logs and /logs/{id}: the request log. Prompts and answers are in it only where a workspace or key asks for it.

/** The columns that the list can be filtered by one value of. */
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
  time_of_generation_min: moment().optional().describe('recorded at or after this time: ISO 8601 or Unix seconds'),
  time_of_generation_max: moment().optional().describe('recorded at or before this time'),
  status: z
    .string()
    .regex(/^(?:[1-5]\d\d|[1-5]xx|error|refused|failed)$/)
    .optional()
    .describe(
      'a status like 429, a class like 5xx, `error` (400 and above, an error code, or no answer), or one of its parts: `refused` by this gateway, `failed` at the provider',
    ),
  ...exactFilters,
  created_after: unixSeconds().describe('recorded at or after this second'),
  created_before: unixSeconds().describe('recorded before this second'),
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
/** The members that show columns of the request log, by where they are: in the record itself, or in its `usage`. */
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
  ...columnShapes('record'),
  config: z
    .object({ id: z.string(), slug: z.string().nullable(), version: z.int().nullable() })
    .nullable()
    .describe('the stored config, as it was'),
  outcome: z
    .enum(['succeeded', 'refused', 'failed'])
    .describe('refused: by this gateway, such as by a budget or a guardrail; failed: at the provider'),
  gateway_ms: z
    .number()
    .describe('the part of duration_ms that providers did not take: this gateway, and its waits before retries'),
  usage: z
    .object(columnShapes('usage'))
    .nullable()
    .describe('as counted by the provider; null if it did not report it'),
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
