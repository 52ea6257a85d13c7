import { sql, type Kysely } from 'kysely';
import { v5 as uuidv5 } from 'uuid';
import { readClock, type DatabaseClock } from '#libs/database/database-clock.ts';
import type { Database } from '#libs/database/schema.ts';
import type { JobQueue } from '#libs/queue/job-queue.ts';
import { cancelGraceMs } from '../batch.ts';
import { closeQueue } from './batch-queues.ts';

const jobNamespace = '5ab04a4b-6d8a-5a7c-9d52-8f0c6d1f3a6e';
const minuteMs = 60_000;
/** The maximum of batches of each kind found in one check. The next check follows soon. */
const foundMax = 1_000;

/**
 * Enqueues a close job for each batch whose deadline has passed, or whose grace period after a cancel is over, by the
 * database's clock. Indexes find them. (A delayed job for each deadline would slow down every claim, long after its batch
 * has ended.) A batch is found again until it is closed, so the minute is part of the job id: it gets at most one job a
 * minute. Does nothing while the database's clock may be wrong. Returns how many batches were found.
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
