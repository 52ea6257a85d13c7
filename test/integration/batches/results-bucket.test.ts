import { sql } from 'kysely';
import { expect, test } from 'vitest';
import { batchModel } from '#libs/batches/batch/batch-model.ts';
import { deleteOldResults } from '#libs/batches/results/delete-old-results.ts';
import { ensureResultsPartition } from '#libs/batches/results/results-bucket.ts';
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

test('old partitions are dropped with the chunks of their batches, but not those of a day with an unfinished batch', async () => {
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
  const chunks = async (): Promise<string[]> =>
    (await database.db.selectFrom('batch_chunk').select('batch_id').orderBy('batch_id').execute()).map(
      (row) => row.batch_id,
    );
  // One that ended on the same day as the unfinished one, and one of a day without results.
  for (const [ended, created] of [
    ['batch_ended', today],
    ['batch_without_results', new Date('2020-06-01')],
  ] as const) {
    await sql`
      insert into batch select (jsonb_populate_record(batch, jsonb_build_object(
        'id', ${ended}::text, 'status', 'cancelled', 'created_at', ${created}::timestamptz))).*
      from batch where id = ${id}`.execute(database.db);
  }
  for (const batch of [id, 'batch_ended', 'batch_without_results']) {
    await sql`
      insert into batch_chunk (batch_id, chunk, byte_offset, byte_length, range_first_line, first_line, line_count, settled)
      values (${batch}, 0, 0, 1, 1, 1, 1, '\\x80'), (${batch}, 1, 1, 1, 2, 2, 1, '\\x80')`.execute(database.db);
  }
  const deleted = new Map<string, number | undefined>();
  const deleteUntil = (days: number): Promise<string[]> => {
    const times = { days: 1, nowMs: today.getTime() + (days + 1) * 86_400_000 };
    return deleteOldResults(database.db, times, ({ kind, workspaces, unknown }) => {
      deleted.set(kind, workspaces?.get('ws_1') ?? unknown);
      return Promise.resolve();
    });
  };
  expect(await deleteUntil(0)).toEqual(['2020-05-01']);
  expect(deleted.get('batch_chunks')).toBe(2);
  expect(await chunks()).toEqual(['batch_ended', 'batch_ended', id, id]);
  expect(await deleteUntil(10)).toEqual([]);
  expect(deleted.get('batch_chunks')).toBe(0);
  expect(await chunks()).toEqual(['batch_ended', 'batch_ended', id, id]);
  await sql`update batch set status = 'completed'`.execute(database.db);
  await sql`
    insert into batch_result (bucket, batch_id, stripe, first_line, last_line, version, lines, lengths, statuses, digests, data)
    values (${bucket}::date, ${id}, 0, 1, 1, 1, '{1}', '{1}', '{200}', '\\x00', '\\x00')`.execute(database.db);
  expect(await deleteUntil(10)).toEqual([bucket]);
  expect(deleted).toEqual(
    new Map([
      ['batch_results', 1],
      ['batch_chunks', 4],
    ]),
  );
  expect(await chunks()).toEqual([]);
  // A late settle of the same process creates it again instead of failing.
  await ensureResultsPartition(database.db, bucket);
});
