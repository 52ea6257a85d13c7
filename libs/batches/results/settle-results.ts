import { isDatabaseTrouble, isPartitionMissing } from '#libs/database/database-error.ts';
import { retryDuringOutage } from '#libs/database/retry-during-outage.ts';
import type { ChunkClaim } from '../chunks/chunk.ts';
import { settleGroup, type CloseOutcome, type LineResult, type SettleDeps } from './settle-group.ts';

export type Settler = {
  /** Adds a result, which is committed with the next group. */
  add(result: LineResult): void;
  /**
   * Marks a chunk as done, with or after every result that was added before. While the batch is in progress, a chunk
   * with lines that have no result is not closed (`incomplete`), because those lines would never run.
   */
  close(claim: ChunkClaim): Promise<CloseOutcome>;
  /** Resolves when all results added so far are committed or given up. */
  flush(): Promise<void>;
};

// The maximum for one settle, so that its transaction stays short.
const groupMax = { rows: 512, bytes: 8 * 1_048_576 };
// A group is settled when it has this many results or bytes, or this long after its first result.
const groupDue = { rows: 64, bytes: 4 * 1_048_576, afterMs: 250 };

/** `remakePartition` recreates the partition of the batch's results. */
type Deps = SettleDeps & { remakePartition: () => Promise<void> };

type Closing = { claim: ChunkClaim; resolve: (outcome: CloseOutcome) => void; reject: (error: unknown) => void };

/**
 * Commits the results of one batch in groups, each in a short transaction under the stream's lock. Only one transaction of
 * the batch runs in this process; results that arrive meanwhile form the next group. Counts, usage and root are computed
 * from the rows that were inserted. While the database is unavailable the results wait here, bounded by the worker's permits
 * and memory.
 */
export function createSettler(deps: Deps, batch: { id: string; workspaceId: string }): Settler {
  let results: LineResult[] = [];
  let bytes = 0;
  /** Results added so far, and how many of them are committed or given up. */
  let added = 0;
  let ended = 0;
  let closings: Closing[] = [];
  let flushes: { last: number; resolve: () => void }[] = [];
  let timer: NodeJS.Timeout | undefined;
  let running: Promise<void> | undefined;

  const isDue = (): boolean =>
    closings.length > 0 || flushes.length > 0 || results.length >= groupDue.rows || bytes >= groupDue.bytes;

  const start = (): void => {
    clearTimeout(timer);
    timer = undefined;
    running ??= drain().finally(() => {
      running = undefined;
      schedule();
    });
  };
  const schedule = (): void => {
    if (running) return;
    if (isDue()) start();
    else if (results.length > 0) timer ??= setTimeout(start, groupDue.afterMs);
  };

  const takeGroup = (): { group: LineResult[]; claims: Closing[] } => {
    let size = 0;
    let count = 0;
    while (count < results.length && count < groupMax.rows && size < groupMax.bytes) {
      size += (results[count] as LineResult).data.length;
      count += 1;
    }
    const group = results.slice(0, count);
    results = results.slice(count);
    bytes -= size;
    // A chunk can only close with or after its own results.
    const claims = results.length === 0 ? closings : [];
    if (results.length === 0) closings = [];
    return { group, claims };
  };

  async function drain(): Promise<void> {
    do {
      const { group, claims } = takeGroup();
      try {
        const outcomes = await settleUntilDone(
          deps,
          batch,
          group,
          claims.map(({ claim }) => claim),
        );
        for (const [index, { resolve }] of claims.entries()) resolve(outcomes[index] ?? 'closed');
      } catch (error) {
        // The lines stay unsettled: their chunks are found to be incomplete, and the lines run again when redelivered.
        deps.logger.error({ err: error, batch_id: batch.id, lines: group.length }, 'results not settled');
        for (const { reject } of claims) reject(error);
      } finally {
        ended += group.length;
        for (const result of group) result.release();
        for (const { last, resolve } of flushes) if (last <= ended) resolve();
        flushes = flushes.filter(({ last }) => last > ended);
      }
    } while (isDue());
  }

  return {
    add(result) {
      results.push(result);
      added += 1;
      bytes += result.data.length;
      schedule();
    },
    close(claim) {
      const closed = new Promise<CloseOutcome>((resolve, reject) => closings.push({ claim, resolve, reject }));
      schedule();
      return closed;
    },
    async flush() {
      if (ended === added) return;
      const { promise, resolve } = Promise.withResolvers<void>();
      flushes.push({ last: added, resolve });
      schedule();
      await promise;
    },
  };
}

/**
 * Retries while the database is unavailable or full, or while a process that hangs holds the batch's lock, and after a
 * failover that lost the partition. The results have been paid for and must not be lost to an outage.
 */
async function settleUntilDone(
  deps: Deps,
  batch: { id: string; workspaceId: string },
  group: readonly LineResult[],
  claims: readonly ChunkClaim[],
): Promise<CloseOutcome[]> {
  const settle = async (): Promise<CloseOutcome[]> => {
    try {
      return await settleGroup(deps, batch, group, claims);
    } catch (error) {
      if (isPartitionMissing(error)) await deps.remakePartition();
      throw error;
    }
  };
  const outcomes = await retryDuringOutage(settle, {
    isOutage: (error) => isDatabaseTrouble(error) || isPartitionMissing(error),
    delayMs: 1_000,
    signal: deps.signal,
    onRetry: (error) =>
      deps.logger.warn({ err: error, batch_id: batch.id, lines: group.length }, 'results are waiting for the database'),
  });
  deps.onSettled?.(group.length);
  return outcomes;
}
