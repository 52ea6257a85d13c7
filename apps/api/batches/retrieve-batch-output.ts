import { z } from 'zod';
import type { Batches } from '#libs/batches/batches.ts';
import { callerOf } from '#libs/http/request-context.ts';
import { withInput, type Route } from '#libs/http/route.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { sendFileContent, type FileContentDeps } from '../files/retrieve-file-content.ts';

/**
 * GET /v1/batches/{batch_id}/output: streams the output file of a batch. Errors: not_found, also while the batch has no
 * output file: it has not ended, or every line of it failed.
 */
export function retrieveBatchOutput(deps: FileContentDeps & { batches: Batches }): Route {
  return {
    method: 'GET',
    path: '/v1/batches/:batch_id/output',
    operationId: 'retrieveBatchOutput',
    summary: 'Download the output of a batch',
    tag: 'Batches',
    scope: 'batches.read',
    responses: { 200: { description: 'The output file: JSON lines.', contentType: 'application/octet-stream' } },
    ...withInput({ params: z.object({ batch_id: z.string() }) }, async ({ params }, request, response) => {
      const { output_file_id: id, status } = await deps.batches.retrieve(
        callerOf(request).workspaceId,
        params.batch_id,
      );
      if (id === null) {
        const message = `The batch '${params.batch_id}' has no output file; its status is ${status}.`;
        throw new GatewayError('not_found', 'no_output_file', message, { param: 'batch_id' });
      }
      await sendFileContent(deps, id, request, response);
    }),
  };
}
