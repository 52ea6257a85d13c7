import type { Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import { isTransient } from '#libs/database/database-error.ts';
import { retryDuringOutage } from '#libs/database/retry-during-outage.ts';
import type { EventLog } from '#libs/event-log/event-log.ts';
import type { BlobStore } from '#libs/blobs/blob-store.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import { steadyClock } from '#libs/kernel/clock.ts';
import { smallBytesMax, type MemoryBudget, type MemoryLease } from '#libs/kernel/sharing/memory-budget.ts';
import { sleep } from '#libs/kernel/sleep.ts';
import type { JobQueue } from '#libs/queue/job-queue.ts';
import type { ClaimedJob } from '#libs/queue/queue-definition.ts';
import { splitChunk, type RequestLine } from '#libs/validation/json-lines.ts';
import type { AnswerSizes } from '../lines/answer-sizes.ts';
import { canStartLines } from '../batch.ts';
import type { BatchRow } from '../batch-model.ts';
import { chunkQueue, type ChunkPayload } from './batch-queues.ts';
import type { BatchWatch } from '../batch-watch.ts';
import type { CallLine } from '../lines/call-line.ts';
import { putBackChunk } from './put-back-chunk.ts';
import { snoozeChunk } from './snooze-chunk.ts';
import { isRedelivered, resumeRedelivered, type ChunkRow } from './redelivery.ts';
import type { FinishSmallBatch } from '../results/finish-small-batch.ts';
import type { LineWaits } from '../lines/line-waits.ts';
import { runLines } from '../lines/run-lines.ts';
import { ensureResultsPartition, remakeResultsPartition, resultsBucket } from '../results/results-bucket.ts';
import { createSettler, type Settler } from '../results/settle-results.ts';
import { createPermitPool, type Permits, type PermitPool } from '../lines/permit-pool.ts';

export type ChunkRunner = {
  /** The handler of queue `batch-chunk`. Throws, after a pause, when the chunk has to be retried. */
  run(job: ClaimedJob<ChunkPayload>): Promise<void>;
  /**
   * Starts no more lines and abandons those that wait. Running lines have `graceMs` to finish. Their results are settled,
   * and unfinished chunks are handed back for immediate redelivery.
   */
  drain(graceMs: number): void;
  /** Chunks that are running, without those that wait for memory. */
  active(): number;
};

type Deps = {
  db: Kysely<Database>;
  eventLog: EventLog;
  queue: JobQueue;
  blobs: BlobStore;
  watch: BatchWatch;
  permits: PermitPool;
  /** The memory for lines, answers and results. */
  memory: MemoryBudget;
  /** How long an answer waits in its socket for memory. */
  memoryWaitMsMax: number;
  answerSizes: AnswerSizes;
  /** The memory for the byte ranges of input files that running chunks hold. */
  ranges: MemoryBudget;
  callLine: CallLine;
  waits: Pick<LineWaits, 'begin'>;
  /** Whether other chunks need the slots that the chunks of this process have. */
  isCrowded: () => boolean;
  isLogFull: () => boolean;
  /** The blob of the input file, even if the file was deleted: it stays until the batch has ended. */
  inputBlob: (batch: BatchRow) => Promise<string>;
  finishSmallBatch: FinishSmallBatch;
  /** Called when another chunk can run, so that the dispatcher can enqueue one. */
  onSlotFree: () => void;
  /** Called for each chunk that was claimed before, by a process that died or handed it back. */
  onRedelivery?: (() => void) | undefined;
  /** Called for each settle that was committed. */
  onSettled?: ((results: number) => void) | undefined;
  logger: Logger;
};

/** Runs the chunks of batches: calls their lines and settles the results, limited by the process's permits and memory. */
export function createChunkRunner(deps: Deps): ChunkRunner {
  const { db, logger } = deps;
  const draining = new AbortController();
  const abandoned = new AbortController();
  let active = 0;
  const settlers = new Map<string, { settler: Settler; users: number }>();
  // Only one suspected poison line is called at a time, so that it is clear which one ended the process (redelivery.ts).
  const suspects = createPermitPool({ callsMax: 1, bytesMax: Number.POSITIVE_INFINITY });

  // One settler per batch, so that its chunks share transactions.
  async function useSettler(batch: BatchRow, work: (settler: Settler) => Promise<void>): Promise<void> {
    let entry = settlers.get(batch.id);
    if (!entry) {
      entry = {
        settler: createSettler(
          {
            ...deps,
            signal: abandoned.signal,
            remakePartition: () => remakeResultsPartition(db, resultsBucket(batch)),
          },
          { id: batch.id, workspaceId: batch.workspace_id },
        ),
        users: 0,
      };
      settlers.set(batch.id, entry);
    }
    entry.users += 1;
    try {
      await work(entry.settler);
    } finally {
      entry.users -= 1;
      if (entry.users === 0) settlers.delete(batch.id);
    }
  }

  async function countActive(work: () => Promise<void>): Promise<void> {
    active += 1;
    try {
      await work();
    } finally {
      active -= 1;
    }
  }

  return {
    active: () => active,
    drain(graceMs) {
      draining.abort();
      setTimeout(() => abandoned.abort(), graceMs).unref();
    },
    async run(job) {
      const stop = AbortSignal.any([draining.signal, job.signal]);
      // Holds the claim and its heartbeat while the database is unavailable. No line has been called yet.
      const retrying = {
        delayMs: 500,
        signal: stop,
        onRetry: (error: unknown) => logger.warn({ err: error }, 'chunk is waiting for the database'),
      };
      let isCalling = false;
      try {
        const found = await retryDuringOutage(() => find(deps, job), retrying);
        if (found === null) return;
        const { batch } = found;
        await useSettler(batch, async (settler) => {
          const claim: Claim = { job, settler, draining: draining.signal, abandon: abandoned.signal };
          const memory = memoryForRange(deps.ranges.open(batch.workspace_id));
          const work = async (): Promise<void> => {
            const ready = await prepare(deps, job, found, (step) => retryDuringOutage(step, retrying));
            if (ready.action === 'drop') return job.note?.('dropped');
            if (ready.action === 'stop') return await closeChunk(claim, found.chunk);
            const call = async (): Promise<void> => {
              isCalling = true;
              await runReady(deps, { ...ready, ...claim });
            };
            if (!ready.isSuspect) return await call();
            await withPermit(deps, { permits: suspects, bytes: 0 }, found, claim, async () => {
              await retryDuringOutage(() => markHandedBack(db, job.payload, false), retrying);
              await call();
            });
          };
          const range = { permits: memory, bytes: found.chunk.byte_length };
          await withPermit(deps, range, found, claim, () => countActive(work));
        });
        deps.onSlotFree();
      } catch (error) {
        const { batch_id, chunk } = job.payload;
        logger.error({ err: error, batch_id, chunk, retry: job.retryCount }, 'chunk failed and will be retried');
        // No line has been called yet, so none of them caused the failure, and it must not count against them.
        if (!isCalling && !isTransient(error)) await markHandedBack(db, job.payload).catch(() => {});
        await sleep(Math.min(failurePause.maxMs, failurePause.firstMs * 2 ** Math.min(job.retryCount, 10)), stop);
        throw error;
      }
    },
  };
}

// The queue redelivers a failed chunk immediately, which is right after a crash but not after an error.
const failurePause = { firstMs: 500, maxMs: 30_000 };

type Found = { batch: BatchRow; chunk: ChunkRow };

type Ready =
  | { action: 'drop' }
  | { action: 'stop' }
  | {
      action: 'run';
      batch: BatchRow;
      chunk: ChunkRow;
      lines: RequestLine[];
      settled: ReadonlySet<number>;
      poison: number | null;
      isSuspect: boolean;
    };

type Claim = { job: ClaimedJob<ChunkPayload>; settler: Settler; draining: AbortSignal; abandon: AbortSignal };
type Run = Extract<Ready, { action: 'run' }> & Claim;

/** The chunk of a job, and its batch. Null when there is nothing to do. */
async function find(deps: Deps, job: ClaimedJob<ChunkPayload>): Promise<Found | null> {
  const { batch_id: batchId, chunk: number } = job.payload;
  const batch = await deps.db.selectFrom('batch').selectAll().where('id', '=', batchId).executeTakeFirst();
  const chunk = await deps.db
    .selectFrom('batch_chunk')
    .selectAll()
    .where('batch_id', '=', batchId)
    .where('chunk', '=', number)
    .executeTakeFirst();
  if (batch && chunk && chunk.state !== 'done') return { batch, chunk };
  deps.logger.warn({ batch_id: batchId, chunk: number }, 'chunk job without work was dropped');
  job.note?.('dropped');
  await deps.queue.complete(deps.db, chunkQueue, job);
  return null;
}

/**
 * The memory for the byte range of one chunk. Each workspace has a share of it, because a batch whose provider hangs
 * holds its ranges as long as its calls and must not block others. Small ranges do not wait behind large ones of their
 * workspace.
 */
const memoryForRange = (lease: MemoryLease): Permits => ({
  async acquire(bytes, { signal = never } = {}) {
    return (bytes <= smallBytesMax && lease.tryCharge(bytes)) || (await lease.reserve(bytes, signal));
  },
  release: () => lease.release(),
});

const never = new AbortController().signal;

/**
 * Waits for a permit, runs `work` and releases the permit. Used for the memory of a chunk's range and for suspects. The
 * claim is held during the wait; a cancel, a lost claim or a drain ends it. Code that holds a permit never waits for
 * another one of the same kind, so there is no deadlock.
 */
async function withPermit(
  deps: Deps,
  { permits, bytes }: { permits: Permits; bytes: number },
  { batch, chunk }: Found,
  claim: Claim,
  work: () => Promise<void>,
): Promise<void> {
  // Crashes that happened while the batch ran still count after a pause.
  const pause = { countsClaim: isRedelivered(chunk, claim.job) };
  if (!canStartLines(batch)) return await putBackOrClose(deps, claim, { batch, chunk }, pause);
  const { signal: startsNoLines, unwatch } = deps.watch.watch(batch.id, 'starts_lines');
  const stop = AbortSignal.any([startsNoLines, claim.draining, claim.job.signal]);
  let isAcquired: boolean;
  try {
    isAcquired = await permits.acquire(bytes, { signal: stop });
  } finally {
    unwatch();
  }
  if (isAcquired) {
    try {
      return await work();
    } finally {
      permits.release(1, bytes);
    }
  }
  if (claim.job.signal.aborted) return claim.job.note?.('claim_lost');
  if (startsNoLines.aborted) await putBackOrClose(deps, claim, { batch, chunk }, pause);
  else await handBack(deps, claim);
}

/**
 * Everything else that has to happen before the first call. `again` repeats each step during an outage of the database.
 */
async function prepare(
  deps: Deps,
  job: ClaimedJob<ChunkPayload>,
  { batch, chunk }: Found,
  again: <Result>(step: () => Promise<Result>) => Promise<Result>,
): Promise<Ready> {
  await again(() => ensureResultsPartition(deps.db, resultsBucket(batch)));
  const run = { action: 'run' as const, batch, chunk, poison: null, isSuspect: false };
  if (!isRedelivered(chunk, job))
    return { ...run, lines: await again(() => readLines(deps, batch, chunk)), settled: new Set() };
  deps.onRedelivery?.();
  const redelivery = await again(() => resumeRedelivered(deps, batch, chunk, job));
  if (redelivery.action === 'drop' || redelivery.action === 'stop') return redelivery;
  const lines = await again(() => readLines(deps, batch, chunk));
  const { settled } = redelivery;
  return redelivery.action === 'poison'
    ? { ...run, lines, settled, poison: redelivery.line }
    : { ...run, lines, settled, isSuspect: redelivery.isSuspect };
}

async function runReady(deps: Deps, run: Run): Promise<void> {
  const { batch, chunk, job, settler, draining, lines, settled, poison } = run;
  const end = await runLines(deps, {
    batch,
    chunk: chunk.chunk,
    generation: chunk.generation,
    lines,
    settled,
    poison,
    settler,
    job,
    stop: AbortSignal.any([job.signal, draining]),
    abandon: AbortSignal.any([job.signal, run.abandon]),
    onTail() {
      if (job.freeSlot?.() === true) deps.onSlotFree();
    },
  });
  if (job.signal.aborted) {
    job.note?.('claim_lost');
    await settler.flush();
  } else if (end.kind === 'stopped') await handBack(deps, run);
  else if (end.kind === 'snoozed') {
    await settler.flush();
    job.note?.('snoozed');
    await snoozeChunk(deps, job, batch, Math.max(0, end.resumeAtMs - steadyClock.now()));
    const until = new Date(end.resumeAtMs).toISOString();
    deps.logger.info(
      { batch_id: batch.id, chunk: chunk.chunk, until },
      'chunk was snoozed because all of its lines are waiting',
    );
  } else if (end.kind === 'paused') await putBackOrClose(deps, run, run, { countsClaim: false });
  else await closeChunk(run, chunk);
}

/** For a batch that starts no more lines, either because it is paused or permanently. */
async function putBackOrClose(
  deps: Deps,
  claim: Pick<Claim, 'job' | 'settler'>,
  { batch, chunk }: Found,
  options: { countsClaim: boolean },
): Promise<void> {
  await claim.settler.flush();
  if (await putBackChunk(deps, claim.job, batch, options)) claim.job.note?.('put_back');
  else await closeChunk(claim, chunk);
}

async function closeChunk(
  { job, settler }: Pick<Claim, 'job' | 'settler'>,
  { chunk, line_count: lines }: ChunkRow,
): Promise<void> {
  const outcome = await settler.close({ chunk, lines, job });
  if (outcome === 'incomplete') throw new Error(`chunk ${chunk} of ${job.payload.batch_id} has lines without a result`);
}

async function readLines(deps: Deps, batch: BatchRow, chunk: ChunkRow): Promise<RequestLine[]> {
  const blob = await deps.inputBlob(batch);
  const range = await deps.blobs.readRange(blob, chunk.byte_offset, chunk.byte_length);
  const end = chunk.first_line + chunk.line_count;
  return splitChunk(range, chunk.range_first_line).filter(({ line }) => line >= chunk.first_line && line < end);
}

/** The worker is stopping: settles the finished lines, and hands the rest to another worker immediately. */
async function handBack(deps: Deps, { job, settler }: Claim): Promise<void> {
  await settler.flush();
  await markHandedBack(deps.db, job.payload);
  job.note?.('handed_back');
  await deps.queue.handBack(chunkQueue, job, 'the worker is stopping');
}

/** With `true`, the next claim does not count as one after a crash. With `false`, it counts again. */
async function markHandedBack(
  db: Kysely<Database>,
  { batch_id, chunk }: ChunkPayload,
  handedBack = true,
): Promise<void> {
  await db
    .updateTable('batch_chunk')
    .set({ handed_back: handedBack })
    .where('batch_id', '=', batch_id)
    .where('chunk', '=', chunk)
    .execute();
}
