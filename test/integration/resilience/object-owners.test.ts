import { sql } from 'kysely';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { createObjectOwners, sweepStoredObjects } from '#libs/calls/protect/stored-objects/object-owners.ts';
import { createTestDatabase, type TestDatabase } from '#test/postgres.ts';

let database: TestDatabase;
beforeAll(async () => {
  database = await createTestDatabase();
});
afterAll(() => database?.drop());

const one = { accountId: 'int_1', workspaceId: 'ws_1' };
const other = { accountId: 'int_1', workspaceId: 'ws_2' };

test('the first workspace that records an object owns it, in every process', async () => {
  const [first, second] = [createObjectOwners(database.db), createObjectOwners(database.db)];
  await first.record(one, 'thread', ['thread_1', 'thread_2']);
  await second.record(other, 'thread', ['thread_2', 'thread_3']);
  const asked = ['thread_1', 'thread_2', 'thread_3', 'thread_4'];
  for (const owners of [first, second, second]) {
    expect([...(await owners.ownedBy(one, asked))]).toEqual(['thread_1', 'thread_2']);
    expect([...(await owners.ownedBy(other, asked))]).toEqual(['thread_3']);
    expect([...(await owners.ownedBy({ ...one, accountId: 'int_2' }, asked))]).toEqual([]);
  }
  await first.forget(other, 'thread_1');
  expect([...(await first.ownedBy(one, ['thread_1']))]).toEqual(['thread_1']);
  await first.forget(one, 'thread_1');
  expect([...(await first.ownedBy(one, ['thread_1']))]).toEqual([]);
});

test('old responses and the oldest of too many objects are forgotten', async () => {
  await sql`truncate stored_object`.execute(database.db);
  const owners = createObjectOwners(database.db);
  await owners.record(one, 'response', ['resp_old', 'resp_new']);
  await owners.record(one, 'thread', ['a', 'b', 'c']);
  await owners.record(other, 'thread', ['d']);
  await sql`update stored_object set created_at = now() - interval '41 days' where object_id = 'resp_old'`.execute(
    database.db,
  );
  await sql`update stored_object set created_at = now() - interval '1 day' where object_id in ('a', 'd')`.execute(
    database.db,
  );
  await sweepStoredObjects(database.db, 2);
  const left = await database.db.selectFrom('stored_object').select('object_id').orderBy('object_id').execute();
  expect(left.map(({ object_id: id }) => id)).toEqual(['b', 'c', 'd', 'resp_new']);
});
