import { toConfigObject, type Configs } from '#libs/access/configs.ts';
import { ConfigList } from '#libs/contracts/configs.ts';
import { ListQuery } from '#libs/contracts/lists.ts';
import { toListResponse } from '#libs/http/list-response.ts';
import { callerOf } from '#libs/http/request-context.ts';
import { withInput, type Route } from '#libs/http/route.ts';

/** GET /v1/configs. Newest first. Errors: invalid_request (limit, cursor). */
export function listConfigs({ configs }: { configs: Configs }): Route {
  return {
    method: 'GET',
    path: '/v1/configs',
    operationId: 'listConfigs',
    summary: 'List configs, newest first',
    tag: 'Configs',
    scope: 'configs.read',
    responses: { 200: { description: 'A page of configs.', schema: ConfigList } },
    ...withInput({ query: ListQuery }, async ({ query }, request, response) => {
      const { workspaceId } = callerOf(request);
      const rows = await configs.list({ workspaceId, after: query.after ?? null, limit: query.limit });
      response.json(toListResponse(rows.map(toConfigObject), query.limit));
    }),
  };
}
