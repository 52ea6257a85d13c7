import { isDeepStrictEqual } from 'node:util';
import { createLocalJWKSet, errors, type JSONWebKeySet, type JWTVerifyGetKey } from 'jose';
import { createBackgroundLoop, type BackgroundLoop } from '#libs/kernel/background-loop.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';

type Options = {
  /** Must finish within some seconds; `signal` aborts when the process stops. */
  fetchKeys: (signal: AbortSignal) => Promise<JSONWebKeySet>;
  logger: Logger;
  /** Monotonic, in milliseconds. */
  monotonicMs?: () => number;
  /**
   * The time between two fetches. Default 5 min: for this long a key is still trusted after the server has withdrawn
   * it.
   */
  refreshMs?: number;
  /**
   * A token with an unknown key can mean that there is a new one. It causes a fetch at most this often. Default 30 s.
   */
  refetchMs?: number;
  /** Keys that were not confirmed for this long are no longer trusted. Default 24 h: a day to repair the key server. */
  staleAfterMs?: number;
};

export type SigningKeys = BackgroundLoop & {
  /**
   * Returns the key that a token names as its signing key. Synchronous for a known key, whatever the state of the
   * server. Throws JOSEError for a key that the server does not have, and GatewayError `unavailable` when that cannot
   * be determined.
   */
  find: JWTVerifyGetKey;
  /** Changes with the keys. A token that was verified in an older generation has to be verified again. */
  generation: () => number;
};

/**
 * Keeps the public keys of the server that signs tokens in memory. At most one fetch runs at a time, and all callers
 * share it. The start does not wait for it, so that a process serves API keys while the key server is down.
 */
export function createSigningKeys({ fetchKeys, logger, ...options }: Options): SigningKeys {
  const { refreshMs = 300_000, refetchMs = 30_000, staleAfterMs = 86_400_000 } = options;
  const monotonicMs = options.monotonicMs ?? (() => performance.now());
  let known: ReturnType<typeof createLocalJWKSet> | undefined;
  let generation = 0;
  let confirmedMs = Number.NEGATIVE_INFINITY;
  let startedMs = Number.NEGATIVE_INFINITY;
  let fetching: Promise<void> = Promise.resolve();

  const fetchOnce = async (signal: AbortSignal): Promise<void> => {
    startedMs = monotonicMs();
    const found = createLocalJWKSet(await fetchKeys(signal));
    if (known === undefined || !isDeepStrictEqual(found.jwks(), known.jwks())) {
      known = found;
      generation += 1;
      logger.info({ keys: found.jwks().keys.length }, 'the keys that tokens are signed with have changed');
    }
    confirmedMs = startedMs;
  };
  const loop = createBackgroundLoop({
    name: 'keys of tokens',
    periodMs: refreshMs,
    run: (signal) => (fetching = fetchOnce(signal)),
    logger,
  });

  const findKnown: JWTVerifyGetKey = (header, token) => {
    if (known === undefined || monotonicMs() - confirmedMs > staleAfterMs) throw new errors.JWKSNoMatchingKey();
    return known(header, token);
  };

  return {
    ...loop,
    generation: () => generation,
    async find(header, token) {
      try {
        return await findKnown(header, token);
      } catch (error) {
        if (!(error instanceof errors.JWKSNoMatchingKey)) throw error;
        if (monotonicMs() - startedMs >= refetchMs) await loop.wake();
        else await fetching.catch(() => {});
        if (loop.error() !== undefined) throw unavailable(error);
        return await findKnown(header, token);
      }
    },
  };
}

const unavailable = (cause: unknown): GatewayError =>
  new GatewayError(
    'unavailable',
    'sign_in_unavailable',
    'This token cannot be checked because the key server of the identity provider (SLUICE_JWKS_URL) is unavailable. Try again shortly.',
    { retryAfterMs: 5_000, cause },
  );
