import type { Batches } from '#libs/batches/batches.ts';
import { toOpenAiBatch } from '#libs/batches/to-openai-batch.ts';
import { BatchList, BatchListQuery } from '#libs/contracts/batches.ts';
import { callerOf } from '#libs/http/request-context.ts';
import { withInput, type Route } from '#libs/http/route.ts';
import { toListResponse } from '#libs/http/list-response.ts';

/** GET /v1/batches. Newest first. Errors: invalid_request (limit, cursor). */
export function listBatches({ batches }: { batches: Batches }): Route {
  return {
    method: 'GET',
    path: '/v1/batches',
    operationId: 'listBatches',
    summary: 'List batches, newest first',
    tag: 'Batches',
    scope: 'batches.read',
    responses: { 200: { description: 'A page of batches.', schema: BatchList } },
    ...withInput({ query: BatchListQuery }, async ({ query }, request, response) => {
      const { workspaceId } = callerOf(request);
      const page = await batches.list({ workspaceId, after: query.after ?? null, limit: query.limit });
      response.json(toListResponse(page.map(toOpenAiBatch), query.limit));
    }),
  };
}
