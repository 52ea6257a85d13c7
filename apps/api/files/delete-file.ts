import { z } from 'zod';
import { FileDeletion } from '#libs/contracts/files.ts';
import type { Files } from '#libs/files/files.ts';
import { callerOf } from '#libs/http/request-context.ts';
import { withInput, type Route } from '#libs/http/route.ts';
import { eventMetadataOf } from '#libs/identity/call-identity.ts';

/** DELETE /v1/files/{file_id}. Deleting again is 404. A running batch keeps what it needs. Errors: not_found. */
export function deleteFile({ files }: { files: Files }): Route {
  return {
    method: 'DELETE',
    path: '/v1/files/:file_id',
    operationId: 'deleteFile',
    summary: 'Delete a file',
    tag: 'Files',
    scope: 'files.write',
    responses: { 200: { description: 'The file was deleted.', schema: FileDeletion } },
    ...withInput({ params: z.object({ file_id: z.string() }) }, async ({ params }, request, response) => {
      await files.remove(callerOf(request).workspaceId, params.file_id, eventMetadataOf(request));
      response.json({ id: params.file_id, object: 'file', deleted: true });
    }),
  };
}
