import { LRUCache } from 'lru-cache';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import type { FetchedSecret } from './fetched-secret.ts';
import { SecretError, type SecretFault } from './secret-error.ts';
import type { LiveSecretReference } from './secret-manager.ts';

export type SecretCacheOptions = {
  fetch: (reference: LiveSecretReference) => Promise<FetchedSecret>;
  logger: Logger;
  /** How long a fetched secret is used before it must be fetched again. */
  ttlMs: number;
  /** The additional time while its manager does not answer. */
  staleMs: number;
  /** Monotonic, in milliseconds. */
  now: () => number;
  /** Returns a number from 0 to 1, so that processes do not all fetch together. */
  random: () => number;
};

export type SecretCache = {
  /**
   * Returns the secret of a reference: synchronously when it is cached, otherwise fetched, once for all concurrent
   * callers. Throws SecretError.
   */
  read(reference: LiveSecretReference): FetchedSecret | Promise<FetchedSecret>;
  /**
   * Fetches the secret again, because a provider refused the value from `used`: it could have been rotated. null: no newer
   * one exists, or it was fetched for this reason a moment ago. Never rejects.
   */
  renew(reference: LiveSecretReference, used: FetchedSecret): Promise<FetchedSecret | null>;
  /** Forgets values that can no longer be used, such as those of deleted references. */
  sweep(): void;
  stats(): { cached: number; fetches: Readonly<Record<SecretFault | 'ok', number>> };
};

type Entry = {
  reference: LiveSecretReference;
  secret: FetchedSecret | null;
  /** From this time on, a new value is fetched while this one is used. */
  refreshAtMs: number;
  expiresAtMs: number;
  /** Why the last fetch failed. */
  fault: SecretError | null;
  failures: number;
  /** No fetch begins before this time. */
  retryAtMs: number;
  renewedAtMs: number;
  flight: Promise<FetchedSecret> | null;
};

const entriesMax = 10_000;
const bytesMax = 67_108_864;
/** A file is read again after this time, so that a new one is used soon. */
const fileTtlMs = 2_000;
const retryBaseMs = 1_000;
const retryMaxMs = 30_000;
/** The maximum of concurrent fetches for one workspace, or the organisation. Each needs memory for an answer. */
const flightsMax = 128;
/** A provider that refuses every credential must not cause load at the secret manager. */
const renewEveryMs = 15_000;

/**
 * Caches fetched secrets. A value is fetched again in the background in the last quarter of its life, so that calls do
 * not wait. While its manager does not answer, or refuses, a value is used for `staleMs` more. A value that was deleted
 * at the manager is no longer used.
 */
export function createSecretCache({ fetch, logger, ttlMs, staleMs, now, random }: SecretCacheOptions): SecretCache {
  const entries = new LRUCache<string, Entry>({
    max: entriesMax,
    maxSize: bytesMax,
    sizeCalculation: ({ secret }) => 200 + (secret?.sizeBytes ?? 0),
  });
  const fetches: Record<SecretFault | 'ok', number> = { ok: 0, unavailable: 0, denied: 0, not_found: 0, malformed: 0 };

  const flights = new Map<string, number>();

  const entryOf = (reference: LiveSecretReference): Entry => {
    const kept = entries.get(reference.id);
    if (kept?.reference === reference) return kept;
    const entry: Entry = {
      reference,
      secret: null,
      refreshAtMs: 0,
      expiresAtMs: 0,
      fault: null,
      failures: 0,
      retryAtMs: 0,
      renewedAtMs: Number.NEGATIVE_INFINITY,
      flight: null,
    };
    entries.set(reference.id, entry);
    return entry;
  };

  /**
   * Its size has changed, which the cache only computes for a new entry. An entry that was evicted or replaced
   * meanwhile is not added again.
   */
  const measure = (entry: Entry): void => {
    const { id } = entry.reference;
    if (entries.peek(id) !== entry) return;
    entries.delete(id);
    entries.set(id, entry);
  };

  const succeeded = (entry: Entry, secret: FetchedSecret): void => {
    const { id, slug, managerType } = entry.reference;
    const lifeMs = managerType === 'file' ? Math.min(fileTtlMs, ttlMs) : ttlMs;
    const at = now();
    if (entry.failures > 0) logger.info({ secret_reference_id: id, slug }, 'secret can be fetched again');
    Object.assign(entry, {
      secret,
      refreshAtMs: at + lifeMs * (0.75 + 0.2 * random()),
      expiresAtMs: at + lifeMs,
      fault: null,
      failures: 0,
      retryAtMs: 0,
    });
    fetches.ok += 1;
    measure(entry);
  };

  const failed = (entry: Entry, fault: SecretError): void => {
    const { id, slug } = entry.reference;
    if (entry.failures === 0) {
      const reason = { code: fault.code, reason: fault.message };
      logger.warn({ secret_reference_id: id, slug, ...reason }, 'secret cannot be fetched');
    }
    entry.failures += 1;
    entry.fault = fault;
    const longestMs = Math.min(retryMaxMs, retryBaseMs * 2 ** (entry.failures - 1));
    entry.retryAtMs = now() + longestMs * (0.5 + 0.5 * random());
    fetches[fault.fault] += 1;
    // The previous value can still be correct.
    if (fault.kind === 'unavailable') return;
    entry.secret = null;
    measure(entry);
  };

  const start = (entry: Entry): Promise<FetchedSecret> => {
    const { ownerId, slug } = entry.reference;
    const running = flights.get(ownerId) ?? 0;
    if (running >= flightsMax) {
      const what = `cannot be fetched because ${flightsMax} other secrets are being fetched. Try again shortly`;
      return Promise.reject(new SecretError('unavailable', slug, what));
    }
    flights.set(ownerId, running + 1);
    const flight = fetch(entry.reference)
      .then(
        (secret) => {
          succeeded(entry, secret);
          return secret;
        },
        (error: unknown) => {
          const fault = asFault(error, slug);
          failed(entry, fault);
          throw fault;
        },
      )
      .finally(() => {
        entry.flight = null;
        const left = (flights.get(ownerId) ?? 1) - 1;
        if (left === 0) flights.delete(ownerId);
        else flights.set(ownerId, left);
      });
    entry.flight = flight;
    return flight;
  };

  const startInBackground = (entry: Entry): void => {
    if (entry.flight === null && now() >= entry.retryAtMs) start(entry).catch(() => {});
  };

  /** The value that is used although it should have been fetched again; null for none. */
  const staleOf = ({ secret, expiresAtMs }: Entry): FetchedSecret | null =>
    secret !== null && now() < expiresAtMs + staleMs ? secret : null;

  const waitFor = async (entry: Entry): Promise<FetchedSecret> => {
    try {
      return await (entry.flight ?? start(entry));
    } catch (error) {
      const stale = staleOf(entry);
      if (stale !== null) return stale;
      throw error;
    }
  };

  return {
    read(reference) {
      const entry = entryOf(reference);
      const at = now();
      if (entry.secret !== null && at < entry.expiresAtMs) {
        if (at >= entry.refreshAtMs) startInBackground(entry);
        return entry.secret;
      }
      if (entry.fault !== null) {
        // The manager has failed. Calls do not wait for it while there is a value.
        const stale = staleOf(entry);
        if (stale !== null) {
          startInBackground(entry);
          return stale;
        }
        if (entry.flight === null && at < entry.retryAtMs) throw entry.fault;
      }
      return waitFor(entry);
    },

    async renew(reference, used) {
      const entry = entryOf(reference);
      if (entry.secret !== null && entry.secret !== used) return entry.secret;
      if (entry.flight === null) {
        const at = now();
        if (at < entry.renewedAtMs + renewEveryMs || at < entry.retryAtMs) return null;
        entry.renewedAtMs = at;
      }
      const renewed = await (entry.flight ?? start(entry)).catch(() => null);
      return renewed === used ? null : renewed;
    },

    sweep() {
      const at = now();
      for (const [id, entry] of entries.entries()) {
        if (entry.flight === null && at >= Math.max(entry.expiresAtMs + staleMs, entry.retryAtMs)) entries.delete(id);
      }
    },

    stats: () => {
      let cached = 0;
      for (const { secret } of entries.values()) if (secret !== null) cached += 1;
      return { cached, fetches };
    },
  };
}

/** A refusal of the reference itself (its form, an option that the operator disabled) fails its calls. */
function asFault(error: unknown, slug: string): SecretError {
  if (error instanceof SecretError) return error;
  if (error instanceof GatewayError && error.kind === 'invalid_request') {
    return new SecretError('malformed', slug, `cannot be used: ${error.message.replace(/\.$/, '')}`, error);
  }
  return new SecretError('unavailable', slug, 'cannot be fetched because of an error in the gateway', error);
}
