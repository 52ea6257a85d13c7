import { withInput, type Route } from '#libs/http/route.ts';
import { analyticsRoutes } from './analytics-routes.ts';
import { feedbackRoutes } from './feedback-routes.ts';
import { logExportRoutes } from './log-export-routes.ts';
import { retrieveLog } from './retrieve-log.ts';
import type { Kysely } from 'kysely';
import { refuseForeignOrganisation } from '#libs/http/rights.ts';
import { LogList, LogListQuery } from '#libs/contracts/logs/logs.ts';
import type { Database } from '#libs/database/schema.ts';
import { abortWhenClientLeaves } from '#libs/http/client-signal.ts';
import { toListResponse } from '#libs/http/answers/list-response.ts';
import { getCaller, getContext } from '#libs/http/request-context.ts';
import type { Turns } from '#libs/kernel/sharing/turns.ts';
import { namesOfKeys } from '#libs/resources/api-keys/key-names.ts';
import { chosenWorkspace } from '#libs/records/choose-workspace.ts';
import { isSearch, selectLogs } from '#libs/request-log/read/read-log.ts';
import { toLogRecord } from '#libs/request-log/read/to-log-record.ts';
import {
  ImportedLogs,
  ImportedLogsAnswer,
  importedLogsBody,
  ImportedLogsQuery,
} from '#libs/contracts/logs/imported-logs.ts';
import { untilAborted } from '#libs/kernel/until-aborted.ts';
import { refuseWhenUnlogged, type RecordDeps } from '../calls/record-call.ts';
import { toLogEntry } from '#libs/request-log/record/call-entry.ts';
import { toImportedCall } from '#libs/request-log/record/imported-call.ts';
import { workspaceErrors } from '../document-texts.ts';

export const logTags = {
  Logs: 'The request log: one record for each call.',
  Analytics: 'Usage, cost and errors of calls.',
  Feedback: 'Ratings of answers by users.',
};

type Deps = Parameters<typeof logExportRoutes>[0] &
  Parameters<typeof listLogs>[0] &
  Parameters<typeof importLogs>[0] &
  Parameters<typeof retrieveLog>[0] &
  Parameters<typeof analyticsRoutes>[0] &
  Parameters<typeof feedbackRoutes>[0];

export const logRoutes = (deps: Deps): Route[] => [
  // These precede the route of one record, whose path would match those of exports.
  ...logExportRoutes(deps),
  listLogs(deps),
  importLogs(deps),
  retrieveLog(deps),
  ...analyticsRoutes(deps),
  ...feedbackRoutes(deps),
];

/**
 * GET /v1/logs: the request log of a workspace. Errors: invalid_request, not_found (workspace), rate_limited.
 * @testOnly
 */
export const listLogs = (deps: { db: Kysely<Database>; searches: Turns }): Route => ({
  method: 'GET',
  path: '/v1/logs',
  operationId: 'listLogs',
  summary: 'List the records of live calls and batch lines, newest first',
  description:
    'Listing, time filters and trace filters are fast. Other filters search backwards through the log for up to ten ' +
    'seconds.',
  errors: { search_too_broad: 'the search took too long because few records match: choose a shorter period' },
  tag: 'Logs',
  scope: 'logs.read',
  responses: { 200: { description: 'A page of the request log.', schema: LogList } },
  ...withInput({ query: LogListQuery }, async ({ query }, request, response) => {
    refuseForeignOrganisation(query.organisation_id);
    const workspaceId = await chosenWorkspace(deps.db, getCaller(request), query.workspace_slug ?? query.workspace_id);
    const select = () => selectLogs(deps.db, workspaceId, query);
    const { signal } = abortWhenClientLeaves(response);
    const rows = isSearch(query) ? await deps.searches.run(workspaceId, select, signal) : await select();
    const { data, ...page } = toListResponse(rows.map(toLogRecord), query.limit);
    const names = await namesOfKeys(
      deps.db,
      workspaceId,
      data.map(({ api_key_id: id }) => id),
    );
    const named = data.map((record) => ({ ...record, api_key_name: names.get(record.api_key_id ?? '') ?? null }));
    response.json({ ...page, data: named });
  }),
});

const writtenWithinMs = 10_000;

/**
 * POST /v1/logs: adds calls that were made elsewhere to the request log. They have a cost and are part of analytics,
 * but limits do not count them. Errors: invalid_request, not_found (workspace), unavailable (the log is full).
 */
const importLogs = ({ db, requestLog, costs, bodies }: RecordDeps & { db: Kysely<Database> }): Route => ({
  method: 'POST',
  path: '/v1/logs',
  operationId: 'createLogs',
  summary: 'Add calls made elsewhere to the request log',
  description:
    'Takes one record or a list of up to 1,000 records, 4 MiB and 60,000 JSON members. Sluice prices them and ' +
    'includes them in analytics, but they do not count towards budgets or rates. A list is stored completely or not ' +
    'at all. Repeating the request adds the records again.',
  example: {
    request: { url: 'https://api.openai.com/v1/chat/completions', body: { model: 'gpt-4o-mini' } },
    response: {
      status: 200,
      response_time: 840,
      body: { model: 'gpt-4o-mini', usage: { prompt_tokens: 20, completion_tokens: 300 } },
    },
  },
  errors: { request_log_full: 'the log cannot be written at the moment', ...workspaceErrors },
  tag: 'Logs',
  scope: 'logs.write',
  responses: { 200: { description: 'The records were added.', schema: ImportedLogsAnswer } },
  ...withInput(
    { query: ImportedLogsQuery, body: ImportedLogs, ...importedLogsBody },
    async ({ query, body }, request, response) => {
      const caller = getCaller(request);
      refuseForeignOrganisation(query.organisation_id);
      const workspaceId = await chosenWorkspace(db, caller, query.workspace_slug ?? query.workspace_id);
      refuseWhenUnlogged(requestLog);
      const { principal, keyId, defaults } = caller;
      const importer = {
        workspaceId,
        keyId,
        userId: principal.type === 'user' ? principal.id : null,
        requestId: getContext(request).requestId,
        nowMs: Date.now(),
      };
      const items = Array.isArray(body) ? body : [body];
      for (const item of items) {
        const entry = toLogEntry(costs, toImportedCall(item, importer));
        if (defaults.recording) {
          const [sent, answered] = [item.request.body, item.response.body].map((each) =>
            Buffer.from(JSON.stringify(each)),
          );
          const texts = { request: sent ?? null, response: answered ?? null };
          entry.bodies_blob = bodies.record(workspaceId, defaults.recording, texts);
        }
        requestLog.record(entry);
      }
      // A client then finds the records that it has just sent. While the database is unavailable, the records wait on
      // this process's disk like those of calls. An error would make clients send them a second time.
      await untilAborted(requestLog.flush(), AbortSignal.timeout(writtenWithinMs), () => {});
      response.json({ status: 'success', recorded: items.length });
    },
  ),
});
