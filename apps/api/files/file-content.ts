import type { Request, Response } from 'express';
import type { BlobStore } from '#libs/blobs/blob-store.ts';
import type { Files } from '#libs/files/files.ts';
import { getCaller } from '#libs/http/request-context.ts';
import { sendPieces } from '#libs/http/answers/send-pieces.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { countTransferred } from '#libs/kernel/heap-growth.ts';
import type { CountRead } from '../organisation/guard-keys.ts';

export type FileContentDeps = { files: Files; blobs: BlobStore; stallTimeoutMs: number; countRead: CountRead };

/**
 * Streams a file of the caller's workspace as a download, with its SHA-256 as ETag and Repr-Digest (RFC 9530). Throws
 * `not_found` like `Files.retrieve`, and invalid_request (`range_not_satisfiable`).
 */
export async function sendFileContent(
  { files, blobs, stallTimeoutMs, countRead }: FileContentDeps,
  id: string,
  request: Request,
  response: Response,
): Promise<void> {
  const file = await files.retrieve(getCaller(request).workspaceId, id);
  const etag = `"${file.sha256}"`;
  const { 'if-range': ifRange = etag, range: wanted } = request.headers;
  response.setHeader('accept-ranges', 'bytes');
  const range = ifRange === etag ? toQueryRange(wanted, file.bytes) : null;
  if (range === 'beyond') {
    response.setHeader('content-range', `bytes */${file.bytes}`);
    const message = `The file has ${file.bytes} bytes, but the range in the header Range is outside the file.`;
    throw new GatewayError('invalid_request', 'range_not_satisfiable', message, { param: 'range' });
  }
  // Express uses this route for HEAD as well, for which nothing is read from disk.
  const isRead = request.method !== 'HEAD';
  if (isRead) countRead(request, 'file', id);
  const content = isRead ? await blobs.read(file.blob, range ?? {}) : [];
  if (range !== null) {
    response.status(206);
    const last = range.offset + range.length - 1;
    response.setHeader('content-range', `bytes ${range.offset}-${last}/${file.bytes}`);
  }
  response.setHeader('etag', etag);
  response.setHeader('repr-digest', `sha-256=:${Buffer.from(file.sha256, 'hex').toString('base64')}:`);
  response.setHeader('content-type', 'application/octet-stream');
  response.setHeader('content-length', String(range?.length ?? file.bytes));
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

/**
 * The range of a Range header. Returns null for the whole file, also when the header is invalid or has several ranges (RFC
 * 9110, section 14.2 allows it), and 'beyond' when the range starts after the end of the file.
 */
function toQueryRange(header: string | undefined, size: number): { offset: number; length: number } | 'beyond' | null {
  const [, from, to] = /^bytes=(\d{0,15})-(\d{0,15})$/.exec(header ?? '') ?? [];
  if (from === undefined || to === undefined || from + to === '') return null;
  if (from === '') {
    const length = Math.min(Number(to), size);
    return length === 0 ? 'beyond' : { offset: size - length, length };
  }
  const offset = Number(from);
  const last = to === '' ? size - 1 : Math.min(Number(to), size - 1);
  if (to !== '' && Number(to) < offset) return null;
  return offset >= size ? 'beyond' : { offset, length: last - offset + 1 };
}

async function* counted(content: AsyncIterable<Buffer> | Iterable<Buffer>): AsyncGenerator<Buffer> {
  for await (const chunk of content) {
    countTransferred(chunk.length);
    yield chunk;
  }
}
