import { sql, type Kysely } from 'kysely';
import { v5 as uuidv5 } from 'uuid';
import type { Database } from '#libs/database/schema.ts';
import type { JobQueue } from '#libs/queue/job-queue.ts';
import { cancelGraceMs } from './batch.ts';
import { closeQueue } from './batch-queues.ts';

const jobNamespace = '5ab04a4b-6d8a-5a7c-9d52-8f0c6d1f3a6e';
const minuteMs = 60_000;
/** Batches of each kind that one look finds; the next one comes soon. */
const foundMax = 1_000;

/**
 * Enqueues a close job for each batch whose deadline has passed, or that was cancelled so long ago that running lines
 * are not waited for any more, by the clock of the database. Indexes find them. (A job that waited in the queue for each
 * deadline stood in the way of every claim, long after its batch had ended.) Until a batch is closed, it is found again
 * and again: the minute is part of the job's id, so that it has one job a minute at most. Returns how many were found.
 */
export async function enqueueCloseJobs(db: Kysely<Database>, queue: JobQueue): Promise<number> {
  return await db.transaction().execute(async (tx) => {
    // Without a subquery the clock would be read for each row, and no index could be used.
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

const droppedMax = 5_000;

/**
 * Deletes the jobs that earlier releases left in the queue for the deadline of each batch, where the batch has ended.
 * (Those of batches that have not are left, for a worker of such a release.) Returns how many.
 */
export async function deleteOldCloseJobs(db: Kysely<Database>): Promise<number> {
  let dropped = 0;
  for (;;) {
    const { numAffectedRows = 0n } = await sql`
      delete from pgboss.job where name = ${closeQueue.name} and id in (
        select job.id from pgboss.job join batch on batch.id = job.data ->> 'batch_id'
        where job.name = ${closeQueue.name} and job.state = 'created' and job.start_after > now()
          and batch.status in ('completed', 'failed', 'cancelled', 'expired')
        limit ${droppedMax} for update of job skip locked
      )`.execute(db);
    dropped += Number(numAffectedRows);
    if (numAffectedRows < droppedMax) return dropped;
  }
}
