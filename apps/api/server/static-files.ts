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

/** Serves one file, compressed at the first request, because nearly every browser and client accepts gzip. */
export function serveFile({ file, contentType, contentSecurityPolicy, cacheSeconds }: StaticFile): RequestHandler {
  let compressed: Promise<Buffer> | undefined;
  const isImmutable = cacheSeconds >= 31_536_000;
  return async (request, response) => {
    compressed ??= readFile(file).then(async (bytes) => await compress(bytes));
    const takesGzip = request.acceptsEncodings('gzip') === 'gzip';
    const body = takesGzip ? await compressed : await readFile(file);
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
