import { sql, type Kysely, type Transaction } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import { createBackgroundLoop, type BackgroundLoop } from '#libs/kernel/background-loop.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import type { JobQueue } from './job-queue.ts';

// Repairs records whose job no longer exists: the queue was restored from a backup, an operator deleted jobs, or a job
// was tried 10,000 times. The record would otherwise stay unchanged forever.

/**
 * Records of one kind in a state that only their job ends. The job is enqueued in the transaction that begins the
 * state, and each job that continues it in the transaction that completes the previous one, so that the record always
 * has one.
 */
export type WorkedOn = {
  /** The field for the ID of such a record in the log. */
  idField: string;
  /** The name of such a record in the log. */
  what: string;
  /** Locks and returns such records without a job (at most `max`) that last changed before `changedBefore`, an interval ago. */
  findLost: (tx: Transaction<Database>, limits: { changedBefore: string; max: number }) => Promise<LostJob[]>;
};

export type LostJob = { id: string; enqueue: (queue: JobQueue) => Promise<void> };

/** A record that changed more recently is skipped: it still has the job of that transaction. */
const unchangedFor = '1 minute';
/** Records that get a new job in one transaction. */
const replacedMax = 500;

/**
 * Enqueues a new job for each of these records whose job no longer exists or has failed permanently. Returns how many.
 * `changedBefore`: records that changed more recently than this interval ago are skipped. Safe while workers run.
 */
export async function replaceLostJobs(
  deps: { db: Kysely<Database>; queue: JobQueue; logger: Logger },
  kinds: readonly WorkedOn[],
  changedBefore: string = unchangedFor,
): Promise<number> {
  let replaced = 0;
  for (const kind of kinds) {
    let found: number;
    do {
      found = await deps.db.transaction().execute((tx) => replacePage(tx, deps, kind, changedBefore));
      replaced += found;
    } while (found === replacedMax);
  }
  return replaced;
}

async function replacePage(
  tx: Transaction<Database>,
  { queue, logger }: { queue: JobQueue; logger: Logger },
  { findLost, idField, what }: WorkedOn,
  changedBefore: string,
): Promise<number> {
  // Records and jobs are created and deleted by the ten thousand, and the planner's statistics are out of date. It
  // chose a nested loop that took 30 s. Without nested loops it reads both tables once.
  await sql`set local enable_nestloop = off`.execute(tx);
  await sql`set local statement_timeout = '10s'`.execute(tx);
  const lost = await findLost(tx, { changedBefore, max: replacedMax });
  await sql`set local enable_nestloop = on`.execute(tx);
  for (const { id, enqueue } of lost) {
    await enqueue(queue);
    logger.warn({ [idField]: id }, `${what} lost its job and got a new one`);
  }
  return lost.length;
}

/** Lost jobs are rare. */
const repairEveryMs = 60_000;

/** Replaces lost jobs from time to time. Every worker runs it; rows that one repairs are skipped by the others. */
export function createLostJobRepair(deps: {
  db: Kysely<Database>;
  queue: JobQueue;
  work: readonly WorkedOn[];
  logger: Logger;
}): BackgroundLoop {
  const run = (): Promise<number> => replaceLostJobs(deps, deps.work);
  return createBackgroundLoop({ name: 'repair of lost jobs', periodMs: repairEveryMs, run, logger: deps.logger });
}
