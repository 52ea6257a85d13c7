import { readFile } from 'node:fs/promises';
import path from 'node:path';
import { beforeAll, expect, test } from 'vitest';
import { batchModel } from '#libs/batches/batch/batch-model.ts';
import { migrate } from '#libs/database/migrate.ts';
import { createWorkspaceDatabase } from '#libs/database/workspace-database.ts';
import { runForWorkspace } from '#libs/database/workspace-binding.ts';
import { checkDigests } from '#libs/event-log/check-digests.ts';
import { createEventLog } from '#libs/event-log/event-log.ts';
import { eraseEvents } from '#libs/event-log/erase-events.ts';
import { raiseEpochAfterRestore, startEpoch } from '#libs/event-log/epoch.ts';
import { readStream } from '#libs/event-log/read-events.ts';
import { createLogger } from '#libs/kernel/logging/logger.ts';
import { useTestDatabase } from '#test/postgres.ts';
import { batchCreated, commandOn, createBatches } from './streams.ts';

const database = useTestDatabase();
const script = path.resolve(import.meta.dirname, '../../../ops/postgres/protect-event-log.sql');
const logger = createLogger({ name: 'test', level: 'silent' });

beforeAll(async () => {
  const statements = await readFile(script, 'utf8');
  await database.tamper(statements);
  await database.tamper(statements);
});

test.each([
  'alter table event disable trigger event_is_placed',
  'alter table event disable trigger event_is_insert_only',
  'drop trigger event_is_placed on event',
  'create or replace function place_event() returns trigger language plpgsql as $$ begin return new; end $$',
  'create or replace function event_envelope(of event) returns text language sql as $$ select null $$',
  'create or replace function salted_sha256(salt bytea, value json) returns bytea language sql as $$ select null $$',
  'alter table event rename to other_event',
  'drop table event',
  'drop schema public cascade',
  'set role sluice_log',
  "select setval('event_position', 1)",
  "update event set type = 'x'",
  'grant update on event to current_user; delete from event',
  'truncate event',
])("the application's role may not: %s", async (statement) => {
  await expect(database.pool.query(statement)).rejects.toMatchObject({ code: '42501' });
});

test('commands, requests of a workspace, migrations, epochs and checks work as before', async () => {
  await createBatches(createEventLog(database.db), ['batch_a']);
  const bound = createWorkspaceDatabase(database.pool, () => true);
  const append = () =>
    createEventLog(bound).transact(commandOn('batch_b'), (unit) =>
      unit.append(batchModel, 'batch_b', [batchCreated()]),
    );
  await runForWorkspace('ws_1', append);
  await expect(runForWorkspace('ws_2', append)).rejects.toThrow('row-level security');
  expect(await migrate({ connectionString: database.connectionString, logger })).toEqual([]);
  expect(await readStream(database.db, 'batch_a')).toHaveLength(2);
  expect(await checkDigests(database.db, ['batch'])).toMatchObject({ checked: 3, changed: 0, missing: 0 });
  expect(await raiseEpochAfterRestore(database.db)).toBeNull();
  expect(await startEpoch(database.db, 'org_default')).toEqual({ epoch: 1, isNew: true });
  await createBatches(createEventLog(database.db), ['batch_c']);
  expect((await readStream(database.db, 'batch_c')).map(({ epoch }) => epoch)).toEqual([1, 1]);
});

test('texts can still be erased, and nothing else', async () => {
  await createBatches(createEventLog(database.db), ['batch_erased']);
  const [event] = await readStream(database.db, 'batch_erased');
  if (event === undefined) throw new Error('the event is missing');
  const erase = (data: object) =>
    database.db.transaction().execute((tx) => eraseEvents(tx, [{ ...event, data: { ...event.data, ...data } }]));
  await expect(erase({ endpoint: 'another' })).rejects.toMatchObject({ code: '42501' });
  expect(await erase({ endpoint: '[erased]' })).toMatchObject([
    { data_sha256: expect.any(String), metadata_sha256: null },
  ]);
});
