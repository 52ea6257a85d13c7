import type { CachePolicy } from '#libs/contracts/calls/response-cache.ts';
import { GatewayError } from '#libs/kernel/errors.ts';

/** How one call uses the cache. */
export type CacheOptions = {
  maxAgeMs: number;
  namespace: string;
  /** Do not use a stored answer, but store the new one. */
  refresh: boolean;
  /** The call is neither cached nor answered from the cache (`x-gateway-debug: false`). */
  disabled: boolean;
};

type Headers = Readonly<Record<string, string | string[] | undefined>>;

const namespaceLengthMax = 128;

/**
 * Returns how a call with this policy (from the config, or from `x-gateway-cache`) uses the cache, according to its
 * headers `x-gateway-cache-namespace`, `-cache-force-refresh` and `-debug`, each of which can be written `x-portkey-…`.
 * Throws invalid_request.
 */
export function readCacheOptions(policy: CachePolicy, headers: Headers): CacheOptions {
  const namespace = read(headers, 'cache-namespace') ?? '';
  if (namespace.length > namespaceLengthMax) {
    throw new GatewayError(
      'invalid_request',
      'string_above_max_length',
      `Invalid 'x-gateway-cache-namespace': expected at most ${namespaceLengthMax} characters.`,
      { param: 'x-gateway-cache-namespace' },
    );
  }
  return {
    maxAgeMs: policy.maxAgeSeconds * 1_000,
    namespace,
    refresh: read(headers, 'cache-force-refresh') === 'true',
    disabled: read(headers, 'debug') === 'false',
  };
}

function read(headers: Headers, name: string): string | undefined {
  const value = headers[`x-gateway-${name}`] ?? headers[`x-portkey-${name}`];
  return typeof value === 'string' ? value.trim() : undefined;
}
