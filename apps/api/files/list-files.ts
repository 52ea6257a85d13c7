import { FileList, FileListQuery } from '#libs/contracts/files.ts';
import type { Files } from '#libs/files/files.ts';
import { toOpenAiFile } from '#libs/files/to-openai-file.ts';
import { callerOf } from '#libs/http/request-context.ts';
import { withInput, type Route } from '#libs/http/route.ts';
import { toListResponse } from '#libs/http/list-response.ts';

/** GET /v1/files. Errors: invalid_request (purpose, order, limit, cursor). */
export function listFiles({ files }: { files: Files }): Route {
  return {
    method: 'GET',
    path: '/v1/files',
    operationId: 'listFiles',
    summary: 'List files',
    tag: 'Files',
    scope: 'files.read',
    responses: { 200: { description: 'A page of files.', schema: FileList } },
    ...withInput({ query: FileListQuery }, async ({ query }, request, response) => {
      const { workspaceId } = callerOf(request);
      const { purpose = null, order, after = null, limit } = query;
      const page = await files.list({ workspaceId, purpose, order, after, limit });
      response.json(toListResponse(page.map(toOpenAiFile), query.limit));
    }),
  };
}
