import { z } from 'zod';
import type { Batches } from '#libs/batches/batches.ts';
import { toOpenAiBatch } from '#libs/batches/to-openai-batch.ts';
import { BatchDetail } from '#libs/contracts/batches.ts';
import { callerOf } from '#libs/http/request-context.ts';
import { withInput, type Route } from '#libs/http/route.ts';

/** GET /v1/batches/{batch_id}. Errors: not_found. */
export function retrieveBatch({ batches }: { batches: Batches }): Route {
  return {
    method: 'GET',
    path: '/v1/batches/:batch_id',
    operationId: 'retrieveBatch',
    summary: 'Retrieve a batch',
    tag: 'Batches',
    scope: 'batches.read',
    responses: { 200: { description: 'The batch.', schema: BatchDetail } },
    ...withInput({ params: z.object({ batch_id: z.string() }) }, async ({ params }, request, response) => {
      const { workspaceId } = callerOf(request);
      const batch = await batches.retrieve(workspaceId, params.batch_id);
      response.json({ ...toOpenAiBatch(batch), waits: await batches.waitsOf(batch) });
    }),
  };
}
