import { LRUCache } from 'lru-cache';
import type { FetchedSecret } from './fetched-secret.ts';
import type { SecretFault } from './secret-error.ts';
import { createSecretFetches, SecretEntry, type FetchOptions } from './secret-fetches.ts';
import type { LiveSecretReference } from './secret-manager.ts';

export type SecretCacheOptions = FetchOptions & {
  /** The additional time while its manager does not answer. */
  staleMs: number;
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

const entriesMax = 10_000;
const bytesMax = 67_108_864;
/** A provider that refuses every credential must not cause load at the secret manager. */
const renewEveryMs = 15_000;

/**
 * Caches fetched secrets. A value is fetched again in the background in the last quarter of its life, so that calls do
 * not wait. While its manager does not answer, or refuses, a value is used for `staleMs` more. A value that was deleted
 * at the manager is no longer used.
 */
export function createSecretCache(options: SecretCacheOptions): SecretCache {
  const { staleMs, now } = options;
  const entries = new LRUCache<string, SecretEntry>({
    max: entriesMax,
    maxSize: bytesMax,
    sizeCalculation: ({ secret }) => 200 + (secret?.sizeBytes ?? 0),
  });

  const entryOf = (reference: LiveSecretReference): SecretEntry => {
    const kept = entries.get(reference.id);
    if (kept?.reference === reference) return kept;
    const entry = new SecretEntry(reference);
    entries.set(reference.id, entry);
    return entry;
  };

  /**
   * Its size has changed, which the cache only computes for a new entry. An entry that was evicted or replaced
   * meanwhile is not added again.
   */
  const measure = (entry: SecretEntry): void => {
    const { id } = entry.reference;
    if (entries.peek(id) !== entry) return;
    entries.delete(id);
    entries.set(id, entry);
  };

  const fetches = createSecretFetches({ ...options, onChange: measure });

  const startInBackground = (entry: SecretEntry): void => {
    if (entry.flight === null && now() >= entry.retryAtMs) fetches.start(entry).catch(() => {});
  };

  /** The value that is used although it should have been fetched again; null for none. */
  const staleOf = ({ secret, expiresAtMs }: SecretEntry): FetchedSecret | null =>
    secret !== null && now() < expiresAtMs + staleMs ? secret : null;

  const waitFor = async (entry: SecretEntry): Promise<FetchedSecret> => {
    try {
      return await fetches.start(entry);
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
      const renewed = await fetches.start(entry).catch(() => null);
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
      return { cached, fetches: fetches.counts };
    },
  };
}
