import type { Request, Response } from 'express';

/** Origins of web pages that can call the API; `any` allows all of them. */
export type CorsOrigins = ReadonlySet<string> | 'any';

// Headers that a page can read: ours, and those that SDKs use. They are listed because not every browser understands a
// wildcard here.
const answerHeaders = ['provider', 'trace-id', 'cache-status', 'last-used-option-index', 'retry-attempt-count'];
const exposed = [
  'x-request-id',
  'request-id',
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
 * Sets the headers that let pages of these origins read the answer. Returns true for a preflight request, which needs
 * no other answer; browsers send it without a key. Browser credentials (cookies) are never allowed: keys are sent in
 * headers.
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
  // Only a list of header names is accepted, because it is repeated in the answer.
  if (requested.length <= requestedLengthMax && /^[\w-]+(?:\s*,\s*[\w-]+)*$/.test(requested))
    response.setHeader('access-control-allow-headers', requested);
  response.setHeader('access-control-allow-methods', 'GET, POST, PUT, DELETE');
  response.setHeader('access-control-max-age', String(preflightSeconds));
  return true;
}
