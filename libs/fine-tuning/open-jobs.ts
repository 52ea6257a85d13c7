import { sql, type Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import type { WorkedOn } from '#libs/queue/replace-lost-jobs.ts';
import { firstPoll, firstStart, followQueue, startQueue } from './fine-tuning-queues.ts';

/**
 * Fine-tuning jobs that have not ended. Each has either its start, which finds out what was already sent to the
 * provider, or one chain of regular polls. The polls that a request added do not count, because they end.
 */
export const workedOnFineTuningJobs: WorkedOn = {
  idField: 'fine_tuning_job_id',
  what: 'a fine-tuning job',
  async findLost(tx, { changedBefore, max }) {
    // A poll is completed in the transaction that enqueues the next one, so a job always has one.
    const { rows } = await sql<{ id: string; accepted: boolean }>`
      select id, provider_job_id is not null as accepted from fine_tuning_job
      where finished_at is null and updated_at < (select clock_timestamp()) - ${changedBefore}::interval and not exists (
        select from pgboss.job where state <= 'active' and data ->> 'job_id' = fine_tuning_job.id
          and case when provider_job_id is null then name = ${startQueue.name}
            else name = ${followQueue.name} and data ->> 'left' is null end
      ) limit ${max} for update skip locked`.execute(tx);
    return rows.map(({ id, accepted }) => ({
      id,
      enqueue: (queue) =>
        accepted
          ? queue.enqueue(tx, followQueue, firstPoll(id, null))
          : queue.enqueue(tx, startQueue, firstStart(id, true)),
    }));
  },
};

/**
 * Makes the starts in the queue check whether their request was already sent: after a restore, they or later starts could
 * have sent it in the lost period.
 */
export async function recheckPendingStarts(db: Kysely<Database>): Promise<void> {
  await sql`
    update pgboss.job set data = data || '{"may_be_sent": true}'
    where name = ${startQueue.name} and state <= 'active'`.execute(db);
}

/** Counts the fine-tuning jobs of all workspaces that have not ended. */
export async function countOpenFineTuningJobs(db: Kysely<Database>): Promise<number> {
  const { rows } = await sql<{ jobs: number }>`
    select count(*) as jobs from fine_tuning_job where finished_at is null`.execute(db);
  return rows[0]?.jobs ?? 0;
}
