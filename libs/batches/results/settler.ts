import { isDatabaseTrouble, isLockTimeout, isPartitionMissing } from '#libs/database/database-error.ts';
import { sleep } from '#libs/kernel/sleep.ts';
import type { Holder } from '#libs/queue/process-lease.ts';
import type { BatchRow } from '../batch/batch-model.ts';
import type { ChunkClaim } from '../chunks/chunk.ts';
import {
  settleGroups,
  storeGroups,
  type CloseOutcome,
  type LineResult,
  type SettleDeps,
  type SettledGroup,
  type SettleGroup,
  type StoredGroups,
} from './settle-groups.ts';

/** The results of one batch. */
export type BatchSettler = {
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

type Deps = SettleDeps & {
  /** The identity under which this process holds work now. */
  holder: () => Holder;
  /**
   * Writes the files of a small batch that this process holds. The settle waits for it and its chunk keeps its slot, so
   * that batches are not settled faster than they are finished. Never rejects.
   */
  finishSmallBatch: (batch: BatchRow, holder: Holder) => Promise<void>;
  /** Recreates the partition of a batch's results. */
  remakePartition: (batchId: string) => Promise<void>;
  /** Called for each settle of a batch that was committed. */
  onSettled?: ((results: number) => void) | undefined;
  /** Aborts when the process has no time left. */
  signal: AbortSignal;
};

// The maximum for one batch in one round, and for the round, so that its transaction stays short.
const groupMax = { rows: 512, bytes: 8 * 1_048_576 };
const roundMax = { rows: 2_048, bytes: 8 * 1_048_576 };
// A batch is settled at once when it has this many results or bytes, and otherwise with the first tick when its first
// result has waited so long.
const due = { rows: 64, bytes: 4 * 1_048_576, afterMs: 2_000 };
const tickMs = 250;
const roundsAtOnce = 2;
const retryMs = 1_000;
/** A segment without rows is swept a day after it was written. One that has waited this long is written again. */
const segmentMsMax = 12 * 3_600_000;

type Closing = { claim: ChunkClaim; resolve: (outcome: CloseOutcome) => void; reject: (error: unknown) => void };

/** The results of a batch that are not settled yet. */
type Pending = {
  batch: SettleGroup['batch'];
  results: LineResult[];
  bytes: number;
  firstAtMs: number;
  /** Results added so far, and how many of them are committed or given up. */
  added: number;
  ended: number;
  closings: Closing[];
  flushes: { last: number; resolve: () => void }[];
  isSettling: boolean;
};

/** What a round takes from one batch. */
type Taken = { pending: Pending; group: SettleGroup; closings: Closing[] };

/**
 * Commits the results of all batches of the process in rounds: the results that are due go into one segment and one
 * transaction. A batch is in one round at a time; its results that arrive meanwhile form the next group. Counts, usage
 * and root are computed from the results that were inserted. While the database or the blob store is unavailable the
 * results wait here, bounded by the worker's permits and memory.
 */
export class Settler {
  readonly #deps: Deps;
  readonly #pending = new Map<string, Pending>();
  readonly #due = new Set<Pending>();
  #rounds = 0;
  #tick: NodeJS.Timeout | undefined;

  constructor(deps: Deps) {
    this.#deps = deps;
  }

  of(batch: SettleGroup['batch']): BatchSettler {
    return {
      add: (result) => {
        const pending = this.#open(batch);
        if (pending.results.length === 0) pending.firstAtMs = performance.now();
        pending.results.push(result);
        pending.added += 1;
        pending.bytes += result.data.length;
        this.#schedule(pending);
      },
      close: (claim) => {
        const pending = this.#open(batch);
        const closed = new Promise<CloseOutcome>((resolve, reject) =>
          pending.closings.push({ claim, resolve, reject }),
        );
        this.#schedule(pending);
        return closed;
      },
      flush: async () => {
        const pending = this.#pending.get(batch.id);
        if (pending === undefined || pending.ended === pending.added) return;
        const { promise, resolve } = Promise.withResolvers<void>();
        pending.flushes.push({ last: pending.added, resolve });
        this.#schedule(pending);
        await promise;
      },
    };
  }

  #open(batch: SettleGroup['batch']): Pending {
    const known = this.#pending.get(batch.id);
    if (known !== undefined) return known;
    const counts = { bytes: 0, firstAtMs: 0, added: 0, ended: 0 };
    const pending: Pending = { batch, results: [], closings: [], flushes: [], ...counts, isSettling: false };
    this.#pending.set(batch.id, pending);
    return pending;
  }

  #schedule(pending: Pending): void {
    if (pending.isSettling) return;
    const { results, bytes, closings, flushes } = pending;
    if (closings.length > 0 || flushes.length > 0 || results.length >= due.rows || bytes >= due.bytes) {
      this.#due.add(pending);
      this.#startRounds();
    } else if (this.#tick === undefined) this.#tick = setTimeout(() => this.#onTick(), tickMs);
  }

  #onTick(): void {
    const before = performance.now() - due.afterMs;
    let areWaiting = false;
    for (const pending of this.#pending.values()) {
      if (pending.isSettling || pending.results.length === 0) continue;
      if (pending.firstAtMs <= before) this.#due.add(pending);
      else areWaiting = true;
    }
    this.#tick = areWaiting ? setTimeout(() => this.#onTick(), tickMs) : undefined;
    this.#startRounds();
  }

  #startRounds(): void {
    while (this.#rounds < roundsAtOnce && this.#due.size > 0) {
      this.#rounds += 1;
      void this.#settle(this.#takeRound());
    }
  }

  #takeRound(): Taken[] {
    const taken: Taken[] = [];
    let left = { ...roundMax };
    for (const pending of this.#due) {
      if (left.rows <= 0 || left.bytes <= 0) break;
      this.#due.delete(pending);
      pending.isSettling = true;
      const max = { rows: Math.min(left.rows, groupMax.rows), bytes: Math.min(left.bytes, groupMax.bytes) };
      const one = takeGroup(pending, max);
      taken.push(one);
      left = { rows: left.rows - one.group.results.length, bytes: left.bytes - sizeOf(one.group) };
    }
    return taken;
  }

  /** Settles the groups of a round and frees its place. Never rejects. */
  async #settle(round: readonly Taken[]): Promise<void> {
    const place = { isHeld: true };
    const freePlace = (): void => {
      if (!place.isHeld) return;
      place.isHeld = false;
      this.#rounds -= 1;
      this.#startRounds();
    };
    await this.#commit(round, null, freePlace);
    freePlace();
  }

  async #store(groups: readonly SettleGroup[]): Promise<StoredGroups> {
    const { logger, signal } = this.#deps;
    for (;;) {
      try {
        return await storeGroups(this.#deps, groups);
      } catch (error) {
        if (signal.aborted) throw error;
        logger.warn({ err: error, batches: groups.length }, 'results are waiting for the blob store');
        await sleep(retryMs, signal);
      }
    }
  }

  /**
   * Repeats the transaction while the database is unavailable or full, and after a failover that lost a partition. The
   * results have been paid for and must not be lost to an outage. When the cause can be a single batch, such as a process
   * that hangs and holds its lock, the halves of the round are settled one after the other, and the batch gives up its
   * place to others. `first`: the groups if they are already in a segment. Never rejects.
   */
  async #commit(round: readonly Taken[], first: StoredGroups | null, freePlace: () => void): Promise<void> {
    const { logger, signal } = this.#deps;
    let stored = first;
    let storedAtMs = performance.now();
    for (;;) {
      try {
        if (stored === null || performance.now() - storedAtMs > segmentMsMax) {
          stored = await this.#store(round.map(({ group }) => group));
          storedAtMs = performance.now();
        }
        const holder = this.#deps.holder();
        const settled = await settleGroups(this.#deps, stored, holder);
        // The files of small batches are written outside of the round.
        for (const [index, taken] of round.entries()) void this.#end(taken, settled[index] as SettledGroup, holder);
        return;
      } catch (error) {
        const isMissing = isPartitionMissing(error);
        if (isMissing) for (const { group } of round) await this.#remake(group.batch.id);
        const isWaiting = isMissing || isDatabaseTrouble(error);
        if (round.length > 1 && (!isWaiting || isLockTimeout(error))) {
          const middle = Math.ceil(round.length / 2);
          for (const [from, to] of [
            [0, middle],
            [middle, round.length],
          ] as const) {
            const half = stored && { ...stored, groups: stored.groups.slice(from, to) };
            await this.#commit(round.slice(from, to), half, freePlace);
          }
          return;
        }
        if (!isWaiting || signal.aborted) {
          for (const taken of round) this.#giveUp(taken, error);
          return;
        }
        const batches = round.map(({ group }) => group.batch.id).slice(0, 3);
        logger.warn({ err: error, batch_ids: batches }, 'results are waiting for the database');
        if (isLockTimeout(error)) freePlace();
        await sleep(retryMs, signal);
      }
    }
  }

  async #remake(batchId: string): Promise<void> {
    try {
      await this.#deps.remakePartition(batchId);
    } catch (error) {
      this.#deps.logger.warn({ err: error, batch_id: batchId }, 'the partition of the results was not recreated');
    }
  }

  async #end(taken: Taken, { outcomes, finishing }: SettledGroup, holder: Holder): Promise<void> {
    this.#deps.onSettled?.(taken.group.results.length);
    this.#release(taken);
    if (finishing) await this.#deps.finishSmallBatch(finishing, holder);
    for (const [index, { resolve }] of taken.closings.entries()) resolve(outcomes[index] ?? 'closed');
  }

  /** The lines stay unsettled: their chunks are found to be incomplete, and the lines run again with the next claim. */
  #giveUp(taken: Taken, error: unknown): void {
    const { batch, results } = taken.group;
    this.#deps.logger.error({ err: error, batch_id: batch.id, lines: results.length }, 'results not settled');
    this.#release(taken);
    for (const { reject } of taken.closings) reject(error);
  }

  #release({ pending, group }: Taken): void {
    pending.isSettling = false;
    pending.ended += group.results.length;
    for (const result of group.results) result.release();
    for (const { last, resolve } of pending.flushes) if (last <= pending.ended) resolve();
    pending.flushes = pending.flushes.filter(({ last }) => last > pending.ended);
    if (pending.results.length > 0 || pending.closings.length > 0) this.#schedule(pending);
    else this.#pending.delete(pending.batch.id);
  }
}

const sizeOf = ({ results }: SettleGroup): number => results.reduce((sum, { data }) => sum + data.length, 0);

function takeGroup(pending: Pending, max: { rows: number; bytes: number }): Taken {
  let size = 0;
  let count = 0;
  while (count < pending.results.length && count < max.rows && size < max.bytes) {
    size += (pending.results[count] as LineResult).data.length;
    count += 1;
  }
  const results = pending.results.splice(0, count);
  pending.bytes -= size;
  // A chunk can only close with or after its own results.
  const closings = pending.results.length === 0 ? pending.closings.splice(0) : [];
  return { pending, closings, group: { batch: pending.batch, results, claims: closings.map(({ claim }) => claim) } };
}
