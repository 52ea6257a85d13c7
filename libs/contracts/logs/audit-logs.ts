import { z } from 'zod';
import { timestamp } from '../people/access-fields.ts';
import { optionalInteger, ResourceListQuery } from '../lists.ts';
import { text } from '../scalars.ts';

const filter = () => text({ min: 1, max: 500 }).optional();

/** A moment in ISO 8601, or in Unix seconds. */
const moment = () =>
  z.preprocess(
    (value) => (typeof value === 'string' && /^\d{1,12}$/.test(value) ? Number(value) : value),
    timestamp().optional(),
  );

/** `GET /audit-logs`: filters, which must all match, and both ways of paging. */
export const AuditLogQuery = ResourceListQuery.extend({
  start_time: moment().describe('recorded at or after this time: ISO 8601 or Unix seconds'),
  end_time: moment().describe('recorded at or before this time'),
  organisation_id: filter().describe('the organisation of this installation; no other value is accepted'),
  workspace_id: filter().describe(
    "an ID or slug, or org_default for the organisation's own records; without it an organisation key sees all of them, and another key its own workspace",
  ),
  method: z.enum(['GET', 'POST', 'PUT', 'DELETE']).optional(),
  uri: filter(),
  request_id: filter(),
  user_id: filter().describe('the id of the API key or user that acted'),
  user_type: z.enum(['api_key', 'user', 'system']).optional(),
  response_status_code: optionalInteger({ min: 100, max: 599 }),
  resource_type: filter().describe('such as api_key or config'),
  resource_id: filter(),
  action: filter().describe('such as created, updated, deleted, or request_refused'),
  client_ip: filter(),
});

export const AuditLogRecord = z.object({
  id: z.string().describe('the id of the event'),
  timestamp: z.string().describe('ISO 8601 with milliseconds'),
  method: z.string().nullable().describe('null for what no request did'),
  uri: z.string().nullable().describe('the path; of a refused request, the route'),
  request_id: z.string().nullable(),
  trace_id: z.string().nullable(),
  request_body: z
    .string()
    .describe(
      'what changed: the data of the event as JSON, without secrets; empty once the records before have 4 MiB, so ask for fewer records per page',
    ),
  query_params: z.string(),
  request_headers: z.string(),
  user_id: z.string(),
  user_type: z.string(),
  organisation_id: z.string(),
  workspace_id: z.string(),
  response_status_code: z.int().nullable(),
  resource_type: z.string(),
  resource_id: z.string(),
  action: z.string(),
  client_ip: z.string().nullable(),
  country: z.string().nullable(),
});
export type AuditLogRecord = z.output<typeof AuditLogRecord>;

export const AuditLogList = z.object({
  object: z.literal('analytics-graph'),
  records: z.array(AuditLogRecord),
  total: z.int().describe('records that match; not counted beyond 100,000'),
  has_more: z.boolean(),
});
