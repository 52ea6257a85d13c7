import { sql } from 'kysely';
import { expect, test } from 'vitest';
import { batchModel } from '#libs/batches/batch-model.ts';
import { dropOldResults, ensureResultsPartition } from '#libs/batches/results-bucket.ts';
import { createEventLog } from '#libs/event-log/event-log.ts';
import { useTestDatabase } from '#test/postgres.ts';

const database = useTestDatabase();
const metadata = { actor: { type: 'system' as const, id: 'test' } };

test('a partition is created once, however many processes need it at the same time', async () => {
  await Promise.all(Array.from({ length: 8 }, () => ensureResultsPartition(database.db, '2031-01-01')));
  const { rows } = await sql<{ storage: string }>`
    select attstorage as storage from pg_attribute
    where attrelid = 'batch_result_20310101'::regclass and attname = 'data'`.execute(database.db);
  expect(rows).toEqual([{ storage: 'e' }]);
});

test('old partitions are dropped, but not one of a day with an unfinished batch', async () => {
  const today = new Date();
  const bucket = today.toISOString().slice(0, 10);
  await ensureResultsPartition(database.db, '2020-05-01');
  await ensureResultsPartition(database.db, bucket);
  const id = 'batch_unfinished';
  await createEventLog(database.db).transact({ workspaceId: 'ws_1', streams: [id], metadata }, async (unit) => {
    await unit.append(batchModel, id, [
      {
        type: 'batch.created',
        data: {
          input_file_id: 'file-1',
          endpoint: '/v1/chat/completions',
          completion_window: '24h',
          metadata: null,
          expires_at: new Date(today.getTime() + 86_400_000).toISOString(),
          output_expires_after: null,
          target: { type: 'none' },
          gateway_options: {},
          headers: {},
        },
      },
    ]);
  });
  const farAhead = new Date(today.getTime() + 10 * 86_400_000);
  expect(await dropOldResults(database.db, farAhead)).toEqual(['2020-05-01']);
  await sql`update batch set status = 'completed'`.execute(database.db);
  expect(await dropOldResults(database.db, farAhead)).toEqual([bucket]);
  // A late settle of the same process creates it again instead of failing.
  await ensureResultsPartition(database.db, bucket);
});
