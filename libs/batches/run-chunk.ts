import type { Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import type { EventLog } from '#libs/event-log/event-log.ts';
import type { BlobStore } from '#libs/blobs/blob-store.ts';
import type { Logger } from '#libs/kernel/logger.ts';
import { memberValue } from '#libs/kernel/json-members.ts';
import type { ClaimedJob, JobQueue } from '#libs/queue/job-queue.ts';
import { splitChunk } from '#libs/validation/json-lines.ts';
import { takesResults } from './batch.ts';
import type { BatchRow } from './batch-model.ts';
import { chunkQueue, type ChunkPayload } from './batch-queues.ts';
import type { BatchWatch } from './batch-watch.ts';
import type { CallLine } from './call-line.ts';
import { takeUpRedelivered, type ChunkRow } from './redelivery.ts';
import { isSuccess, resultLine, unansweredMessages, type LineOutcome } from './result-line.ts';
import { createSettler, prepareSettling, type LineResult, type Settler } from './settle-results.ts';
import type { Slots } from './slots.ts';

export type ChunkRunner = {
  /** The handler of queue `batch-chunk`. */
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
      const { batch_id: batchId, chunk: number } = job.payload;
      const batch = await db.selectFrom('batch').selectAll().where('id', '=', batchId).executeTakeFirst();
      const chunk = await db
        .selectFrom('batch_chunk')
        .selectAll()
        .where('batch_id', '=', batchId)
        .where('chunk', '=', number)
        .executeTakeFirst();
      if (!batch || !chunk || chunk.state === 'done') {
        logger.warn({ batch_id: batchId, chunk: number }, 'chunk job without work is dropped');
        return;
      }
      await useSettler(batch, async (settler) => {
        if (batch.status !== 'in_progress') {
          await settler.close({ chunk: number, job });
          return;
        }
        await prepareSettling(db, batch);
        await runLines(deps, { batch, chunk, job, settler, draining: draining.signal, abandon: abandoned.signal });
      });
      deps.onChunkDone();
    },
  };
}

type Run = {
  batch: BatchRow;
  chunk: ChunkRow;
  job: ClaimedJob<ChunkPayload>;
  settler: Settler;
  draining: AbortSignal;
  abandon: AbortSignal;
};

async function runLines(deps: Deps, run: Run): Promise<void> {
  const { batch, chunk, job, settler, draining } = run;
  let settled: ReadonlySet<number> = new Set();
  let poison: number | undefined;
  if (job.retryCount > 0) {
    const redelivery = await takeUpRedelivered(deps, batch, chunk, job);
    if (redelivery.action === 'split') return;
    settled = redelivery.settled;
    if (redelivery.action === 'poison') poison = redelivery.line;
  }
  const lines = await readLines(deps, batch, chunk);
  const { signal: leftInProgress, unwatch } = deps.watch.watch(batch.id, 'in_progress');
  const stop = AbortSignal.any([leftInProgress, job.signal, draining]);
  const running: Promise<boolean>[] = [];
  let stopped = false;
  try {
    for (const { line, bytes } of lines) {
      if (settled.has(line)) continue;
      // Room first: a line that waits here holds nothing and may still be cancelled.
      await deps.slots.acquire(bytes.length);
      stopped = stop.aborted;
      if (stopped) {
        deps.slots.release(1, bytes.length);
        break;
      }
      running.push(runLine(deps, run, { line, bytes }, poison === line));
    }
    const finished = await Promise.all(running);
    stopped ||= finished.includes(false);
  } finally {
    unwatch();
  }
  if (job.signal.aborted) await settler.flush();
  else if (stopped && !leftInProgress.aborted) await handBack(deps, run);
  else await settler.close({ chunk: chunk.chunk, job });
}

async function readLines(deps: Deps, batch: BatchRow, chunk: ChunkRow): Promise<{ line: number; bytes: Buffer }[]> {
  const blob = await deps.inputBlob(batch);
  const range = await deps.blobs.readRange(blob, chunk.byte_offset, chunk.byte_length);
  const end = chunk.first_line + chunk.line_count;
  return splitChunk(range, chunk.range_first_line).filter(({ line }) => line >= chunk.first_line && line < end);
}

/**
 * One line: call, make its result line once, hand it to the settler. False when it was abandoned without an outcome
 * (claim lost, worker out of time); never rejects.
 */
async function runLine(
  deps: Deps,
  run: Run,
  line: { line: number; bytes: Buffer },
  isPoison: boolean,
): Promise<boolean> {
  const { batch, chunk, job, settler } = run;
  const signal = AbortSignal.any([job.signal, run.abandon]);
  let outcome: LineOutcome;
  let usage: LineResult['usage'] = null;
  try {
    if (isPoison) outcome = { kind: 'error', code: 'worker_crashed', message: unansweredMessages.worker_crashed };
    else ({ outcome, usage } = await deps.callLine({ batch, ...line, signal }));
  } catch (error) {
    if (signal.aborted) {
      // Whoever has the chunk next does this line.
      deps.slots.release(1, line.bytes.length);
      return false;
    }
    deps.logger.error({ err: error, batch_id: batch.id, line: line.line }, 'line failed inside the gateway');
    outcome = { kind: 'error', code: 'internal_error', message: 'The gateway failed while it executed this request.' };
  }
  const customId = memberValue(line.bytes, 'custom_id') ?? Buffer.from('null');
  const data = resultLine(batch.id, line.line, customId, outcome);
  // The call is over; the result's bytes stay counted until they are committed.
  const held = data.length;
  deps.slots.release(1, line.bytes.length - held);
  settler.add({
    chunk: chunk.chunk,
    line: line.line,
    succeeded: isSuccess(outcome),
    data,
    usage,
    release: () => deps.slots.release(0, held),
  });
  return true;
}

/** A worker told to stop: what is finished is settled, the rest goes to another worker at once. */
async function handBack(deps: Deps, { batch, chunk, job, settler }: Run): Promise<void> {
  await settler.flush();
  if (!takesResults(batch)) return;
  await deps.db
    .updateTable('batch_chunk')
    .set({ handed_back: true })
    .where('batch_id', '=', batch.id)
    .where('chunk', '=', chunk.chunk)
    .execute();
  await deps.queue.giveBack(chunkQueue, job, 'the worker was told to stop');
}
