import { sql, type Transaction } from 'kysely';
import { v5 as uuidv5 } from 'uuid';
import type { Database } from '#libs/database/schema.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import type { JobQueue } from '#libs/queue/job-queue.ts';
import type { BatchRow } from '../batch-model.ts';
import { finaliseQueue, smallBatchPriority } from '../chunks/batch-queues.ts';
import { createPermitPool } from '../lines/permit-pool.ts';

const jobNamespace = 'b7a0a1f0-3f0e-5d0b-8a35-5d1f54a8e6c1';
/**
 * The worker that settled the last line of a batch with at most this many lines also finishes it, because writing its
 * files is quick.
 */
const smallLinesMax = 1_000;
// The job is needed only if that worker has died, or could not write the files.
const jobDelayMs = 15_000;
/** Batches finished at the same time. Each holds a page of its files in memory. */
const finishedAtOnce = 8;

const jobIdOf = (batchId: string): string => uuidv5(batchId, jobNamespace);

export const isSmall = ({ total }: Pick<BatchRow, 'total'>): boolean => total <= smallLinesMax;

/**
 * Enqueues the job that finishes a batch, in the transaction that appended `batch.finalizing`. `finishesHere`: this process
 * is about to finish the batch itself if it is small, so the job is delayed.
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
 * Cleans up in the transaction that ends a batch: deletes its finalise job, unless that job is running, and marks chunks as
 * done that a worker is still holding.
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
 * Finishes a small batch in the worker that settled its last line. Never rejects: if it fails, the job does it. The settle
 * waits for it and its chunk keeps its slot, so that batches are not settled faster than they are finished.
 */
export type FinishSmallBatch = (batch: BatchRow, signal: AbortSignal) => Promise<void>;

export function createFinishSmallBatch(deps: {
  finalise: (batch: BatchRow, signal: AbortSignal) => Promise<void>;
  logger: Logger;
}): FinishSmallBatch {
  const permits = createPermitPool({ callsMax: finishedAtOnce, bytesMax: Number.POSITIVE_INFINITY });
  return async (batch, signal) => {
    if (!(await permits.acquire(0, { signal }))) return;
    try {
      await deps.finalise(batch, signal);
    } catch (error) {
      if (!signal.aborted) deps.logger.warn({ err: error, batch_id: batch.id }, 'batch will be finished by its job');
    } finally {
      permits.release(1, 0);
    }
  };
}
