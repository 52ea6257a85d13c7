import { sql, type Transaction } from 'kysely';
import { v5 as uuidv5 } from 'uuid';
import type { Database } from '#libs/database/schema.ts';
import type { Part } from '#libs/kernel/lifecycle.ts';
import type { Logger } from '#libs/kernel/logger.ts';
import type { JobQueue } from '#libs/queue/job-queue.ts';
import type { BatchRow } from './batch-model.ts';
import { finaliseQueue, smallLane } from './batch-queues.ts';

const jobNamespace = 'b7a0a1f0-3f0e-5d0b-8a35-5d1f54a8e6c1';
/** Lines of a batch that is finished where its last line was settled: its files take a moment to write. */
const smallLinesMax = 1_000;
// The job is for a worker that is gone meanwhile, or that could not write the files.
const jobDelayMs = 15_000;
/** Batches whose files are written at once, and those that wait for it; of more, the job comes. */
const finishedAtOnce = 4;
const waitingMax = 256;

const jobIdOf = (batchId: string): string => uuidv5(batchId, jobNamespace);

export const isSmall = ({ total }: Pick<BatchRow, 'total'>): boolean => total <= smallLinesMax;

/**
 * Enqueues the job that ends a batch, in the transaction that appended `batch.finalizing`. `isTaken`: this process is about
 * to finish it, if it is small; the job comes only later then.
 */
export async function enqueueFinalise(
  { queue, tx, now }: { queue: JobQueue; tx: Transaction<Database>; now: Date },
  batch: BatchRow,
  { isTaken }: { isTaken: boolean },
): Promise<void> {
  const small = isSmall(batch) ? { priority: smallLane } : {};
  const later = isTaken && isSmall(batch) ? { startAfter: new Date(now.getTime() + jobDelayMs) } : {};
  await queue.enqueue(tx, finaliseQueue, { batch_id: batch.id }, { id: jobIdOf(batch.id), ...small, ...later });
}

/** Deletes that job, in the transaction that ends the batch, unless it is what ends it. */
export async function dropFinaliseJob(tx: Transaction<Database>, batchId: string): Promise<void> {
  await sql`
    delete from pgboss.job
    where name = ${finaliseQueue.name} and id = ${jobIdOf(batchId)}::uuid and state = 'created'`.execute(tx);
}

export type SmallFinisher = Part & {
  /** Finishes the batch soon; what fails, or is too much, is left to the job. */
  finish(batchId: string): void;
};

/** Finishes small batches right after their last line was settled: 50 a second do not fit through a queue of jobs. */
export function createSmallFinisher(deps: {
  finalise: (batchId: string, signal: AbortSignal) => Promise<void>;
  logger: Logger;
}): SmallFinisher {
  const stopping = new AbortController();
  const waiting: string[] = [];
  const running = new Set<Promise<void>>();

  async function work(): Promise<void> {
    for (let id = waiting.shift(); id !== undefined && !stopping.signal.aborted; id = waiting.shift()) {
      try {
        await deps.finalise(id, stopping.signal);
      } catch (error) {
        if (!stopping.signal.aborted) deps.logger.warn({ err: error, batch_id: id }, 'batch is finished later');
      }
    }
  }

  return {
    name: 'small batches',
    finish(batchId) {
      if (waiting.length >= waitingMax || stopping.signal.aborted) return;
      waiting.push(batchId);
      if (running.size >= finishedAtOnce) return;
      const worker = work().finally(() => running.delete(worker));
      running.add(worker);
    },
    async stop() {
      stopping.abort();
      await Promise.all(running);
    },
  };
}
