import { sql } from 'kysely';
import { expect, test } from 'vitest';
import { closeQueue } from '#libs/batches/chunks/batch-queues.ts';
import { decideBatch } from '#libs/batches/batch.ts';
import { createBatches } from '#libs/batches/batches.ts';
import { closeBatch } from '#libs/batches/results/close-batch.ts';
import { enqueueCloseJobs } from '#libs/batches/chunks/housekeeping.ts';
import { createDatabaseClock } from '#libs/database/database-clock.ts';
import { useTestDatabase } from '#test/postgres.ts';
import { claimChunk, createRunningBatch, readBatch, useBatchEngine } from './running-batch.ts';

const database = useTestDatabase();
const engine = useBatchEngine(database);
const metadata = { actor: { type: 'system' as const, id: 'test' } };
const releaseTarget = async (): Promise<void> => {};
const clock = createDatabaseClock();
const limits = { openBatchesMax: 100, queuedLinesMax: 1_000 };

async function closeJobsOf(batchId: string): Promise<number> {
  const { rows } = await sql<{ count: number }>`
    select count(*)::int as count from pgboss.job
    where name = ${closeQueue.name} and state < 'completed' and data ->> 'batch_id' = ${batchId}`.execute(database.db);
  return rows[0]?.count ?? Number.NaN;
}

const close = (id: string) => closeBatch({ ...engine, db: database.db, releaseTarget }, id, 'job');

/** Makes everything that happened to the batch this much older. */
const age = (id: string, by: string) =>
  sql`update batch set created_at = created_at - ${by}::interval, updated_at = updated_at - ${by}::interval,
    expires_at = expires_at - ${by}::interval, cancelling_at = cancelling_at - ${by}::interval
    where id = ${id}`.execute(database.db);

test('a batch has no job for its deadline, and gets one a minute once the deadline has passed', async () => {
  const { db } = database;
  const batches = createBatches({ ...engine, db, expiresAfterMs: 3_600_000, limits, releaseTarget });
  const { batch } = await batches.create(
    {
      workspaceId: 'ws_1',
      keyId: 'key_1',
      route: 'POST /v1/batches',
      idempotencyKey: null,
      retryCount: 0,
      tryMsMax: 600_000,
      requestId: 'req_1',
      fingerprint: 'f',
    },
    metadata,
    {
      inputFileId: 'file-1',
      inputBytes: null,
      endpoint: '/v1/chat/completions',
      completionWindow: '24h',
      metadata: null,
      outputExpiresAfterSeconds: null,
      gatewayOptions: {},
      headers: {},
      target: async () => ({ type: 'none' }),
    },
  );
  expect(await closeJobsOf(batch.id)).toBe(0);
  await enqueueCloseJobs(db, engine.queue, clock);
  expect(await closeJobsOf(batch.id)).toBe(0);
  await age(batch.id, '61 minutes');
  await enqueueCloseJobs(db, engine.queue, clock);
  await enqueueCloseJobs(db, engine.queue, clock);
  // Two if the minute ended between the two checks.
  expect([1, 2]).toContain(await closeJobsOf(batch.id));
  await close(batch.id);
  expect(await readBatch(database, batch.id)).toMatchObject({ status: 'expired' });
});

test('a clock that was set ahead expires nothing, neither by a check nor by the next results', async () => {
  const { db } = database;
  const id = await createRunningBatch(database, engine, { lines: 2 });
  // For a process whose own clock is a day behind, that of the database is a day ahead.
  const dayBefore = () => Date.now() - 24 * 3_600_000;
  const doubting = createDatabaseClock({ ownTime: dayBefore, monotonicMs: () => performance.now() });
  await age(id, '25 hours');
  await enqueueCloseJobs(db, engine.queue, doubting);
  expect(await closeJobsOf(id)).toBe(0);
  const row = await readBatch(database, id);
  const settled = { chunks: [], completed: 1, failed: 0, usage: [], results_root: '' };
  const events = decideBatch(row, { type: 'settle', settled, openChunks: 1 }, new Date());
  expect(events.map(({ type }) => type)).toEqual(['batch.lines_settled']);
  await enqueueCloseJobs(db, engine.queue, clock);
  expect(await closeJobsOf(id)).toBe(1);
  await sql`delete from batch where id = ${id}`.execute(db);
});

// A fail-over to a standby whose clock is two seconds behind: the events of the last two seconds are in the future, so
// `cancelling_at` is the batch's last event and not the clock.
test('a batch that is cancelled just after the clock was set back ends ten minutes later, although a line hangs', async () => {
  const { db } = database;
  const id = await createRunningBatch(database, engine, { lines: 1 });
  await claimChunk(database, engine, id, 0); // its worker hangs
  await sql`update batch set updated_at = now() + interval '2 seconds' where id = ${id}`.execute(db);
  await createBatches({ ...engine, db, expiresAfterMs: 86_400_000, limits, releaseTarget }).cancel(
    'ws_1',
    id,
    metadata,
  );
  await sql`delete from pgboss.job where name = ${closeQueue.name}`.execute(db);
  await age(id, '10 minutes');
  await enqueueCloseJobs(db, engine.queue, clock);
  expect(await closeJobsOf(id)).toBe(0);
  await age(id, '2 seconds');
  await enqueueCloseJobs(db, engine.queue, clock);
  expect(await closeJobsOf(id)).toBe(1);
  await close(id);
  expect(await readBatch(database, id)).toMatchObject({ status: 'finalizing', finalizing_reason: 'cancelled' });
});
