import { cp, mkdtemp, readdir, rm, symlink } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { sql } from 'kysely';
import { expect, onTestFinished, test } from 'vitest';
import { migrate } from '#libs/database/migrate.ts';
import type { AnyInlineModel } from '#libs/event-log/inline-model.ts';
import { checkInlineModels } from '#libs/event-log/rebuild.ts';
import { createLogger } from '#libs/kernel/logger.ts';
import { resourceKinds } from '#libs/resources/resource-kinds.ts';
import { resourceModel, resourceVersionModel } from '#libs/records/resource-model.ts';
import { eventually } from '#test/eventually.ts';
import { createTestDatabase, type TestDatabase } from '#test/postgres.ts';

// Configs, API keys, virtual keys and workspaces lay in tables of their own. Those of a running installation move, and processes of the release
// before go on with the old tables meanwhile.

const models = [resourceModel(resourceKinds), resourceVersionModel(resourceKinds)] as unknown as AnyInlineModel[];
const projectFolder = path.resolve(import.meta.dirname, '../../../migrations');
const logger = createLogger({ name: 'test', level: 'silent' });

/** A database as the last release left it, and a function that migrates it to this one. */
async function lastRelease(): Promise<{ database: TestDatabase; upgrade: () => Promise<unknown> }> {
  const database = await createTestDatabase();
  onTestFinished(() => database.drop());
  await sql`drop schema public cascade`.execute(database.db);
  await sql`create schema public`.execute(database.db);
  const folder = await mkdtemp(path.join(tmpdir(), 'sluice-last-release-'));
  onTestFinished(() => rm(folder, { recursive: true }));
  await symlink(path.resolve(projectFolder, '../node_modules'), path.join(folder, 'node_modules'));
  const names = (await readdir(projectFolder)).toSorted();
  const old = names.filter((name) => name < '0015');
  for (const name of old) await cp(path.join(projectFolder, name), path.join(folder, name));
  const { connectionString } = database;
  await migrate({ connectionString, logger, folder });
  return { database, upgrade: () => migrate({ connectionString, logger }) };
}

const keyData = {
  name: 'ci',
  digest: 'aa11',
  last_four: 'zzzz',
  scopes: null,
  defaults: { metadata: { team: 'x' } },
  expires_at: '2030-01-02T03:04:05.678Z',
};

const virtualKeyData = {
  name: 'n',
  provider: 'azure',
  custom_host: null,
  note: null,
  settings: { azure_resource_name: 'r' },
  secret_id: 'secret_1',
  secret_last_four: 'abcd',
  expires_at: '2030-01-02T03:04:05.678Z',
};

/** What the last release writes for a command: the event, and the statement that folds it into its table. */
async function write(
  { db }: TestDatabase,
  [stream, version, type, data]: readonly [string, number, string, object],
  ...statements: string[]
): Promise<void> {
  await sql`
    insert into event (event_id, workspace_id, stream_id, stream_version, type, schema_version, data, metadata, recorded_at)
    values (gen_random_uuid(), ${stream.startsWith('ws_') ? stream : 'ws_1'}, ${stream}, ${version}, ${type}, 1, ${JSON.stringify(data)}::jsonb, '{}',
      ${time(version)}::timestamptz)`.execute(db);
  for (const statement of statements) await sql.raw(statement).execute(db);
}

const time = (version: number): string => `2026-01-01T00:00:0${version}.123Z`;

async function writeAll(database: TestDatabase): Promise<void> {
  const config = `'{"virtual_key":"a"}'`;
  const head = (id: string) =>
    `insert into config values ('${id}', 'ws_1', 1, '${time(1)}', '${id}', 'n', ${config}, 1, '${time(1)}', null)`;
  const version = (id: string, number: number) =>
    `insert into config_version values ('${id}@${number}', 'ws_1', ${number}, '${time(number)}', '${id}', ${number}, ${config}, '${time(number)}')`;
  for (const id of ['kept', 'gone']) {
    const data = { slug: id, name: 'n', config: { virtual_key: 'a' }, config_version: 1 };
    await write(database, [id, 1, 'config.created', data], head(id), version(id, 1));
  }
  const second = { config: { virtual_key: 'a' }, config_version: 2 };
  await write(
    database,
    ['kept', 2, 'config.updated', second],
    `update config set config_version = 2, version = 2, updated_at = '${time(2)}' where id = 'kept'`,
    version('kept', 2),
  );
  const ended = `version = 2, updated_at = '${time(2)}'`;
  await write(
    database,
    ['gone', 2, 'config.deleted', {}],
    `update config set ${ended}, deleted_at = '${time(2)}' where id = 'gone'`,
  );
  const key = `insert into api_key values ('key_1', 'ws_1', 1, '${time(1)}', 'ci', 'aa11', 'zzzz', null, '{"metadata":{"team":"x"}}', '${time(1)}', '2030-01-02T03:04:05.678Z', null)`;
  await write(database, ['key_1', 1, 'api_key.created', keyData], key);
  const virtual = { ...virtualKeyData, slug: 'mine' };
  const virtualKey = (id: string) =>
    `insert into virtual_key values ('${id}', 'ws_1', 1, '${time(1)}', '${id === 'vk_1' ? 'mine' : id}', 'n', 'azure', null, null,
      '{"azure_resource_name":"r"}', 'secret_1', 'abcd', '${time(1)}', '${virtual.expires_at}', null)`;
  await write(database, ['vk_1', 1, 'virtual_key.created', virtual], virtualKey('vk_1'));
  await write(
    database,
    ['vk_1', 2, 'virtual_key.updated', { custom_host: 'https://h.example', expires_at: null }],
    `update virtual_key set custom_host = 'https://h.example', expires_at = null, version = 2, updated_at = '${time(2)}'`,
  );
  await write(database, ['vk_2', 1, 'virtual_key.created', { ...virtual, slug: 'vk_2' }], virtualKey('vk_2'));
  await write(
    database,
    ['vk_2', 2, 'virtual_key.deleted', {}],
    `update virtual_key set secret_id = null, deleted_at = '${time(2)}', version = 2, updated_at = '${time(2)}' where id = 'vk_2'`,
  );
  const guardrails = { input_guardrails: [{ type: 'x' }], output_guardrails: [] };
  const workspace = (id: string) =>
    `insert into workspace values ('${id}', '${id}', 1, '${time(1)}', 'w', '${time(1)}', null)`;
  for (const id of ['ws_plain', 'ws_guarded', 'ws_freed']) {
    await write(database, [id, 1, 'workspace.created', { name: 'w' }], workspace(id));
  }
  const guard = (id: string, version: number, value: string) =>
    `update workspace set guardrails = ${value}, version = ${version}, updated_at = '${time(version)}' where id = '${id}'`;
  for (const id of ['ws_guarded', 'ws_freed']) {
    const set = guard(id, 2, `'${JSON.stringify(guardrails)}'`);
    await write(database, [id, 2, 'workspace.guardrails_set', guardrails], set);
  }
  const none = { input_guardrails: [], output_guardrails: [] };
  await write(database, ['ws_freed', 3, 'workspace.guardrails_set', none], guard('ws_freed', 3, 'null'));
  await write(database, ['key_1', 2, 'api_key.revoked', {}], `update api_key set ${ended}, revoked_at = '${time(2)}'`);
}

test('what the last release stored is what the log says, in the new tables', async () => {
  const { database, upgrade } = await lastRelease();
  await writeAll(database);
  await upgrade();
  expect(await checkInlineModels(database.pool, models)).toMatchObject({
    difference: null,
    rows: { resource: 8, resource_version: 3 },
  });
});

test('what the last release was storing when the tables moved reaches the new ones', async () => {
  const { database, upgrade } = await lastRelease();
  const { upgrading } = await database.db.transaction().execute(async (tx) => {
    await writeAll({ ...database, db: tx });
    const started = upgrade();
    const waits = () =>
      sql<{ waits: boolean }>`
        select exists (select from pg_locks where not granted and database =
          (select oid from pg_database where datname = current_database())) as waits`.execute(database.db);
    await eventually(waits, ({ rows }) => rows[0]?.waits === true);
    return { upgrading: started };
  });
  await upgrading;
  expect(await checkInlineModels(database.pool, models)).toMatchObject({
    difference: null,
    rows: { resource: 8, resource_version: 3 },
  });
});

test('what the last release stores beside this one reaches the new tables', async () => {
  const { database, upgrade } = await lastRelease();
  await upgrade();
  await writeAll(database);
  expect(await checkInlineModels(database.pool, models)).toMatchObject({
    difference: null,
    rows: { resource: 8, resource_version: 3 },
  });
});

test('what this release stores reaches the old tables, and a member that they do not know outlives their changes', async () => {
  const { database, upgrade } = await lastRelease();
  await upgrade();
  const insert = async (id: string, kind: string, data: object, lookup: string | null) =>
    await sql`
      insert into resource values (${id}, 'ws_1', 1, ${time(1)}, ${kind}, ${lookup === null ? id : null}, ${lookup},
        ${JSON.stringify(data)}::jsonb, ${lookup === null ? 1 : null}, ${time(1)}, null)`.execute(database.db);
  await insert('cfg', 'config', { name: 'n', config: { virtual_key: 'a' }, config_version: 1 }, null);
  await insert('key_1', 'api_key', { ...keyData, of_a_newer_release: 1 }, 'aa11');
  await sql`
    insert into resource_version values ('cfg@1', 'ws_1', 1, ${time(1)}, 'config', 'cfg', 1,
      '{"config":{"virtual_key":"a"}}', ${time(1)})`.execute(database.db);
  await sql`
    insert into resource values ('ws_1', 'ws_1', 1, ${time(1)}, 'workspace', 'main', null,
      '{"name":"w","guardrails":{"input_guardrails":[]}}', null, ${time(1)}, null)`.execute(database.db);
  await insert('vk', 'virtual_key', { ...virtualKeyData, of_a_newer_release: 1 }, null);
  const rows = async (table: 'config' | 'config_version' | 'api_key' | 'virtual_key' | 'workspace') =>
    await database.db.selectFrom(table).selectAll().execute();
  expect(await rows('config')).toMatchObject([
    { id: 'cfg', slug: 'cfg', config: { virtual_key: 'a' }, config_version: 1 },
  ]);
  expect(await rows('config_version')).toMatchObject([{ id: 'cfg@1', config_id: 'cfg', config: { virtual_key: 'a' } }]);
  expect(await rows('workspace')).toMatchObject([{ id: 'ws_1', name: 'w', guardrails: { input_guardrails: [] } }]);
  await sql`update workspace set guardrails = null, version = 2`.execute(database.db);
  const { rows: workspaces } = await sql`select slug, data from resource where id = 'ws_1'`.execute(database.db);
  expect(workspaces).toEqual([{ slug: 'main', data: { name: 'w' } }]);
  const expiresAt = new Date(keyData.expires_at);
  expect(await rows('api_key')).toMatchObject([
    { digest: 'aa11', scopes: null, expires_at: expiresAt, revoked_at: null },
  ]);
  await sql`update resource set deleted_at = ${time(2)}, version = 2 where id = 'cfg'`.execute(database.db);
  expect(await rows('config')).toMatchObject([{ version: 2, deleted_at: new Date(time(2)) }]);

  const { expires_at: keyExpiry, ...fields } = virtualKeyData;
  expect(await rows('virtual_key')).toMatchObject([
    { id: 'vk', slug: 'vk', ...fields, expires_at: new Date(keyExpiry), deleted_at: null },
  ]);
  await sql`update virtual_key set note = 'x', version = 2`.execute(database.db);
  const { rows: virtualKeys } = await sql`select slug, data from resource where id = 'vk'`.execute(database.db);
  expect(virtualKeys).toEqual([{ slug: 'vk', data: { ...virtualKeyData, note: 'x', of_a_newer_release: 1 } }]);

  await sql`update api_key set revoked_at = ${time(2)}, version = 2`.execute(database.db);
  const { rows: keys } = await sql`select data, deleted_at from resource where id = 'key_1'`.execute(database.db);
  expect(keys).toEqual([{ data: { ...keyData, of_a_newer_release: 1 }, deleted_at: new Date(time(2)) }]);
});
