import type { Request, Response } from 'express';

/** Origins of web pages that may call the API; `any`: all of them. */
export type CorsOrigins = ReadonlySet<string> | 'any';

// What a page may read of an answer beside its body: ours, and what SDKs act on. A wildcard would not be understood by
// every browser.
const answerHeaders = ['provider', 'trace-id', 'cache-status', 'last-used-option-index', 'retry-attempt-count'];
const exposed = [
  'x-request-id',
  ...answerHeaders.map((name) => `x-gateway-${name}`),
  'x-gateway-dropped-params',
  ...answerHeaders.map((name) => `x-portkey-${name}`),
  'idempotent-replayed',
  'retry-after',
  'retry-after-ms',
  'x-should-retry',
  'content-disposition',
  'openai-processing-ms',
  ...['limit', 'remaining', 'reset'].flatMap((what) => [`x-ratelimit-${what}-requests`, `x-ratelimit-${what}-tokens`]),
].join(', ');

const preflightSeconds = 600;
const requestedLengthMax = 2_048;

/**
 * Sets the headers that let the pages of these origins read the answer. True for a preflight of theirs, of which these
 * headers are the whole answer: browsers send no key with it. Credentials of the browser (cookies) are never allowed;
 * keys go in headers.
 */
export function setCorsHeaders(origins: CorsOrigins, request: Request, response: Response): boolean {
  const { origin } = request.headers;
  if (origins !== 'any') response.setHeader('vary', 'Origin');
  if (origin === undefined || !(origins === 'any' || origins.has(origin))) return false;
  response.setHeader('access-control-allow-origin', origins === 'any' ? '*' : origin);
  if (request.method !== 'OPTIONS' || request.headers['access-control-request-method'] === undefined) {
    response.setHeader('access-control-expose-headers', exposed);
    return false;
  }
  const requested = request.get('access-control-request-headers') ?? '';
  // A list of header names and nothing else: it is repeated in the answer.
  if (requested.length <= requestedLengthMax && /^[\w-]+(?:\s*,\s*[\w-]+)*$/.test(requested))
    response.setHeader('access-control-allow-headers', requested);
  response.setHeader('access-control-allow-methods', 'GET, POST, PUT, DELETE');
  response.setHeader('access-control-max-age', String(preflightSeconds));
  return true;
}
