import { isDeepStrictEqual } from 'node:util';
import { createLocalJWKSet, errors, type JSONWebKeySet, type JWTVerifyGetKey } from 'jose';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { Part } from '#libs/kernel/lifecycle.ts';
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

export type SigningKeys = Part & {
  /**
   * Returns the key that a token names as its signing key. Synchronous for a known key, whatever the state of the
   * server. Throws JOSEError for a key that the server does not have, and GatewayError `unavailable` when that cannot
   * be determined.
   */
  find: JWTVerifyGetKey;
  /** Changes with the keys. A token that was verified in an older generation has to be verified again. */
  generation: () => number;
  /** Fetches the keys now, or waits for the running fetch. Never rejects; failures are logged. */
  refresh: () => Promise<void>;
};

/**
 * Caches the public keys of the server that signs tokens. At most one fetch runs at any time, and all callers share it.
 */
export function createSigningKeys({ fetchKeys, logger, ...options }: Options): SigningKeys {
  const { refreshMs = 300_000, refetchMs = 30_000, staleAfterMs = 86_400_000 } = options;
  const monotonicMs = options.monotonicMs ?? (() => performance.now());
  const stopping = new AbortController();
  let known: ReturnType<typeof createLocalJWKSet> | undefined;
  let generation = 0;
  let confirmedMs = Number.NEGATIVE_INFINITY;
  let startedMs = Number.NEGATIVE_INFINITY;
  let isFailing = false;
  let running: Promise<void> | undefined;
  let timer: NodeJS.Timeout | undefined;

  const fetchOnce = async (): Promise<void> => {
    startedMs = monotonicMs();
    try {
      const found = createLocalJWKSet(await fetchKeys(stopping.signal));
      if (known === undefined || !isDeepStrictEqual(found.jwks(), known.jwks())) {
        known = found;
        generation += 1;
        logger.info({ keys: found.jwks().keys.length }, 'the keys that tokens are signed with have changed');
      }
      confirmedMs = startedMs;
      isFailing = false;
    } catch (error) {
      if (!isFailing && !stopping.signal.aborted) {
        logger.warn({ err: error }, 'the keys that tokens are signed with cannot be fetched');
      }
      isFailing = true;
    }
  };

  const refresh = (): Promise<void> => {
    running ??= fetchOnce().finally(() => {
      running = undefined;
    });
    return running;
  };

  const findKnown: JWTVerifyGetKey = (header, token) => {
    if (known === undefined || monotonicMs() - confirmedMs > staleAfterMs) throw new errors.JWKSNoMatchingKey();
    return known(header, token);
  };

  return {
    name: 'keys of tokens',
    generation: () => generation,
    refresh,
    async find(header, token) {
      try {
        return await findKnown(header, token);
      } catch (error) {
        if (!(error instanceof errors.JWKSNoMatchingKey)) throw error;
        if (running !== undefined || monotonicMs() - startedMs >= refetchMs) await refresh();
        if (isFailing) throw unavailable(error);
        return await findKnown(header, token);
      }
    },
    start() {
      // Not awaited, so that a process starts and serves API keys while the key server is down.
      void refresh();
      timer ??= setInterval(() => void refresh(), refreshMs);
    },
    async stop() {
      clearInterval(timer);
      stopping.abort();
      await running;
    },
  };
}

const unavailable = (cause: unknown): GatewayError =>
  new GatewayError(
    'unavailable',
    'sign_in_unavailable',
    'This token cannot be checked, because the server of the keys that it was signed with (SLUICE_JWKS_URL) does not ' +
      'answer as it should. Try again shortly.',
    { retryAfterMs: 5_000, cause },
  );
