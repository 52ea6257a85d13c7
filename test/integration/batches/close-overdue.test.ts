import { sql } from 'kysely';
import { expect, test } from 'vitest';
import { decideBatch } from '#libs/batches/batch/batch.ts';
import { createBatches } from '#libs/batches/batch/batches.ts';
import { closeOverdue } from '#libs/batches/chunks/housekeeping.ts';
import { createDatabaseClock } from '#libs/database/database-clock.ts';
import { useTestDatabase } from '#test/postgres.ts';
import { claimChunk, createRunningBatch, follow, loseClaim, readBatch, useBatchEngine } from './running-batch.ts';

const database = useTestDatabase();
const engine = useBatchEngine(database);
const metadata = { actor: { type: 'system' as const, id: 'test' } };
const clock = createDatabaseClock();
const limits = { openBatchesMax: 100, queuedLinesMax: 1_000 };

const close = (by = clock): Promise<number> =>
  closeOverdue({ ...follow(engine), db: database.db, eventLog: engine.eventLog, clock: by });
const batchesOf = (expiresAfterMs: number) =>
  createBatches({ ...engine, ...follow(engine), db: database.db, expiresAfterMs, limits });
const statusOf = async (id: string): Promise<string> => (await readBatch(database, id)).status;

/** Makes everything that happened to the batch this much older. */
const age = (id: string, by: string) =>
  sql`update batch set created_at = created_at - ${by}::interval, updated_at = updated_at - ${by}::interval,
    expires_at = expires_at - ${by}::interval, cancelling_at = cancelling_at - ${by}::interval
    where id = ${id}`.execute(database.db);

test('a batch expires once its deadline has passed', async () => {
  const { batch } = await batchesOf(3_600_000).create(
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
  await close();
  expect(await statusOf(batch.id)).toBe('validating');
  await age(batch.id, '61 minutes');
  await close();
  expect(await statusOf(batch.id)).toBe('expired');
  // No worker claims it any more.
  const turns = database.db.selectFrom('batch_turn').selectAll().where('batch_id', '=', batch.id);
  expect(await turns.execute()).toEqual([]);
});

test('a clock that was set ahead expires nothing, neither by a check nor by the next results', async () => {
  const id = await createRunningBatch(database, engine, { lines: 2 });
  // For a process whose own clock is a day behind, that of the database is a day ahead.
  const dayBefore = () => Date.now() - 24 * 3_600_000;
  const doubting = createDatabaseClock({ ownTime: dayBefore, monotonicMs: () => performance.now() });
  await age(id, '25 hours');
  await close(doubting);
  const row = await readBatch(database, id);
  const settled = { chunks: [], completed: 1, failed: 0, usage: [], results_root: '' };
  const events = decideBatch(row, { type: 'settle', settled, openChunks: 1 }, new Date());
  expect(events.map(({ type }) => type)).toEqual(['batch.lines_settled']);
  expect(row.status).toBe('in_progress');
  await close();
  expect(await statusOf(id)).toBe('finalizing');
});

// A fail-over to a standby whose clock is two seconds behind: the events of the last two seconds are in the future, so
// `cancelling_at` is the batch's last event and not the clock.
test('a batch that is cancelled just after the clock was set back ends ten minutes later, although a line hangs', async () => {
  const id = await createRunningBatch(database, engine, { lines: 1 });
  await claimChunk(database, id, 0); // its worker hangs
  await database.tamper(`
    update event set recorded_at = date_trunc('milliseconds', now() + interval '2 seconds')
    where stream_id = '${id}' and stream_version = (select version from batch where id = '${id}');
    update batch set updated_at = (select max(recorded_at) from event where stream_id = '${id}') where id = '${id}'`);
  await batchesOf(86_400_000).cancel('ws_1', id, metadata);
  await age(id, '10 minutes');
  await close();
  expect(await statusOf(id)).toBe('cancelling');
  await age(id, '2 seconds');
  await close();
  expect(await readBatch(database, id)).toMatchObject({ status: 'finalizing', finalizing_reason: 'cancelled' });
});

test('a cancelled batch ends at once if no line runs, and when the process of its last chunk was given up', async () => {
  const idle = await createRunningBatch(database, engine, { lines: 2 });
  await batchesOf(86_400_000).cancel('ws_1', idle, metadata);
  expect(await statusOf(idle)).toBe('finalizing');

  const running = await createRunningBatch(database, engine, { lines: 4, linesPerChunk: 2 });
  const claim = await claimChunk(database, running, 0);
  await batchesOf(86_400_000).cancel('ws_1', running, metadata);
  await close();
  expect(await statusOf(running)).toBe('cancelling');
  await loseClaim(database, claim);
  await close();
  expect(await statusOf(running)).toBe('finalizing');
});
