import type { Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import { isTransient } from '#libs/database/database-error.ts';
import type { EventLog } from '#libs/event-log/event-log.ts';
import type { BlobStore } from '#libs/blobs/blob-store.ts';
import type { Logger } from '#libs/kernel/logger.ts';
import { memberValues } from '#libs/kernel/json-members.ts';
import { sleep } from '#libs/kernel/sleep.ts';
import type { ClaimedJob, JobQueue } from '#libs/queue/job-queue.ts';
import { splitChunk, type RequestLine } from '#libs/validation/json-lines.ts';
import type { BatchRow } from './batch-model.ts';
import { chunkQueue, type ChunkPayload } from './batch-queues.ts';
import type { BatchWatch } from './batch-watch.ts';
import type { CallLine } from './call-line.ts';
import { isRedelivered, takeUpRedelivered, type ChunkRow } from './redelivery.ts';
import { isSuccess, resultLine, unansweredMessages, type LineOutcome } from './result-line.ts';
import { prepareSettling, type LineResult } from './settle-group.ts';
import { createSettler, type Settler } from './settle-results.ts';
import type { Slots } from './slots.ts';

export type ChunkRunner = {
  /** The handler of queue `batch-chunk`. Throws, after a pause, when the chunk has to be tried again. */
  run(job: ClaimedJob<ChunkPayload>): Promise<void>;
  /**
   * Starts no more lines from now on: running ones have `graceMs` to finish, what is finished is settled, and the
   * unfinished chunks are given back for immediate redelivery.
   */
  drain(graceMs: number): void;
};

type Deps = {
  db: Kysely<Database>;
  eventLog: EventLog;
  queue: JobQueue;
  blobs: BlobStore;
  watch: BatchWatch;
  slots: Slots;
  callLine: CallLine;
  /** The blob of an input file, also after the file was deleted: a living batch keeps what it needs. */
  inputBlob: (batch: BatchRow) => Promise<string>;
  /** A chunk is done: the dispatcher may release another. */
  onChunkDone: () => void;
  logger: Logger;
};

/** Runs chunks of batches: lines to calls to results, bounded by the process's slots. */
export function createChunkRunner(deps: Deps): ChunkRunner {
  const { db, logger } = deps;
  const draining = new AbortController();
  const abandoned = new AbortController();
  const settlers = new Map<string, { settler: Settler; users: number }>();

  // One settler a batch and process, so that the chunks of a batch share their transactions.
  async function useSettler(batch: BatchRow, work: (settler: Settler) => Promise<void>): Promise<void> {
    let entry = settlers.get(batch.id);
    if (!entry) {
      entry = {
        settler: createSettler(
          { ...deps, signal: abandoned.signal },
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

  return {
    drain(graceMs) {
      draining.abort();
      setTimeout(() => abandoned.abort(), graceMs).unref();
    },
    async run(job) {
      const stop = AbortSignal.any([draining.signal, job.signal]);
      let ready: Ready | undefined;
      try {
        ready = await whenDatabaseAnswers(() => prepare(deps, job), { logger, stop });
        if (ready.action === 'drop') return;
        const { batch } = ready;
        await useSettler(batch, async (settler) => {
          const run = { job, settler, draining: draining.signal, abandon: abandoned.signal };
          if (ready?.action === 'run') await runLines(deps, { ...ready, ...run });
          else await closeChunk(run, job.payload.chunk);
        });
        deps.onChunkDone();
      } catch (error) {
        const { batch_id, chunk } = job.payload;
        logger.error({ err: error, batch_id, chunk, retry: job.retryCount }, 'chunk failed; it is tried again');
        // Before any call: the fault lies in the surroundings, and must not be taken for that of a line.
        if (ready === undefined && !isTransient(error)) await markHandedBack(db, job.payload).catch(() => {});
        await sleep(Math.min(failurePause.maxMs, failurePause.firstMs * 2 ** Math.min(job.retryCount, 10)), stop);
        throw error;
      }
    },
  };
}

// The queue gives a failed chunk out again at once, as it must after a crash.
const failurePause = { firstMs: 500, maxMs: 30_000 };

type Ready =
  | { action: 'drop' }
  | { action: 'stop'; batch: BatchRow }
  | {
      action: 'run';
      batch: BatchRow;
      chunk: ChunkRow;
      lines: RequestLine[];
      settled: ReadonlySet<number>;
      poison: number | null;
    };

type Claim = { job: ClaimedJob<ChunkPayload>; settler: Settler; draining: AbortSignal; abandon: AbortSignal };
type Run = Extract<Ready, { action: 'run' }> & Claim;

/** `signal` aborts the chunk's calls; one for all of them, because each composite signal costs more than a small line. */
type RunningChunk = Run & { signal: AbortSignal };

/** Keeps the claim, and its heartbeat, while the database is away: nothing has been called yet. */
async function whenDatabaseAnswers<Result>(
  work: () => Promise<Result>,
  { logger, stop }: { logger: Logger; stop: AbortSignal },
): Promise<Result> {
  for (;;) {
    try {
      return await work();
    } catch (error) {
      if (!isTransient(error) || stop.aborted) throw error;
      logger.warn({ err: error }, 'chunk waits for the database');
      await sleep(500, stop);
    }
  }
}

/** Everything that comes before the first call. */
async function prepare(deps: Deps, job: ClaimedJob<ChunkPayload>): Promise<Ready> {
  const { batch_id: batchId, chunk: number } = job.payload;
  const batch = await deps.db.selectFrom('batch').selectAll().where('id', '=', batchId).executeTakeFirst();
  const chunk = await deps.db
    .selectFrom('batch_chunk')
    .selectAll()
    .where('batch_id', '=', batchId)
    .where('chunk', '=', number)
    .executeTakeFirst();
  if (!batch || !chunk || chunk.state === 'done') {
    deps.logger.warn({ batch_id: batchId, chunk: number }, 'chunk job without work is dropped');
    return { action: 'drop' };
  }
  if (batch.status !== 'in_progress') return { action: 'stop', batch };
  await prepareSettling(deps.db, batch);
  if (!isRedelivered(chunk, job)) {
    const lines = await readLines(deps, batch, chunk);
    return { action: 'run', batch, chunk, lines, settled: new Set(), poison: null };
  }
  const redelivery = await takeUpRedelivered(deps, batch, number, job);
  if (redelivery.action === 'drop') return redelivery;
  if (redelivery.action === 'stop') return { action: 'stop', batch };
  const lines = await readLines(deps, batch, redelivery.chunk);
  const poison = redelivery.action === 'poison' ? redelivery.line : null;
  return { action: 'run', batch, chunk: redelivery.chunk, lines, settled: redelivery.settled, poison };
}

async function runLines(deps: Deps, run: Run): Promise<void> {
  const { batch, chunk, job, settler, draining, lines, settled } = run;
  const { signal: leftInProgress, unwatch } = deps.watch.watch(batch.id, 'in_progress');
  const stop = AbortSignal.any([leftInProgress, job.signal, draining]);
  const chunkRun: RunningChunk = { ...run, signal: AbortSignal.any([job.signal, run.abandon]) };
  const running: Promise<boolean>[] = [];
  let stopped = false;
  try {
    for (const line of lines) {
      if (settled.has(line.line)) continue;
      // Room first: a line that waits here holds nothing and may still be cancelled.
      await deps.slots.acquire(line.bytes.length);
      stopped = stop.aborted;
      if (stopped) {
        deps.slots.release(1, line.bytes.length);
        break;
      }
      running.push(runLine(deps, chunkRun, line));
    }
    const finished = await Promise.all(running);
    stopped ||= finished.includes(false);
  } finally {
    unwatch();
  }
  if (job.signal.aborted) await settler.flush();
  else if (stopped && !leftInProgress.aborted) await handBack(deps, run);
  else await closeChunk(run, chunk.chunk);
}

async function closeChunk({ job, settler }: Pick<Claim, 'job' | 'settler'>, chunk: number): Promise<void> {
  const outcome = await settler.close({ chunk, job });
  if (outcome === 'incomplete') throw new Error(`chunk ${chunk} of ${job.payload.batch_id} has lines without a result`);
}

async function readLines(deps: Deps, batch: BatchRow, chunk: ChunkRow): Promise<RequestLine[]> {
  const blob = await deps.inputBlob(batch);
  const range = await deps.blobs.readRange(blob, chunk.byte_offset, chunk.byte_length);
  const end = chunk.first_line + chunk.line_count;
  return splitChunk(range, chunk.range_first_line).filter(({ line }) => line >= chunk.first_line && line < end);
}

/**
 * One line: call, make its result line once, hand it to the settler. False when it was abandoned without an outcome
 * (claim lost, worker out of time); never rejects.
 */
async function runLine(deps: Deps, run: RunningChunk, { line, bytes }: RequestLine): Promise<boolean> {
  const { batch, chunk, signal, settler, poison } = run;
  try {
    const { custom_id: customId = nullText, body } = memberValues(bytes, ['custom_id', 'body']);
    let outcome: LineOutcome;
    let usage: LineResult['usage'] = null;
    try {
      if (poison === line)
        outcome = { kind: 'error', code: 'worker_crashed', message: unansweredMessages.worker_crashed };
      else ({ outcome, usage } = await deps.callLine({ batch, line, body, signal }));
    } catch (error) {
      if (signal.aborted) {
        // Whoever has the chunk next does this line.
        deps.slots.release(1, bytes.length);
        return false;
      }
      deps.logger.error({ err: error, batch_id: batch.id, line }, 'line failed inside the gateway');
      const message = 'The gateway failed while it executed this request.';
      outcome = { kind: 'error', code: 'internal_error', message };
    }
    const data = resultLine(batch.id, line, customId, outcome);
    const release = (): void => deps.slots.release(0, data.length);
    settler.add({ chunk: chunk.chunk, line, succeeded: isSuccess(outcome), data, usage, release });
    // The call is over; the result's bytes stay counted until they are committed.
    deps.slots.release(1, bytes.length - data.length);
  } catch (error) {
    // The line has no result, so the chunk will be found incomplete and count as tried in vain.
    deps.logger.error({ err: error, batch_id: batch.id, line }, 'result line not made');
    deps.slots.release(1, bytes.length);
  }
  return true;
}

const nullText = Buffer.from('null');

/** A worker told to stop: what is finished is settled, the rest goes to another worker at once. */
async function handBack(deps: Deps, { job, settler }: Run): Promise<void> {
  await settler.flush();
  await markHandedBack(deps.db, job.payload);
  await deps.queue.giveBack(chunkQueue, job, 'the worker was told to stop');
}

/** What comes next is no crash: it must not count against the chunk's lines. */
async function markHandedBack(db: Kysely<Database>, { batch_id, chunk }: ChunkPayload): Promise<void> {
  await db
    .updateTable('batch_chunk')
    .set({ handed_back: true })
    .where('batch_id', '=', batch_id)
    .where('chunk', '=', chunk)
    .execute();
}
