import type { IncomingHttpHeaders } from 'node:http';
import { z } from 'zod';
import { configLimits } from '#libs/contracts/configs/config.ts';
import { ForwardHeader } from '#libs/contracts/calls/forward-headers.ts';
import { tryParse } from '#libs/contracts/parse.ts';
import { cacheMaxAgeSeconds, CacheTtlHeader, type CachePolicy } from '#libs/contracts/calls/response-cache.ts';
import { integerText } from '#libs/contracts/scalars.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { Leaf } from '#libs/calls/plan/plan.ts';

/** Settings in the headers of a call, which override its config for every target. */
export type CallOptions = {
  requestTimeoutMs: number | null;
  retryCount: number | null;
  forwardHeaders: readonly string[] | null;
  strict: boolean | null;
  /** undefined: the config decides; null: no cache. */
  cache: CachePolicy | null | undefined;
  cacheMaxAgeSeconds: number | null;
};

// The value counts, not the presence of the header: Portkey treated "false" as true.
const flag = z.enum(['true', 'false']).transform((text) => text === 'true');
const Timeout = integerText({ min: 1, max: configLimits.timeoutMsMax });
const RetryCount = integerText({ min: 0, max: 5 });
const Names = z
  .string()
  .transform((text) => text.split(',').map((name) => name.trim()))
  .pipe(z.array(ForwardHeader).max(50));
const Cache = z.enum(['simple', 'true', 'false']);

/** Whether a call has any such header. A few lookups, because every live call pays for them. */
export function hasCallOptions(headers: IncomingHttpHeaders): boolean {
  return (
    headers['x-gateway-request-timeout'] !== undefined ||
    headers['x-gateway-retry-count'] !== undefined ||
    headers['x-gateway-forward-headers'] !== undefined ||
    headers['x-gateway-strict-open-ai-compliance'] !== undefined ||
    headers['x-gateway-cache'] !== undefined ||
    headers['x-gateway-cache-ttl'] !== undefined ||
    headers['x-portkey-request-timeout'] !== undefined ||
    headers['x-portkey-retry-count'] !== undefined ||
    headers['x-portkey-forward-headers'] !== undefined ||
    headers['x-portkey-strict-open-ai-compliance'] !== undefined ||
    headers['x-portkey-cache'] !== undefined ||
    headers['x-portkey-cache-ttl'] !== undefined
  );
}

/**
 * Refuses values other than `true` and `false` for headers that are only read if there is a cache. A caller who sends
 * `1` to prevent caching must not find out later that the call was cached. Throws invalid_request.
 */
export function checkCacheFlags(headers: IncomingHttpHeaders): void {
  if (
    headers['x-gateway-cache-force-refresh'] === undefined &&
    headers['x-gateway-debug'] === undefined &&
    headers['x-portkey-cache-force-refresh'] === undefined &&
    headers['x-portkey-debug'] === undefined
  ) {
    return;
  }
  const refresh = read(headers, 'x-gateway-cache-force-refresh', 'x-portkey-cache-force-refresh');
  parse(flag, refresh, 'x-gateway-cache-force-refresh');
  parse(flag, read(headers, 'x-gateway-debug', 'x-portkey-debug'), 'x-gateway-debug');
}

/** Returns the options in a call's headers; null if there are none. Throws invalid_request with the header as param. */
export function readCallOptions(headers: IncomingHttpHeaders): CallOptions | null {
  const requestTimeout = read(headers, 'x-gateway-request-timeout', 'x-portkey-request-timeout');
  const retryCount = read(headers, 'x-gateway-retry-count', 'x-portkey-retry-count');
  const forward = read(headers, 'x-gateway-forward-headers', 'x-portkey-forward-headers');
  const strict = read(headers, 'x-gateway-strict-open-ai-compliance', 'x-portkey-strict-open-ai-compliance');
  const cache = read(headers, 'x-gateway-cache', 'x-portkey-cache');
  const ttl = read(headers, 'x-gateway-cache-ttl', 'x-portkey-cache-ttl');
  if (!requestTimeout && !retryCount && !forward && !strict && !cache && !ttl) return null;
  const mode = parse(Cache, cache, 'x-gateway-cache');
  const maxAge = parse(CacheTtlHeader, ttl, 'x-gateway-cache-ttl');
  return {
    requestTimeoutMs: parse(Timeout, requestTimeout, 'x-gateway-request-timeout'),
    retryCount: parse(RetryCount, retryCount, 'x-gateway-retry-count'),
    forwardHeaders: parse(Names, forward, 'x-gateway-forward-headers'),
    strict: parse(flag, strict, 'x-gateway-strict-open-ai-compliance'),
    cache:
      mode === null ? undefined : mode === 'false' ? null : { maxAgeSeconds: maxAge ?? cacheMaxAgeSeconds.default },
    cacheMaxAgeSeconds: maxAge,
  };
}

function read(headers: IncomingHttpHeaders, name: string, alias: string): string | null {
  const value = headers[name] ?? headers[alias];
  return typeof value === 'string' && value !== '' ? value : null;
}

function parse<Schema extends z.ZodType>(schema: Schema, text: string | null, header: string): z.output<Schema> | null {
  if (text === null) return null;
  const result = tryParse(schema, text, header);
  if (result.ok) return result.value;
  const { code, message } = result.problem;
  throw new GatewayError('invalid_request', code, message, { param: header });
}

/** Returns a leaf with the options of a call. */
export function withOptions(leaf: Leaf, options: CallOptions): Leaf {
  const changed: Leaf = { ...leaf };
  const { requestTimeoutMs, retryCount, forwardHeaders, strict, cache, cacheMaxAgeSeconds: maxAge } = options;
  if (requestTimeoutMs !== null) changed.timeouts = { ...leaf.timeouts, answerMs: requestTimeoutMs };
  if (retryCount !== null) {
    const rest = leaf.retry ?? { statuses: null, obeysRetryAfter: true, jitter: true };
    changed.retry = { ...rest, attempts: retryCount };
  }
  if (forwardHeaders !== null) changed.forwardHeaders = forwardHeaders;
  if (strict !== null) changed.strict = strict;
  if (cache !== undefined) changed.cache = cache;
  else if (maxAge !== null && leaf.cache !== null) changed.cache = { ...leaf.cache, maxAgeSeconds: maxAge };
  return changed;
}
