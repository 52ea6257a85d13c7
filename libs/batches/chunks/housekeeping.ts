import { sql, type Kysely } from 'kysely';
import type { DatabaseClock } from '#libs/database/database-clock.ts';
import type { Database } from '#libs/database/schema.ts';
import { createBackgroundLoop, type BackgroundLoop } from '#libs/kernel/background-loop.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import type { JobQueue } from '#libs/queue/job-queue.ts';
import { replaceLostJobs, type WorkedOn } from '#libs/queue/replace-lost-jobs.ts';
import { enqueueCloseJobs } from './enqueue-close-jobs.ts';
import { resetLostChunks, workedOnBatches } from './lost-jobs.ts';

// The maximum delay of a deadline, or of the ten minutes after a cancel.
const overdueEveryMs = 1_000;
// Lost jobs are rare.
const repairEveryMs = 60_000;

type Deps = {
  db: Kysely<Database>;
  queue: JobQueue;
  clock: Pick<DatabaseClock, 'set' | 'jumpedAhead'>;
  /** The work other than batches that gets a new job when its own is lost. */
  otherWork: readonly WorkedOn[];
  logger: Logger;
};

/**
 * Closes overdue batches, and repairs chunks, batches and other work that have lost their job. Runs in separate loops,
 * so that no chunk waits for it, however long it takes. Every worker runs it.
 */
export function createHousekeeping(deps: Deps): BackgroundLoop[] {
  const { db, queue, clock, logger } = deps;
  const close = (): Promise<unknown> => enqueueCloseJobs(db, queue, clock);
  const repair = (): Promise<void> => repairExclusively(deps);
  return [
    createBackgroundLoop({ name: 'closing of overdue batches', periodMs: overdueEveryMs, run: close, logger }),
    createBackgroundLoop({ name: 'repair of lost jobs', periodMs: repairEveryMs, run: repair, logger }),
  ];
}

/** Only one worker repairs at a time. The session that holds the lock does nothing else. */
async function repairExclusively({ db, queue, otherWork, logger }: Deps): Promise<void> {
  await db.connection().execute(async (session) => {
    const { rows } = await sql<{ held: boolean }>`
      select pg_try_advisory_lock(hashtextextended('batch housekeeping', 0)) as held`.execute(session);
    if (rows[0]?.held !== true) return;
    try {
      await resetLostChunks(session, queue, logger);
      await replaceLostJobs({ db: session, queue, logger }, [...workedOnBatches, ...otherWork]);
    } finally {
      await sql`select pg_advisory_unlock(hashtextextended('batch housekeeping', 0))`.execute(session);
    }
  });
}
