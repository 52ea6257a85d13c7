import { readFile } from 'node:fs/promises';
import { promisify } from 'node:util';
import { gzip } from 'node:zlib';
import type { RequestHandler } from 'express';

/** How the OpenAPI document describes pages and their files. */
export const pageText = 'For browsers. Its content security policy only allows requests to this server.';
export const assetText = 'Loaded by the page. Its name changes with its content, or it is revalidated.';

const compress = promisify(gzip);

/** A file of a page that the API serves. `cacheSeconds`: how long a browser can use it without a new request. */
export type StaticFile = { file: string; contentType: string; contentSecurityPolicy: string; cacheSeconds: number };

/**
 * Serves one file. Links of a page are made relative, so that the page works below any path at which a proxy serves the
 * API.
 */
export function serveFile(served: StaticFile): RequestHandler {
  if (served.contentType !== 'text/html') return serveBytes(served, (bytes) => bytes);
  const handlers = new Map<number, RequestHandler>();
  return (request, response, next) => {
    const depth = request.path.split('/').length - 2;
    const handler =
      handlers.get(depth) ??
      serveBytes(served, (page) => page.toString().replaceAll(/(src|href)="\//g, `$1="./${'../'.repeat(depth)}`));
    handlers.set(depth, handler);
    return handler(request, response, next);
  };
}

/** Compresses the file at the first request, because nearly every browser and client accepts gzip. */
function serveBytes(
  { file, contentType, contentSecurityPolicy, cacheSeconds }: StaticFile,
  edit: (bytes: Buffer) => Buffer | string,
): RequestHandler {
  let compressed: Promise<Buffer> | undefined;
  const read = async (): Promise<Buffer> => Buffer.from(edit(await readFile(file)));
  const isImmutable = cacheSeconds >= 31_536_000;
  return async (request, response) => {
    compressed ??= read()
      .then(compress)
      .catch((error: unknown) => {
        compressed = undefined; // The file can be there again, such as after a build.
        throw error;
      });
    const takesGzip = request.acceptsEncodings('gzip') === 'gzip';
    const body = takesGzip ? await compressed : await read();
    response.setHeader('content-type', `${contentType}; charset=utf-8`);
    if (takesGzip) response.setHeader('content-encoding', 'gzip');
    response.setHeader('vary', 'accept-encoding');
    response.setHeader(
      'cache-control',
      cacheSeconds === 0 ? 'no-cache' : `max-age=${cacheSeconds}${isImmutable ? ', immutable' : ''}`,
    );
    response.setHeader('content-security-policy', contentSecurityPolicy);
    response.setHeader('x-content-type-options', 'nosniff');
    response.setHeader('referrer-policy', 'no-referrer');
    response.setHeader('content-length', body.length);
    response.end(body);
  };
}
