import { z } from 'zod';
import { FileObject } from '#libs/contracts/files.ts';
import type { Files } from '#libs/files/files.ts';
import { toOpenAiFile } from '#libs/files/to-openai-file.ts';
import { callerOf } from '#libs/http/request-context.ts';
import { withInput, type Route } from '#libs/http/route.ts';

/** GET /v1/files/{file_id}. Errors: not_found. */
export function retrieveFile({ files }: { files: Files }): Route {
  return {
    method: 'GET',
    path: '/v1/files/:file_id',
    operationId: 'retrieveFile',
    summary: 'Retrieve a file',
    tag: 'Files',
    scope: 'files.read',
    responses: { 200: { description: 'The file.', schema: FileObject } },
    ...withInput({ params: z.object({ file_id: z.string() }) }, async ({ params }, request, response) => {
      response.json(toOpenAiFile(await files.retrieve(callerOf(request).workspaceId, params.file_id)));
    }),
  };
}
