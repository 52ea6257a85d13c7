import { beforeEach, afterEach, expect, test } from 'vitest';
import { batchModel } from '#libs/batches/batch/batch-model.ts';
import { activitySubscriber } from '#libs/activity/activity-subscriber.ts';
import { findLostEvents } from '#libs/activity/find-lost-events.ts';
import { checkDigests } from '#libs/event-log/check-digests.ts';
import { createEventLog } from '#libs/event-log/event-log.ts';
import { logStart, readClosed } from '#libs/event-log/read-events.ts';
import { eventually } from '#test/eventually.ts';
import { createTestDatabase, type TestDatabase } from '#test/postgres.ts';
import { batchCreated, batchValidated, chunkRedelivered, commandOn } from './streams.ts';

let database: TestDatabase;

/** Three streams with four events each, in three transactions per stream, and their records in the audit log. */
beforeEach(async () => {
  database = await createTestDatabase();
  const eventLog = createEventLog(database.db);
  for (const id of ['batch_a', 'batch_b', 'batch_c']) {
    for (const events of [[batchCreated(), batchValidated(3)], [chunkRedelivered(1)], [chunkRedelivered(2)]]) {
      await eventLog.transact(commandOn(id), (unit) => unit.append(batchModel, id, events));
    }
  }
  const events = await eventually(
    () => readClosed(database.db, logStart, 100),
    (found) => found.length === 12,
  );
  await database.db.transaction().execute((tx) => activitySubscriber.apply(tx, events));
});

afterEach(() => database.drop());

const check = () => checkDigests(database.db, ['batch']);
const b2 = "where stream_id = 'batch_b' and stream_version = 2";

test('an untouched log has no findings', async () => {
  expect(await check()).toEqual({ checked: 12, changed: 0, missing: 0, findings: [] });
});

test.each([
  ['data', `set data = '{"line_count":4}'`],
  ['the text of data', `set data = (data::text || ' ')::json`],
  ['a type', "set type = 'batch.failed'"],
  ['a time', "set recorded_at = recorded_at - interval '1 day'"],
  ['a microsecond', "set recorded_at = recorded_at + interval '1 microsecond'"],
  ['an actor', `set metadata = '{"actor":{"type":"system","id":"another"}}'`],
  ['a workspace', "set workspace_id = 'ws_2'"],
  ['an ID', 'set event_id = gen_random_uuid()'],
  ['a schema version', 'set schema_version = 2'],
  ['a salt', 'set data_salt = metadata_salt'],
  ['the other salt', 'set metadata_salt = data_salt'],
  ['a hash', "set sha256 = sha256('{}')"],
  ['a size', 'set bytes = 1'],
])('a changed event is found: %s', async (_what, change) => {
  await database.tamper(`update event ${change} ${b2}`);
  const { changed, findings } = await check();
  expect(changed).toBe(1);
  expect(findings[0]?.message).toBe('the event was changed after it was recorded (batch_b version 2, position 6)');
});

test.each([
  ['a position', 'set position = 100'],
  ['a transaction', "set transaction_id = '1'"],
  ['an epoch', 'set epoch = 1'],
  ['a row that was written again without a change', 'set type = type'],
])('a moved event is found: %s', async (_what, change) => {
  await database.tamper(`update event ${change} ${b2}`);
  const { changed, findings } = await check();
  expect(changed).toBe(1);
  expect(findings[0]?.message).toMatch(/^the event was moved in the log.* \(batch_b version 2, position \d+\)$/);
});

test('the first of several changed events is named first', async () => {
  await database.tamper(`update event set data = '{}' where stream_version = 3`);
  const { changed, findings } = await check();
  expect(changed).toBe(3);
  expect(findings[0]?.message).toContain('changed after it was recorded (batch_a version 3, position 3)');
});

test('hashes that were removed are found', async () => {
  await database.tamper(`
    alter table event drop constraint event_check, alter sha256 drop not null;
    update event set data = '{}', data_salt = null, sha256 = null ${b2}`);
  expect((await check()).findings[0]?.message).toContain('changed after it was recorded (batch_b version 2');
});

test('an event that was removed from the middle of a stream is found', async () => {
  await database.tamper(`delete from event ${b2}`);
  const { changed, missing, findings } = await check();
  expect([changed, missing]).toEqual([0, 1]);
  expect(findings[0]?.subject).toBe('batch_b');
  expect(findings[0]?.message).toMatch(/^1 event is missing before event .* \(batch_b version 3, position 7\)$/);
});

test.each([
  ['the end of a stream', 'stream_version > 2 and', 2],
  ['a stream', '', 4],
])('%s that was removed is found', async (_what, condition, count) => {
  await database.tamper(`delete from event where ${condition} stream_id = 'batch_b'`);
  const { changed, missing, findings } = await check();
  expect([changed, missing]).toEqual([0, count]);
  expect(findings[0]).toEqual({
    subject: 'batch_b',
    message: `${count} events are missing at the end, according to the table batch`,
  });
});

test('a stream that was removed with its row is found in the audit log', async () => {
  expect(await findLostEvents(database.db, 20)).toEqual({ lost: 0, streams: [] });
  await database.tamper(`delete from event where stream_id = 'batch_b'; delete from batch where id = 'batch_b'`);
  expect(await findLostEvents(database.db, 20)).toMatchObject({ lost: 4, streams: [{ streamId: 'batch_b', lost: 4 }] });
});

test.each(['stream_version', 'position'])('two events whose %s was swapped are found', async (column) => {
  await database.tamper(`
    alter table event drop constraint event_stream_id_stream_version_key, drop constraint event_pkey;
    update event set ${column} = other.${column} from event as other
    where event.stream_id = 'batch_b' and other.stream_id = 'batch_b'
      and (event.stream_version, other.stream_version) in ((3, 4), (4, 3))`);
  const { changed, findings } = await check();
  expect(changed).toBe(2);
  expect(findings[0]?.message).toMatch(/\(batch_b version [34], position [78]\)$/);
});
