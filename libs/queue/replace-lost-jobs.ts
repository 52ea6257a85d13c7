import type { Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import { createBackgroundLoop, type BackgroundLoop } from '#libs/kernel/background-loop.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import type { JobQueue } from './job-queue.ts';
import type { QueueDefinition } from './queue-definition.ts';

// Repairs records whose job no longer exists: the queue was restored from a backup, an operator deleted jobs, or a job
// was tried 10,000 times. The record would otherwise stay unchanged forever.

/**
 * Records of one kind in a state that only their job ends. The job is enqueued in the transaction that begins the
 * state, and each job that continues it in the transaction that completes the previous one, so that the record always
 * has one. All of them have the same key, and their queue keeps one open job of a key.
 */
export type WorkedOn<Payload extends object> = {
  /** The name of such a record in the log. */
  what: string;
  queue: QueueDefinition<Payload>;
  /**
   * Returns such records with an ID above `after`, in the order of their IDs, that last changed before `changedBefore`,
   * an interval ago; and the job that each of them needs.
   */
  findOpen: (
    db: Kysely<Database>,
    page: { changedBefore: string; after: string; max: number },
  ) => Promise<{ id: string; job: Payload }[]>;
};

/** A record that changed more recently is skipped: it still has the job of that transaction. */
const unchangedFor = '1 minute';
/** Records whose jobs are enqueued in one statement. */
const pageMax = 500;

type Deps = { db: Kysely<Database>; queue: JobQueue; logger: Logger };

/**
 * Enqueues a job for each of these records whose job no longer exists or has failed permanently. Returns how many.
 * `changedBefore`: records that changed more recently than this interval ago are skipped. Safe while workers run: the
 * queue ignores a job if the record has one, and the job of a record that has ended meanwhile does nothing.
 */
export async function replaceLostJobs<Payload extends object>(
  { db, queue, logger }: Deps,
  { what, queue: definition, findOpen }: WorkedOn<Payload>,
  changedBefore: string = unchangedFor,
): Promise<number> {
  let replaced = 0;
  for (let after = ''; ;) {
    const open = await findOpen(db, { changedBefore, after, max: pageMax });
    const last = open.at(-1);
    if (last === undefined) return replaced;
    after = last.id;
    const jobs = await queue.enqueueMany(
      db,
      definition,
      open.map(({ job }) => job),
    );
    for (const job of jobs) logger.warn(job as object, `${what} was lost from the queue and enqueued again`);
    replaced += jobs.length;
  }
}

/** Lost jobs are rare. */
const repairEveryMs = 60_000;

/** Replaces lost jobs of one kind from time to time. Every worker runs it. */
export function createLostJobRepair<Payload extends object>(deps: Deps, kind: WorkedOn<Payload>): BackgroundLoop {
  return createBackgroundLoop({
    name: `repair of lost jobs of ${kind.queue.name}`,
    periodMs: repairEveryMs,
    run: () => replaceLostJobs(deps, kind),
    logger: deps.logger,
  });
}
