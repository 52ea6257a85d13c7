import { sql, type Kysely } from 'kysely';
import { isTransient } from '#libs/database/database-error.ts';
import type { DatabaseClock } from '#libs/database/database-clock.ts';
import type { Database } from '#libs/database/schema.ts';
import type { Part } from '#libs/kernel/lifecycle.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import { sleep } from '#libs/kernel/sleep.ts';
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
export function createHousekeeping(deps: Deps): Part {
  const { db, queue, clock, logger } = deps;
  const stopped = new AbortController();
  let overdue: Promise<void> | undefined;
  let repair: Promise<void> | undefined;

  async function repeat(what: string, everyMs: number, work: () => Promise<unknown>): Promise<void> {
    while (!stopped.signal.aborted) {
      try {
        await work();
      } catch (error) {
        if (isTransient(error)) logger.warn({ err: error }, `${what} is waiting for the database`);
        else logger.error({ err: error }, `${what} failed`);
      }
      await sleep(everyMs, stopped.signal);
    }
  }

  return {
    name: 'batch housekeeping',
    start() {
      overdue ??= repeat('closing of overdue batches', overdueEveryMs, () => enqueueCloseJobs(db, queue, clock));
      repair ??= repeat('repair of lost jobs', repairEveryMs, () => repairExclusively(deps));
    },
    async stop() {
      stopped.abort();
      await Promise.all([overdue, repair]);
    },
  };
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
