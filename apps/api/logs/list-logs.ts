import type { Kysely } from 'kysely';
import { refuseForeignOrganisation } from '#libs/http/rights.ts';
import { LogList, LogListQuery } from '#libs/contracts/logs/logs.ts';
import type { Database } from '#libs/database/schema.ts';
import { abortWhenClientLeaves } from '#libs/http/client-signal.ts';
import { toListResponse } from '#libs/http/answers/list-response.ts';
import { getCaller } from '#libs/http/request-context.ts';
import { withInput, type Route } from '#libs/http/route.ts';
import type { Turns } from '#libs/kernel/turns.ts';
import { namesOfKeys } from '#libs/resources/api-keys/key-names.ts';
import { chosenWorkspace } from '#libs/records/choose-workspace.ts';
import { isSearch, selectLogs } from '#libs/request-log/read/read-log.ts';
import { toLogRecord } from '#libs/request-log/read/to-log-record.ts';

/** GET /v1/logs: the request log of a workspace. Errors: invalid_request, not_found (workspace), rate_limited. */
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
