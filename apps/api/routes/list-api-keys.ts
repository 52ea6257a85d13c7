import { toApiKeyObject, type ApiKeys } from '#libs/access/api-keys.ts';
import { ApiKeyList } from '#libs/contracts/api-keys.ts';
import { ListQuery } from '#libs/contracts/lists.ts';
import { toListResponse } from '#libs/http/list-response.ts';
import { callerOf } from '#libs/http/request-context.ts';
import { withInput, type Route } from '#libs/http/route.ts';
import type { Clock } from '#libs/kernel/clock.ts';

/** GET /v1/api-keys. Newest first, revoked and expired ones too. Errors: invalid_request (limit, cursor). */
export function listApiKeys({ apiKeys, clock }: { apiKeys: ApiKeys; clock: Clock }): Route {
  return {
    method: 'GET',
    path: '/v1/api-keys',
    operationId: 'listApiKeys',
    summary: 'List API keys, newest first',
    tag: 'API keys',
    scope: 'api_keys.read',
    responses: { 200: { description: 'A page of records.', schema: ApiKeyList } },
    ...withInput({ query: ListQuery }, async ({ query }, request, response) => {
      const { workspaceId } = callerOf(request);
      const rows = await apiKeys.list({ workspaceId, after: query.after ?? null, limit: query.limit });
      const nowMs = clock.now();
      response.json(
        toListResponse(
          rows.map((row) => toApiKeyObject(row, nowMs)),
          query.limit,
        ),
      );
    }),
  };
}
