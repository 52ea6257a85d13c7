import { z } from 'zod';
import type { Batches } from '#libs/batches/batches.ts';
import { toOpenAiBatch } from '#libs/batches/to-openai-batch.ts';
import { BatchObject } from '#libs/contracts/batches.ts';
import { callerOf } from '#libs/http/request-context.ts';
import { withInput, type Route } from '#libs/http/route.ts';
import { eventMetadataOf } from '#libs/identity/call-identity.ts';

/** POST /v1/batches/{batch_id}/cancel. Cancelling twice answers 200 twice. Errors: not_found, conflict. */
export function cancelBatch({ batches }: { batches: Batches }): Route {
  return {
    method: 'POST',
    path: '/v1/batches/:batch_id/cancel',
    operationId: 'cancelBatch',
    summary: 'Cancel a batch; lines in flight may finish',
    tag: 'Batches',
    scope: 'batches.write',
    responses: { 200: { description: 'The batch, with status `cancelling`.', schema: BatchObject } },
    ...withInput({ params: z.object({ batch_id: z.string() }) }, async ({ params }, request, response) => {
      const { workspaceId } = callerOf(request);
      response.json(toOpenAiBatch(await batches.cancel(workspaceId, params.batch_id, eventMetadataOf(request))));
    }),
  };
}
