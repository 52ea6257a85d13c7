import type { Kysely } from 'kysely';
import { refuseForeignOrganisation } from '#libs/http/rights.ts';
import {
  ImportedLogs,
  importedLogsBody,
  ImportedLogsAnswer,
  ImportedLogsQuery,
} from '#libs/contracts/logs/imported-logs.ts';
import type { Database } from '#libs/database/schema.ts';
import { getCaller, getContext } from '#libs/http/request-context.ts';
import { withInput, type Route } from '#libs/http/route.ts';
import { untilAborted } from '#libs/kernel/until-aborted.ts';
import { chosenWorkspace } from '#libs/records/choose-workspace.ts';
import { refuseWhenUnlogged, type RecordDeps } from '../calls/record-call.ts';
import { toLogEntry } from '#libs/request-log/record/call-entry.ts';
import { toImportedCall } from '#libs/request-log/record/imported-call.ts';
import { workspaceErrors } from '../document-texts.ts';

const writtenWithinMs = 10_000;

/**
 * POST /v1/logs: adds calls that were made elsewhere to the request log. They have a cost and are part of analytics,
 * but limits do not count them. Errors: invalid_request, not_found (workspace), unavailable (the log is full).
 */
export const importLogs = ({ db, requestLog, costs, bodies }: RecordDeps & { db: Kysely<Database> }): Route => ({
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
