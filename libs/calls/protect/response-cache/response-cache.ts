import { LRUCache } from 'lru-cache';
import { pickHeaders } from '#libs/calls/upstream/answers/answer-headers.ts';
import type { Answer, ForwardRequest, Outcome, Target } from '#libs/calls/call.ts';
import type { Clock } from '#libs/kernel/clock.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import type { CallOperation } from '#libs/calls/call.ts';
import { findProvider } from '#libs/providers/registry.ts';
import { toCachedAnswer, headOf, recordStream, type CacheEntry, type EntryHead } from './cache-entry.ts';
import { cacheKey, type CacheScope } from './cache-key.ts';
import type { CacheOptions } from './cache-options.ts';
import { createRowWriter } from './row-writer.ts';
import type { StoredAnswers } from './stored-answers.ts';

export type CacheStatus = 'HIT' | 'MISS' | 'REFRESH' | 'DISABLED';

type Deps = {
  stored: StoredAnswers;
  clock: Clock;
  logger: Logger;
  /** Bytes of answers in the memory of this process. */
  memoryBytesMax: number;
  /**
   * A larger answer, or the answer to a larger body, is not cached, because computing its key would block other calls.
   * Default 1 MiB.
   */
  entryBytesMax?: number;
  /** How long a call waits for the shared level before it goes to the provider. Default 100 ms. */
  readTimeoutMs?: number;
};

export type ResponseCache = {
  /**
   * Returns the cached answer of an equal call, or makes the call and caches its answer if that is whole and not an
   * error. The header `x-gateway-cache-status` of the outcome shows which. Never fails because of the cache. Rejects
   * like `call`.
   *
   * No tool is executed again on a hit, so a call whose tools have side effects should not be cached.
   */
  through: (
    scope: Omit<CacheScope, 'namespace'>,
    options: CacheOptions,
    call: { request: ForwardRequest; target: Target; make: () => Promise<Outcome> },
  ) => Promise<Outcome>;
  stats: () => Record<'hits' | 'misses' | 'memoryBytes' | 'memoryEntries' | 'waitingRows' | 'droppedRows', number>;
  /** Writes the pending rows of the shared level. */
  stop: () => Promise<void>;
};

/**
 * The answers of other areas can refer to an object at the provider (a stored response) or be large (images), so they
 * are never cached.
 */
const kept: ReadonlySet<CallOperation> = new Set<CallOperation>([
  'chat',
  'completions',
  'embeddings',
  'messages',
  'responses',
  'generate_content',
]);

/** Bytes in addition to the body: key, head and the entry's own objects. */
const entryOverheadBytes = 512;
const readsMax = 32;
// After a read that failed. Otherwise each call would wait for a database that is unavailable.
const pauseMs = 1_000;

/** Makes the response cache. It only finds exact matches, first in the memory of this process and then in Postgres. */
export function createResponseCache(deps: Deps): ResponseCache {
  const { stored, clock, logger, memoryBytesMax } = deps;
  const { entryBytesMax = 1_048_576, readTimeoutMs = 100 } = deps;
  const writer = createRowWriter({ stored, logger });
  const memory = new LRUCache<string, CacheEntry>({
    maxSize: memoryBytesMax,
    sizeCalculation: (entry) => entry.body.length + entryOverheadBytes,
  });
  let reads = 0;
  let pausedUntilMs = 0;
  let hits = 0;
  let misses = 0;

  const isFresh = (entry: CacheEntry, maxAgeMs: number): boolean => {
    const now = clock.now();
    // This call can ask for a lower maximum age than the one that the entry was stored with.
    return now < entry.expiresAtMs && now - entry.createdAtMs < maxAgeMs;
  };

  const readStored = async (workspaceId: string, key: Buffer): Promise<CacheEntry | null> => {
    if (reads >= readsMax || clock.now() < pausedUntilMs) return null;
    reads += 1;
    let timer: NodeJS.Timeout | undefined;
    const late = new Promise<'late'>((resolve) => {
      timer = setTimeout(() => resolve('late'), readTimeoutMs);
    });
    const reading = stored.find(workspaceId, key);
    // The read counts until it is over, even if no call waits for it any more.
    void reading.catch(() => {}).finally(() => (reads -= 1));
    try {
      const found = await Promise.race([reading, late]);
      if (found !== 'late') return found;
      pausedUntilMs = clock.now() + pauseMs;
      return null;
    } catch (error) {
      pausedUntilMs = clock.now() + pauseMs;
      logger.warn({ err: error }, 'the response cache cannot be read from the database');
      return null;
    } finally {
      clearTimeout(timer);
    }
  };

  const find = async (workspaceId: string, key: Buffer, name: string, maxAgeMs: number): Promise<CacheEntry | null> => {
    const near = memory.get(name);
    if (near && isFresh(near, maxAgeMs)) return near;
    const far = await readStored(workspaceId, key);
    if (!far || !isFresh(far, maxAgeMs)) return null;
    memory.set(name, far);
    return far;
  };

  return {
    async through({ workspaceId, credentialId }, options, { request, target, make }) {
      if (options.disabled || !kept.has(request.operation) || request.body.length > entryBytesMax) {
        return withStatus(await make(), 'DISABLED');
      }
      const { namespace, maxAgeMs, refresh } = options;
      const { clientHeaders = [] } = findProvider(target.provider) ?? {};
      const sent = pickHeaders(request.headers, [...clientHeaders, ...(request.forwardHeaders ?? [])]);
      const key = cacheKey({ workspaceId, credentialId, namespace }, request, target, sent);
      const name = key.toString('base64');
      const entry = refresh ? null : await find(workspaceId, key, name, maxAgeMs);
      const answer = entry && toCachedAnswer(entry, request);
      if (answer) {
        hits += 1;
        return withStatus(answer, 'HIT');
      }
      misses += 1;
      const outcome = withStatus(await make(), refresh ? 'REFRESH' : 'MISS');
      const keep = (head: EntryHead, body: Buffer): void => {
        if (body.length > entryBytesMax) return;
        const createdAtMs = clock.now();
        const kept = { head, body, createdAtMs, expiresAtMs: createdAtMs + maxAgeMs };
        memory.set(name, kept);
        writer.add({ workspaceId, key, entry: kept });
      };
      if (outcome.kind === 'failed' || outcome.kind === 'relayed' || outcome.status !== 200) return outcome;
      if (outcome.kind === 'stream') {
        const { operation, includeUsage } = request;
        return recordStream(outcome, { operation, charsMax: entryBytesMax, includeUsage }, keep);
      }
      const head = headOf(outcome);
      // A copy, because the body can be a small view of a large socket buffer, which would stay in memory as well.
      if (head && outcome.body.length <= entryBytesMax) keep(head, copyOf(outcome.body));
      return outcome;
    },
    stats: () => ({
      hits,
      misses,
      memoryBytes: memory.calculatedSize,
      memoryEntries: memory.size,
      ...writer.stats(),
    }),
    stop: () => writer.flush(),
  };
}

function withStatus<Kind extends Outcome | Answer>(outcome: Kind, status: CacheStatus): Kind {
  if (outcome.kind !== 'failed') outcome.headers['x-gateway-cache-status'] = status;
  return outcome;
}

function copyOf(bytes: Buffer): Buffer {
  const copy = Buffer.allocUnsafeSlow(bytes.length);
  bytes.copy(copy);
  return copy;
}
