import type { Kysely } from 'kysely';
import { z } from 'zod';
import { listActivity, type ActivityRow } from '#libs/activity/list-activity.ts';
import { AuditLogList, AuditLogQuery, type AuditLogRecord } from '#libs/contracts/logs/audit-logs.ts';
import type { Database } from '#libs/database/schema.ts';
import { organisationId, type Caller } from '#libs/http/caller.ts';
import type { PageReads } from '#libs/http/answers/page-reads.ts';
import { sendJsonList } from '#libs/http/answers/send-pieces.ts';
import { getCaller } from '#libs/http/request-context.ts';
import { withInput, type Route } from '#libs/http/route.ts';
import { refuseForeignOrganisation } from '#libs/http/rights.ts';
import { chosenLog, chosenWorkspaces } from '#libs/records/choose-workspace.ts';
import { pageOf } from '#libs/records/lists/list-page.ts';
import { publicData } from '#libs/records/public-event.ts';
import { actions, resourceTypes } from './event-types.ts';

const Query = AuditLogQuery.extend({
  resource_type: z.enum(resourceTypes).optional(),
  action: z.enum(actions).optional(),
});

type Deps = { db: Kysely<Database>; eventPages: PageReads; stallTimeoutMs: number };

/** GET /v1/audit-logs: who changed what, when, from where. Errors: invalid_request (cursor), not_found (workspace). */
export const listAuditLogs = ({ db, eventPages, stallTimeoutMs }: Deps): Route => ({
  method: 'GET',
  path: '/v1/audit-logs',
  operationId: 'listAuditLogs',
  summary: 'List the audit log, newest first',
  description:
    'Contains the changes of all records, refused requests, reads of contents, starts of processes, commands of ' +
    'operators and deletions by retention. Attempts and reads are counted per minute. You can filter by time, ' +
    'person, method, resource and status, and select a page with `current_page` and `page_size`. Organisation keys ' +
    'see all workspaces and the records of the organisation; pass `workspace_id` to limit the list to one workspace.',
  tag: 'Audit',
  scope: 'audit.read',
  responses: { 200: { description: 'A page of records.', schema: AuditLogList } },
  ...withInput({ query: Query }, async ({ query }, request, response) => {
    const workspaceId = await recordsOf(db, getCaller(request), query);
    const { method, uri, request_id, resource_type, resource_id, action } = query;
    const filters = {
      startTime: query.start_time,
      endTime: query.end_time,
      method,
      uri,
      request_id,
      resource_type,
      resource_id,
      action,
      person: query.user_id,
      actor_type: query.user_type,
      status: query.response_status_code,
      address: query.client_ip,
    };
    const page = pageOf(query);
    const { rows, total } = await eventPages.forAnswer(request, response, (_signal, spend) =>
      listActivity(db, workspaceId, filters, { ...page, bytesMax: eventPages.bytesMax, spend }),
    );
    const items = rows.values().take(page.limit).map(toRecordText);
    const rest = { total, has_more: rows.length > page.limit };
    const list = { object: 'analytics-graph', name: 'records', items, rest };
    await sendJsonList(response, list, stallTimeoutMs);
  }),
});

/** The workspace (or the organisation) whose records are requested; null for all. Throws not_found. */
async function recordsOf(
  db: Kysely<Database>,
  caller: Caller,
  { workspace_id: wanted, organisation_id: organisation }: z.output<typeof AuditLogQuery>,
): Promise<string | null> {
  refuseForeignOrganisation(organisation);
  return wanted === undefined ? await chosenWorkspaces(db, caller, wanted) : await chosenLog(db, caller, wanted);
}

/** A record as JSON. Only one is parsed at a time, because a parsed event takes much more memory. */
const toRecordText = (row: ActivityRow): Buffer => Buffer.from(JSON.stringify(toRecord(row)));

const toRecord = (row: ActivityRow): AuditLogRecord => ({
  id: row.id,
  timestamp: row.recorded_at.toISOString(),
  method: row.method,
  uri: row.uri,
  request_id: row.request_id,
  trace_id: row.trace_id,
  request_body: row.data === null ? '' : JSON.stringify(publicData(JSON.parse(row.data) as Record<string, unknown>)),
  query_params: '',
  request_headers: '{}',
  user_id: row.actor_id,
  user_type: row.actor_type,
  organisation_id: organisationId,
  workspace_id: row.workspace_id,
  response_status_code: row.status,
  resource_type: row.resource_type,
  resource_id: row.resource_id,
  action: row.action,
  client_ip: row.address,
  country: null,
});
