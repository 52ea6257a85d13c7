import { sql, type Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import type { WorkedOn } from '#libs/queue/replace-lost-jobs.ts';
import {
  firstPoll,
  followQueue,
  repeatedStart,
  startQueue,
  type FollowPayload,
  type StartPayload,
} from './fine-tuning-queues.ts';

const isOpen = sql`finished_at is null`;

const findOpen = async (
  db: Kysely<Database>,
  where: ReturnType<typeof sql>,
  { changedBefore, after, max }: Parameters<WorkedOn<object>['findOpen']>[1],
): Promise<string[]> => {
  const { rows } = await sql<{ id: string }>`
    select id from fine_tuning_job
    where ${isOpen} and ${where} and updated_at < (select clock_timestamp()) - ${changedBefore}::interval
      and id > ${after}
    order by id limit ${max}`.execute(db);
  return rows.map(({ id }) => id);
};

/** Fine-tuning jobs that no provider has accepted. The start of such a job finds out what was already sent. */
export const jobsToStart: WorkedOn<StartPayload> = {
  what: 'the start of a fine-tuning job',
  queue: startQueue,
  findOpen: async (db, page) =>
    (await findOpen(db, sql`provider_job_id is null`, page)).map((id) => ({ id, job: repeatedStart(id) })),
};

/** Fine-tuning jobs that a provider has accepted. Each has one chain of regular polls. */
export const jobsToFollow: WorkedOn<FollowPayload> = {
  what: 'the polls of a fine-tuning job',
  queue: followQueue,
  findOpen: async (db, page) =>
    (await findOpen(db, sql`provider_job_id is not null`, page)).map((id) => ({ id, job: firstPoll(id, null) })),
};

/** Counts the fine-tuning jobs of all workspaces that have not ended. */
export async function countOpenFineTuningJobs(db: Kysely<Database>): Promise<number> {
  const { rows } = await sql<{ jobs: number }>`
    select count(*) as jobs from fine_tuning_job where ${isOpen}`.execute(db);
  return rows[0]?.jobs ?? 0;
}
