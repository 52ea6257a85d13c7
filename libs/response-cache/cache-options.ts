import { CacheTtlHeader, cacheMaxAgeSeconds, type CachePolicy } from '#libs/contracts/response-cache.ts';
import { GatewayError } from '#libs/kernel/errors.ts';

/** How one call uses the cache. */
export type CacheOptions = {
  maxAgeMs: number;
  namespace: string;
  /** Do not look, but keep the new answer. */
  refresh: boolean;
  /** The caller wants nothing of this call kept or shown (`x-gateway-debug: false`). */
  disabled: boolean;
};

type Headers = Readonly<Record<string, string | string[] | undefined>>;

const namespaceLengthMax = 128;

/**
 * What the config and the caller's headers say together; null when neither asks for the cache. Headers:
 * `x-gateway-cache: simple` (or `none` against a config's cache), `-cache-ttl` in seconds, `-cache-namespace`, and
 * `-cache-force-refresh`, which counts only as `true`. Each may be spelt `x-portkey-…`. Throws invalid_request.
 */
export function cacheOptionsOf(policy: CachePolicy | null, headers: Headers): CacheOptions | null {
  const mode = read(headers, 'cache');
  if (mode === undefined && policy === null) return null;
  if (mode !== undefined && mode !== 'simple' && mode !== 'none') {
    throw invalid('cache', "expected 'simple', the one mode there is, or 'none'");
  }
  if (mode === 'none') return null;
  const ttl = read(headers, 'cache-ttl');
  const parsed = ttl === undefined ? undefined : CacheTtlHeader.safeParse(ttl);
  if (parsed?.success === false) {
    throw invalid('cache-ttl', `expected whole seconds from ${cacheMaxAgeSeconds.min} to ${cacheMaxAgeSeconds.max}`);
  }
  const namespace = read(headers, 'cache-namespace') ?? '';
  if (namespace.length > namespaceLengthMax) {
    throw invalid('cache-namespace', `expected at most ${namespaceLengthMax} characters`);
  }
  const seconds = parsed?.data ?? policy?.maxAgeSeconds ?? cacheMaxAgeSeconds.default;
  return {
    maxAgeMs: seconds * 1_000,
    namespace,
    refresh: read(headers, 'cache-force-refresh') === 'true',
    disabled: read(headers, 'debug') === 'false',
  };
}

function read(headers: Headers, name: string): string | undefined {
  const value = headers[`x-gateway-${name}`] ?? headers[`x-portkey-${name}`];
  return typeof value === 'string' ? value.trim() : undefined;
}

const invalid = (name: string, expected: string): GatewayError =>
  new GatewayError('invalid_request', 'invalid_value', `Invalid 'x-gateway-${name}': ${expected}.`, {
    param: `x-gateway-${name}`,
  });
