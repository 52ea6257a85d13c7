import type { Request, Response } from 'express';
import { z } from 'zod';
import type { BlobStore } from '#libs/blobs/blob-store.ts';
import type { Files } from '#libs/files/files.ts';
import { callerOf } from '#libs/http/request-context.ts';
import { sendPieces } from '#libs/http/send-pieces.ts';
import { withInput, type Route } from '#libs/http/route.ts';
import { countTransferred } from '#libs/kernel/heap-growth.ts';

export type FileContentDeps = { files: Files; blobs: BlobStore; stallTimeoutMs: number };

/** GET /v1/files/{file_id}/content: streams the bytes of the file. Errors: not_found. */
export function retrieveFileContent(deps: FileContentDeps): Route {
  return {
    method: 'GET',
    path: '/v1/files/:file_id/content',
    operationId: 'retrieveFileContent',
    summary: 'Download the content of a file',
    tag: 'Files',
    scope: 'files.read',
    responses: { 200: { description: 'The bytes of the file.', contentType: 'application/octet-stream' } },
    ...withInput({ params: z.object({ file_id: z.string() }) }, async ({ params }, request, response) => {
      await sendFileContent(deps, params.file_id, request, response);
    }),
  };
}

/** Streams a file of the caller's workspace as a download. Throws `not_found` like `Files.retrieve`. */
export async function sendFileContent(
  { files, blobs, stallTimeoutMs }: FileContentDeps,
  id: string,
  request: Request,
  response: Response,
): Promise<void> {
  const file = await files.retrieve(callerOf(request).workspaceId, id);
  // Express also answers HEAD with this route; nothing is read from disk for it.
  const content = request.method === 'HEAD' ? [] : await blobs.read(file.blob);
  response.setHeader('content-type', 'application/octet-stream');
  response.setHeader('content-length', String(file.bytes));
  // As an attachment, because a browser must not render uploaded content.
  response.setHeader('content-disposition', `attachment; filename*=UTF-8''${encodeURIComponent(file.filename)}`);
  response.setHeader('x-content-type-options', 'nosniff');
  try {
    await sendPieces(response, counted(content), stallTimeoutMs);
  } catch (error) {
    // A client that disconnects halfway is not an error. Before the first byte, an error can still be sent.
    if (!response.headersSent) throw error;
    if (!response.destroyed) response.destroy();
  }
}

async function* counted(content: AsyncIterable<Buffer> | Iterable<Buffer>): AsyncGenerator<Buffer> {
  for await (const chunk of content) {
    countTransferred(chunk.length);
    yield chunk;
  }
}
