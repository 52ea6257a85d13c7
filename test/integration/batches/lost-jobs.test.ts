import { sql } from 'kysely';
import { expect, test } from 'vitest';
import { validateQueue } from '#libs/batches/chunks/batch-queues.ts';
import { workedOnBatches } from '#libs/batches/chunks/lost-jobs.ts';
import { replaceLostJobs } from '#libs/queue/replace-lost-jobs.ts';
import { useTestDatabase } from '#test/postgres.ts';
import { silent, useBatchEngine } from './running-batch.ts';

// One session, so that its statistics cover everything that was read.
const database = useTestDatabase({ max: 1 });
const engine = useBatchEngine(database);
const replaceLost = () => replaceLostJobs({ db: database.db, queue: engine.queue, logger: silent }, workedOnBatches);

/** Batches that last changed this long ago, with ids that begin with `prefix`. */
async function insertBatches(prefix: string, count: number, status: string, ago: string): Promise<void> {
  await sql`
    insert into batch (id, workspace_id, version, updated_at, endpoint, completion_window, input_file_id, target,
      gateway_options, headers, status, chunk_count, total, completed, failed, usage, created_at, expires_at)
    select ${prefix}::text || n, 'ws_1', 1, now() - ${ago}::interval, '/v1/chat/completions', '24h', 'file', '{}', '{}',
      '{}', ${status}, 0, 0, 0, 0, '{}', now() - ${ago}::interval, now() + interval '1 day'
    from generate_series(1, ${count}::int) as n`.execute(database.db);
}

async function insertJobs(prefix: string, count: number, state: string): Promise<void> {
  await sql`
    insert into pgboss.job (id, name, data, state, start_after)
    select gen_random_uuid(), ${validateQueue.name}, jsonb_build_object('batch_id', ${prefix}::text || n),
      ${state}::pgboss.job_state, now() from generate_series(1, ${count}::int) as n`.execute(database.db);
}

async function jobsRead(): Promise<number> {
  await sql`select pg_stat_force_next_flush()`.execute(database.db);
  await sql`select pg_stat_clear_snapshot()`.execute(database.db);
  const { rows } = await sql<{ read: number }>`
    select sum(seq_tup_read + coalesce(idx_tup_fetch, 0))::int8 as read from pg_stat_user_tables
    where schemaname = 'pgboss' and relname like 'job%'`.execute(database.db);
  return rows[0]?.read ?? Number.NaN;
}

test('each batch and each job is read once, even with statistics from a quiet hour', async () => {
  const { db } = database;
  await insertBatches('done-', 4_000, 'completed', '1 hour');
  await insertJobs('done-', 4_000, 'completed');
  await sql`vacuum analyze batch`.execute(db);
  await sql`vacuum analyze pgboss.job`.execute(db);
  await insertBatches('new-', 1_000, 'validating', '1 hour');
  await insertJobs('new-', 1_000, 'created');
  const before = await jobsRead();
  expect(await replaceLost()).toBe(0);
  expect((await jobsRead()) - before).toBeLessThan(20_000);
});

test('a batch without a job gets a new one, unless it has only just changed', async () => {
  await insertBatches('old-', 1_200, 'validating', '2 minutes');
  await insertBatches('fresh-', 1, 'validating', '1 second');
  expect(await replaceLost()).toBe(1_200);
  expect(await replaceLost()).toBe(0);
});
