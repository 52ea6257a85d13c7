import { z } from 'zod';
import type { Batches } from '#libs/batches/batches.ts';
import { toOpenAiBatch } from '#libs/batches/to-openai-batch.ts';
import { BatchObject } from '#libs/contracts/batches.ts';
import { callerOf } from '#libs/http/request-context.ts';
import { withInput, type Route } from '#libs/http/route.ts';
import { eventMetadataOf } from '#libs/identity/call-identity.ts';

const operations = [
  {
    control: 'pause',
    operationId: 'pauseBatch',
    summary: 'Pause a batch: no line is started, running ones finish',
    answer: 'The batch, with `paused_at`. Its deadline is still `expires_at`: a pause does not move it.',
  },
  {
    control: 'resume',
    operationId: 'resumeBatch',
    summary: 'Resume a paused batch',
    answer: 'The batch, with `paused_at` null.',
  },
] as const;

/**
 * POST /v1/batches/{batch_id}/pause and /resume. A repeated request gets 200 again. Errors: not_found, conflict for a batch
 * that is cancelling, finalizing or has ended.
 */
export function controlBatch({ batches }: { batches: Batches }): Route[] {
  return operations.map(({ control, operationId, summary, answer }) => ({
    method: 'POST',
    path: `/v1/batches/:batch_id/${control}`,
    operationId,
    summary,
    tag: 'Batches',
    scope: 'batches.write',
    responses: { 200: { description: answer, schema: BatchObject } },
    ...withInput({ params: z.object({ batch_id: z.string() }) }, async ({ params }, request, response) => {
      const batch = { workspaceId: callerOf(request).workspaceId, id: params.batch_id };
      response.json(toOpenAiBatch(await batches.control(control, batch, eventMetadataOf(request))));
    }),
  }));
}
