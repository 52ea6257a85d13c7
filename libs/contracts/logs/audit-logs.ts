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
  start_time: moment().describe('Recorded at or after this time, in ISO 8601 or Unix seconds.'),
  end_time: moment().describe('Recorded at or before this time.'),
  organisation_id: filter().describe('The ID of this organisation. No other value is accepted.'),
  workspace_id: filter().describe(
    'An ID or slug, or org_default for records of the organisation itself. Default: all records for an organisation key, otherwise the workspace of the key.',
  ),
  method: z.enum(['GET', 'POST', 'PUT', 'DELETE']).optional(),
  uri: filter(),
  request_id: filter(),
  user_id: filter().describe(
    'The ID of the API key that made the change, or of the user who did so with any key or session.',
  ),
  user_type: z.enum(['api_key', 'user', 'system']).optional(),
  response_status_code: optionalInteger({ min: 100, max: 599 }),
  resource_type: filter().describe('The kind of record, such as api_key or config.'),
  resource_id: filter(),
  action: filter().describe('The action, such as created, updated, deleted, request_refused or contents_read.'),
  client_ip: filter(),
});

export const AuditLogRecord = z.object({
  id: z.string().describe('The ID of the event.'),
  timestamp: z.string().describe('ISO 8601 with milliseconds'),
  method: z.string().nullable().describe('Null for changes that were not made by a request.'),
  uri: z.string().nullable().describe('The path, or the route of a rejected request.'),
  request_id: z.string().nullable(),
  trace_id: z.string().nullable(),
  request_body: z
    .string()
    .describe(
      'The data of the event as JSON, without secrets. Empty after the first 4 MiB of a page. Request fewer records per page to get all data.',
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
  total: z.int().describe('The number of matching records, counted up to 100,000.'),
  has_more: z.boolean(),
});
