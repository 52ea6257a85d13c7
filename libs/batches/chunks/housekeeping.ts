import { sql, type Kysely } from 'kysely';
import { readClock, type DatabaseClock } from '#libs/database/database-clock.ts';
import type { Database } from '#libs/database/schema.ts';
import { createBackgroundLoop, type BackgroundLoop } from '#libs/kernel/background-loop.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import type { JobQueue } from '#libs/queue/job-queue.ts';
import { replaceLostJobs, type WorkedOn } from '#libs/queue/replace-lost-jobs.ts';
import { resetLostChunks, workedOnBatches } from './lost-jobs.ts';
import { v5 as uuidv5 } from 'uuid';
import { cancelGraceMs } from '../batch.ts';
import { closeQueue } from './batch-queues.ts';

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

const jobNamespace = '5ab04a4b-6d8a-5a7c-9d52-8f0c6d1f3a6e';
const minuteMs = 60_000;
/** The maximum of batches of each kind found in one check. The next check follows soon. */
const foundMax = 1_000;

/**
 * Enqueues a close job for each batch whose deadline has passed, or whose grace period after a cancel is over, by the
 * database's clock. Indexes find them. (A delayed job for each deadline would slow down every claim, long after its batch
 * has ended.) A batch is found again until it is closed, so the minute is part of the job ID: it gets at most one job per
 * minute. Does nothing while the database's clock could be wrong. Returns how many batches were found.
 * @testOnly
 */
export async function enqueueCloseJobs(
  db: Kysely<Database>,
  queue: JobQueue,
  clock: Pick<DatabaseClock, 'set' | 'jumpedAhead'>,
): Promise<number> {
  await readClock(db, clock);
  if (clock.jumpedAhead()) return 0;
  return await db.transaction().execute(async (tx) => {
    // Without the subquery, the clock would be read for each row and no index could be used.
    const { rows } = await sql<{ id: string; now: Date }>`
      with clock as materialized (select clock_timestamp() as now)
      (select id, (select now from clock) as now from batch
       where status in ('validating', 'in_progress', 'cancelling') and expires_at <= (select now from clock)
         and (status <> 'cancelling' or in_progress_at is null)
       order by expires_at limit ${foundMax})
      union all
      (select id, (select now from clock) from batch
       where status = 'cancelling' and cancelling_at <= (select now from clock) - ${`${cancelGraceMs} ms`}::interval
       order by cancelling_at limit ${foundMax})`.execute(tx);
    const jobs = rows.map(({ id, now }) => ({
      id: uuidv5(`${id}/${Math.floor(now.getTime() / minuteMs)}`, jobNamespace),
      payload: { batch_id: id },
    }));
    if (jobs.length > 0) await queue.enqueueMany(tx, closeQueue, jobs);
    return jobs.length;
  });
}
