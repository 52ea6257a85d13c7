import { sql, type Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import type { JobQueue } from '#libs/queue/job-queue.ts';
import { firstPoll, followQueue, startQueue } from './fine-tuning-queues.ts';

const replacedMax = 500;

/**
 * Enqueues a job for fine-tuning jobs that have not ended and whose queue job no longer exists: the start, which finds again
 * what was already sent to the provider, or the regular polls. Returns how many. Call it while no worker runs: between two
 * polls of a running one there would be two chains of them.
 */
export async function replaceLostFineTuningJobs(db: Kysely<Database>, queue: JobQueue): Promise<number> {
  let replaced = 0;
  let after: string | undefined = '';
  while (after !== undefined) {
    const lost = await db.transaction().execute((tx) => replacePage(tx, queue, after ?? ''));
    replaced += lost.length;
    after = lost.length < replacedMax ? undefined : lost.at(-1)?.id;
  }
  return replaced;
}

type LostJob = { id: string; accepted: boolean };

async function replacePage(tx: Kysely<Database>, queue: JobQueue, after: string): Promise<LostJob[]> {
  const { rows: lost } = await sql<LostJob>`
    select id, provider_job_id is not null as accepted from fine_tuning_job
    where id > ${after} and finished_at is null and not exists (
      select from pgboss.job where state <= 'active' and data ->> 'job_id' = fine_tuning_job.id
        and case when provider_job_id is null then name = ${startQueue.name}
          else name = ${followQueue.name} and data ->> 'left' is null end
    ) order by id limit ${replacedMax}`.execute(tx);
  for (const { id, accepted } of lost) {
    if (accepted) await queue.enqueue(tx, followQueue, firstPoll(id, null));
    else await queue.enqueue(tx, startQueue, { job_id: id, attempt: 0 });
  }
  return lost;
}

/** Counts the fine-tuning jobs of all workspaces that have not ended. */
export async function countOpenFineTuningJobs(db: Kysely<Database>): Promise<number> {
  const { rows } = await sql<{ jobs: number }>`
    select count(*) as jobs from fine_tuning_job where finished_at is null`.execute(db);
  return rows[0]?.jobs ?? 0;
}
