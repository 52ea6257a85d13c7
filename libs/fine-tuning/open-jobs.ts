import { sql, type Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import type { WorkedOn } from '#libs/queue/replace-lost-jobs.ts';
import { firstPoll, firstStart, followQueue, startQueue } from './fine-tuning-queues.ts';

/**
 * Fine-tuning jobs that have not ended: each has the start, which finds again what was already sent to the provider, or one
 * chain of regular polls. The polls that a request added do not count: they end.
 */
export const workedOnFineTuningJobs: WorkedOn = {
  idField: 'fine_tuning_job_id',
  what: 'a fine-tuning job',
  async findLost(tx, { changedBefore, max }) {
    // A poll is completed in the transaction that enqueues the next, so between two of them none is missing.
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

/** Lets the starts in the queue look for what they are to send, because they, or later ones, may have sent it in a time that is lost. */
export async function doubtStarts(db: Kysely<Database>): Promise<void> {
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
