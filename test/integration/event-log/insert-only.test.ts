import { describe, expect, test } from 'vitest';
import { batchModel } from '#libs/batches/batch/batch-model.ts';
import { createEventLog } from '#libs/event-log/event-log.ts';
import { readStream } from '#libs/event-log/read-events.ts';
import { insertEventSql } from '#test/insert-event.ts';
import { useTestDatabase } from '#test/postgres.ts';
import { batchCreated, commandOn } from './streams.ts';

const database = useTestDatabase();

const changes = [
  "update event set type = 'batch.failed'",
  'update event set data = data',
  "update event set data = '{}'",
  'delete from event',
  'truncate event',
  'truncate event restart identity cascade',
  "insert into event select * from event on conflict (event_id) do update set type = 'x'",
  'merge into event using (select 1) as one on true when matched then delete',
];

describe.each([
  { role: 'the owner of the table', before: '' },
  {
    role: 'an owner who has given himself the rights',
    before: 'grant update, delete, truncate on event to current_user',
  },
])('$role', ({ before }) => {
  test.each(changes)('may not %s', async (change) => {
    const eventLog = createEventLog(database.db);
    const id = `batch_${Math.random()}`;
    await eventLog.transact(commandOn(id), (unit) => unit.append(batchModel, id, [batchCreated()]));
    const before_ = await readStream(database.db, id);
    const client = await database.pool.connect();
    try {
      await client.query('begin');
      if (before) await client.query(before);
      // 40001: the event that the insert would repeat is not of this time.
      await expect(client.query(change)).rejects.toMatchObject({ code: expect.stringMatching('42501|40001') });
    } finally {
      await client.query('rollback');
      client.release();
    }
    expect(await readStream(database.db, id)).toEqual(before_);
  });
});

test('a version that is there cannot be written twice', async () => {
  await createEventLog(database.db).transact(commandOn('batch_twice'), (unit) =>
    unit.append(batchModel, 'batch_twice', [batchCreated()]),
  );
  await expect(database.pool.query(insertEventSql({ stream_id: "'batch_twice'" }))).rejects.toMatchObject({
    code: '23505',
  });
});

describe('an insert', () => {
  test('chooses neither its place in the log nor its hashes', async () => {
    const { rows } = await database.pool.query(
      `insert into event (position, epoch, transaction_id, event_id, workspace_id, stream_id, stream_version, type,
         schema_version, data, metadata, recorded_at, data_salt, metadata_salt, sha256, bytes)
       values (-5, 7, '3', gen_random_uuid(), 'ws_1', 'batch_placed', 1, 'batch.failed', 1, '{"a":1}', '{}',
         date_trunc('milliseconds', clock_timestamp()), '', '', '\\x00', 0)
       returning *, transaction_id = pg_current_xact_id() as "isOwnTransaction",
         sha256 = sha256(convert_to(event_envelope(event), 'UTF8')) as "isHashed"`,
    );
    expect(rows[0]).toMatchObject({ epoch: 0, isOwnTransaction: true, isHashed: true, bytes: 9 });
    expect(rows[0].position).toBeGreaterThan(0);
    for (const salt of [rows[0].data_salt, rows[0].metadata_salt]) expect(salt).toHaveLength(16);
    expect(rows[0].data_salt).not.toEqual(rows[0].metadata_salt);
  });

  test.each(["clock_timestamp() - interval '1 minute'", "clock_timestamp() + interval '1 minute'"])(
    'is refused at %s',
    async (recorded_at) => {
      await expect(
        database.pool.query(insertEventSql({ stream_id: "'batch_past'", recorded_at })),
      ).rejects.toMatchObject({ code: '40001' });
    },
  );

  test('continues a stream whose last event is later than the clock, at the same time', async () => {
    const later = "clock_timestamp() + interval '1 hour'";
    const first = insertEventSql({ stream_id: "'batch_later'" });
    await database.pool.query(first);
    await database.tamper(`update event set recorded_at = ${later} where stream_id = 'batch_later'`);
    const recorded_at = "(select recorded_at from event where stream_id = 'batch_later')";
    const second = insertEventSql({ stream_id: "'batch_later'", stream_version: '2', recorded_at });
    await database.pool.query(second);
    const third = insertEventSql({ stream_id: "'batch_later'", stream_version: '3', recorded_at: later });
    await expect(database.pool.query(third)).rejects.toMatchObject({
      code: '40001',
    });
  });
});
