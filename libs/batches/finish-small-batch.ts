import { sql, type Transaction } from 'kysely';
import { v5 as uuidv5 } from 'uuid';
import type { Database } from '#libs/database/schema.ts';
import type { Logger } from '#libs/kernel/logger.ts';
import type { JobQueue } from '#libs/queue/job-queue.ts';
import type { BatchRow } from './batch-model.ts';
import { finaliseQueue, smallBatchPriority } from './batch-queues.ts';
import { createSlots } from './slots.ts';

const jobNamespace = 'b7a0a1f0-3f0e-5d0b-8a35-5d1f54a8e6c1';
/** Lines of a batch that is finished where its last line was settled: its files take a moment to write. */
const smallLinesMax = 1_000;
// The job is for a worker that is gone meanwhile, or that could not write the files.
const jobDelayMs = 15_000;
/** Batches whose files are written at once: each has a page of them in memory. */
const finishedAtOnce = 8;

const jobIdOf = (batchId: string): string => uuidv5(batchId, jobNamespace);

export const isSmall = ({ total }: Pick<BatchRow, 'total'>): boolean => total <= smallLinesMax;

/**
 * Enqueues the job that ends a batch, in the transaction that appended `batch.finalizing`. `finishesHere`: this process is about
 * to finish it, if it is small; the job comes only later then.
 */
export async function enqueueFinalise(
  { queue, tx, now }: { queue: JobQueue; tx: Transaction<Database>; now: Date },
  batch: BatchRow,
  { finishesHere }: { finishesHere: boolean },
): Promise<void> {
  const small = isSmall(batch) ? { priority: smallBatchPriority } : {};
  const later = finishesHere && isSmall(batch) ? { startAfter: new Date(now.getTime() + jobDelayMs) } : {};
  await queue.enqueue(tx, finaliseQueue, { batch_id: batch.id }, { id: jobIdOf(batch.id), ...small, ...later });
}

/**
 * Leaves nothing of an ended batch behind, in the transaction that ends it: its job, unless that is what ends it, and chunks
 * that are out with a worker that has not noticed yet.
 */
export async function cleanUpEndedBatch(tx: Transaction<Database>, batchId: string): Promise<void> {
  await sql`
    with dropped as (
      delete from pgboss.job
      where name = ${finaliseQueue.name} and id = ${jobIdOf(batchId)}::uuid and state = 'created'
    )
    update batch_chunk set state = 'done' where batch_id = ${batchId} and state <> 'done'`.execute(tx);
}

/**
 * Finishes a batch where its last line was settled; what fails is left to the job. Never rejects. The settle waits for it,
 * and so does its chunk's place: no more are settled than are finished.
 */
export type FinishSmallBatch = (batch: BatchRow, signal: AbortSignal) => Promise<void>;

export function createFinishSmallBatch(deps: {
  finalise: (batch: BatchRow, signal: AbortSignal) => Promise<void>;
  logger: Logger;
}): FinishSmallBatch {
  const room = createSlots({ callsMax: finishedAtOnce, bytesMax: Number.POSITIVE_INFINITY });
  return async (batch, signal) => {
    if (!(await room.acquire(0, { signal }))) return;
    try {
      await deps.finalise(batch, signal);
    } catch (error) {
      if (!signal.aborted) deps.logger.warn({ err: error, batch_id: batch.id }, 'batch is finished later');
    } finally {
      room.release(1, 0);
    }
  };
}
