import { describe, expect, test } from 'vitest';
import { batchModel } from '#libs/batches/batch/batch-model.ts';
import { createEventLog } from '#libs/event-log/event-log.ts';
import { readStream } from '#libs/event-log/read-events.ts';
import { useTestDatabase } from '#test/postgres.ts';
import { batchCreated, commandOn } from './streams.ts';

const database = useTestDatabase();

const changes = [
  "update event set type = 'batch.failed'",
  "update event set data = data where stream_id = 'nothing'",
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
      await expect(client.query(change.replace('select * from event', overriding))).rejects.toMatchObject({
        code: '42501',
      });
    } finally {
      await client.query('rollback');
      client.release();
    }
    expect(await readStream(database.db, id)).toEqual(before_);
  });
});

// `position` is generated always; without this the insert would fail for that reason.
const overriding = 'overriding system value select * from event';

test('a version that is there cannot be written twice', async () => {
  await createEventLog(database.db).transact(commandOn('batch_twice'), (unit) =>
    unit.append(batchModel, 'batch_twice', [batchCreated()]),
  );
  await expect(
    database.pool.query(
      `insert into event (event_id, workspace_id, stream_id, stream_version, type, schema_version, data, metadata, recorded_at,
         canonical, sha256)
       select gen_random_uuid(), workspace_id, stream_id, stream_version, type, schema_version, data, metadata, recorded_at,
         canonical, sha256
       from event where stream_id = 'batch_twice'`,
    ),
  ).rejects.toMatchObject({ code: '23505' });
});
