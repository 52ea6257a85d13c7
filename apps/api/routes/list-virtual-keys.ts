import { toVirtualKeyObject, type VirtualKeys } from '#libs/access/virtual-keys.ts';
import { ListQuery } from '#libs/contracts/lists.ts';
import { VirtualKeyList } from '#libs/contracts/virtual-keys.ts';
import { toListResponse } from '#libs/http/list-response.ts';
import { callerOf } from '#libs/http/request-context.ts';
import { withInput, type Route } from '#libs/http/route.ts';
import type { Clock } from '#libs/kernel/clock.ts';

/** GET /v1/virtual-keys. Newest first. Errors: invalid_request (limit, cursor). */
export function listVirtualKeys({ virtualKeys, clock }: { virtualKeys: VirtualKeys; clock: Clock }): Route {
  return {
    method: 'GET',
    path: '/v1/virtual-keys',
    operationId: 'listVirtualKeys',
    summary: 'List virtual keys, newest first',
    tag: 'Virtual keys',
    scope: 'virtual_keys.read',
    responses: { 200: { description: 'A page of records.', schema: VirtualKeyList } },
    ...withInput({ query: ListQuery }, async ({ query }, request, response) => {
      const { workspaceId } = callerOf(request);
      const rows = await virtualKeys.list({ workspaceId, after: query.after ?? null, limit: query.limit });
      const nowMs = clock.now();
      response.json(
        toListResponse(
          rows.map((row) => toVirtualKeyObject(row, nowMs)),
          query.limit,
        ),
      );
    }),
  };
}
