import { cp, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { sql } from 'kysely';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { inlineModels } from '#apps/platform/models.ts';
import { canonicalJson } from '#libs/event-log/canonical-json.ts';
import { checkDigests } from '#libs/event-log/check-digests.ts';
import { migrate, missingRequirement, pendingMigrations } from '#libs/database/migrate.ts';
import { rebuildInlineModels } from '#libs/event-log/rebuild.ts';
import { createLogger } from '#libs/kernel/logging/logger.ts';
import { ConfigurationError } from '#libs/kernel/read-env.ts';
import { eventually } from '#test/eventually.ts';
import { readGoldenLog, readGoldenRows } from '#test/golden-log.ts';
import { createTestDatabase, type TestDatabase } from '#test/postgres.ts';

const logger = createLogger({ name: 'test', level: 'silent' });
let database: TestDatabase;
let folder: string;

beforeAll(async () => {
  database = await createTestDatabase();
});
afterAll(() => database.drop());

beforeEach(async () => {
  // An empty database: the template's own migrations would be missing from the test's folder.
  await sql`drop schema public cascade`.execute(database.db);
  await sql`create schema public`.execute(database.db);
  folder = await mkdtemp(path.join(tmpdir(), 'sluice-migrations-'));
  return () => rm(folder, { recursive: true });
});

const write = (name: string, statements: string) => writeFile(path.join(folder, `${name}.sql`), statements);

const run = () => migrate({ connectionString: database.connectionString, logger, folder });
const tables = async () => {
  const { rows } = await sql<{ name: string }>`
    select tablename as name from pg_tables where schemaname = 'public' and tablename not like 'kysely%' order by 1`.execute(
    database.db,
  );
  return rows.map((row) => row.name);
};

test('migrations are applied once, in order, and named', async () => {
  await write('0001_first', 'create table a (x int)');
  await write('0002_second', 'alter table a rename to b');
  expect(await pendingMigrations(database.db, folder)).toEqual(['0001_first', '0002_second']);
  expect(await run()).toEqual(['0001_first', '0002_second']);
  expect(await tables()).toEqual(['b']);
  expect(await pendingMigrations(database.db, folder)).toEqual([]);
  expect(await run()).toEqual([]);
});

test('a later migration is pending until it is applied', async () => {
  await write('0001_first', 'create table a (x int)');
  await run();
  await write('0002_second', 'create table c (x int)');
  expect(await pendingMigrations(database.db, folder)).toEqual(['0002_second']);
  expect(await run()).toEqual(['0002_second']);
});

test('of several processes that start together one migrates and all succeed', async () => {
  await write('0001_first', 'create table a (x int);insert into a select 1;select pg_sleep(0.3)');
  const applied = await Promise.all([run(), run(), run(), run()]);
  expect(applied.flat()).toEqual(['0001_first']);
  const { rows } = await sql`select * from a`.execute(database.db);
  expect(rows).toHaveLength(1);
});

test('a process that waits longer than its limit for another migration is told so', async () => {
  await write('0001_first', 'create table a (x int);select pg_sleep(1)');
  const first = run();
  const impatient = async () => {
    for (;;) {
      const { rows } = await sql`
        select from pg_locks join pg_database on pg_database.oid = pg_locks.database
        where locktype = 'advisory' and granted and datname = current_database()`.execute(database.db);
      if (rows.length > 0) break;
    }
    await migrate({ connectionString: database.connectionString, logger, folder, waitMs: 50 });
  };
  await expect(impatient()).rejects.toThrow(/lock timeout/);
  expect(await first).toEqual(['0001_first']);
});

test('a migration that fails leaves nothing of itself or of those before it', async () => {
  await write('0001_first', 'create table a (x int)');
  await write('0002_broken', 'create table b (x int);select 1/0');
  await expect(run()).rejects.toThrow(/Migration 0002_broken failed: division by zero/);
  expect(await tables()).toEqual([]);
  expect(await pendingMigrations(database.db, folder)).toEqual(['0001_first', '0002_broken']);
});

test('a migration that is told to stop ends its session at once and leaves nothing, and can be run again', async () => {
  await write(
    '0001_long',
    "create table a (x int);select pg_sleep(3600 * (select (to_regclass('public.go') is null)::int))",
  );
  const stopping = new AbortController();
  const options = { connectionString: database.connectionString, logger, folder };
  const running = migrate({ ...options, signal: stopping.signal });
  const sessions = async () => {
    const { rows } = await sql<{ query: string }>`
      select query from pg_stat_activity where application_name = 'sluice-migrate' and datname = current_database()`.execute(
      database.db,
    );
    return rows.map(({ query }) => query);
  };
  await eventually(sessions, (queries) => queries.some((query) => query.includes('pg_sleep')));
  stopping.abort(new Error('told to stop'));
  await expect(running).rejects.toThrow('told to stop');
  await eventually(sessions, (queries) => queries.length === 0);
  expect(await tables()).toEqual([]);
  await expect(migrate({ ...options, signal: stopping.signal })).rejects.toThrow('told to stop');
  await sql`create table go ()`.execute(database.db);
  expect(await migrate(options)).toEqual(['0001_long']);
});

test('statements may take longer than the limits of ordinary pools', async () => {
  // Division by zero, were there a limit.
  await write('0001_first', `select 1 / (current_setting('statement_timeout') = '0')::int`);
  await write('0002_second', `select 1 / (current_setting('idle_in_transaction_session_timeout') = '0')::int`);
  expect(await run()).toEqual(['0001_first', '0002_second']);
});

test('a misnamed migration and a number used twice are refused before anything runs', async () => {
  await write('0001_first', 'create table a (x int)');
  await write('2_second', 'create table b (x int)');
  await expect(run()).rejects.toThrow(/2_second\.sql must be named/);
  await rm(path.join(folder, '2_second.sql'));
  await write('0001_other', 'create table b (x int)');
  await expect(run()).rejects.toThrow(/Two migrations have the number 0001/);
  expect(await tables()).toEqual([]);
});

test('an applied migration that is missing from the folder is reported', async () => {
  await write('0001_first', 'create table a (x int)');
  await write('0002_second', 'create table b (x int)');
  await run();
  await rm(path.join(folder, '0001_first.sql'));
  await expect(run()).rejects.toThrow(/0001_first is missing/);
});

test('a database of a checkout from before the first release is refused with what to do, and left as it is', async () => {
  await write('0001_event_log', 'create table a (x int)');
  await run();
  await rm(path.join(folder, '0001_event_log.sql'));
  await write('0001_schema', 'create table b (x int)');
  const refusal = run();
  await expect(refusal).rejects.toThrow(ConfigurationError);
  await expect(refusal).rejects.toThrow(
    'This database was created by a checkout of Sluice from before version 0.1.0 and cannot be upgraded. Start with an ' +
      'empty database or another data directory (SLUICE_DATA_DIR), or use the old checkout.',
  );
  expect(await tables()).toEqual(['a']);
});

test('a process of the previous release starts beside a database of the next one', async () => {
  await write('0001_first', 'create table a (x int)');
  await write('0002_second', 'create table b (x int)');
  await run();
  await rm(path.join(folder, '0002_second.sql'));
  expect(await pendingMigrations(database.db, folder)).toEqual([]);
  expect(await missingRequirement(database.db, folder)).toBeNull();
  expect(await run()).toEqual([]);
  expect(await tables()).toEqual(['a', 'b']);
});

test('a migration of a newer release may say that older ones are too old, and then they end with what to do', async () => {
  await write('0001_first', 'create table installation (name text primary key, value text not null)');
  await write(
    '0002_breaking',
    `create table b (x int);insert into installation values ('required_migration', '0002_breaking')`,
  );
  await write('0003_harmless', 'create table c (x int)');
  await run();
  await rm(path.join(folder, '0003_harmless.sql'));
  expect(await run()).toEqual([]);
  expect(await missingRequirement(database.db, folder)).toBeNull();
  await rm(path.join(folder, '0002_breaking.sql'));
  expect(await missingRequirement(database.db, folder)).toBe('0002_breaking');
  const refusal = run();
  await expect(refusal).rejects.toThrow(ConfigurationError);
  await expect(refusal).rejects.toThrow(
    'This release is too old for the database. The database has the migration 0002_breaking, but the latest one in this ' +
      'release is 0001_first. Start a newer release, or restore the backup from before the upgrade.',
  );
});

test('a database that has newer migrations, but lacks one of ours, is not touched', async () => {
  await write('0001_first', 'create table a (x int)');
  await write('0003_third', 'create table c (x int)');
  await run();
  await rm(path.join(folder, '0003_third.sql'));
  await write('0002_second', 'create table b (x int)');
  await expect(run()).rejects.toThrow(/expected previously executed migration 0003_third/);
  expect(await tables()).toEqual(['a', 'c']);
});

test('a database of 0.1.0 with every type of event is migrated, and its log folds to the rows of this release', async () => {
  const project = path.resolve(import.meta.dirname, '../../../migrations');
  await cp(path.join(project, '0001_schema.sql'), path.join(folder, '0001_schema.sql'));
  await run();
  // The trigger refuses events of another time.
  await sql`alter table event disable trigger event_is_placed`.execute(database.db);
  for (const { event, metadata, dataSalt, metadataSalt, sha256 } of readGoldenLog()) {
    await sql`
      insert into event (position, epoch, transaction_id, event_id, workspace_id, stream_id, stream_version, type,
        schema_version, data, metadata, recorded_at, data_salt, metadata_salt, sha256, bytes)
      values (nextval('event_position'), 0, pg_current_xact_id(), ${event.eventId}, ${event.workspaceId}, ${event.streamId},
        ${event.streamVersion}, ${event.type}, ${event.schemaVersion}, ${canonicalJson(event.data)},
        ${canonicalJson(metadata)}, ${event.recordedAt}, decode(${dataSalt}, 'hex'), decode(${metadataSalt}, 'hex'),
        decode(${sha256}, 'hex'), octet_length(${canonicalJson(event.data) + canonicalJson(metadata)}))`.execute(
      database.db,
    );
  }
  expect(await checkDigests(database.db, [])).toMatchObject({ changed: 0, missing: 0 });
  await sql`alter table event enable trigger event_is_placed`.execute(database.db);
  await migrate({ connectionString: database.connectionString, logger });
  expect(await pendingMigrations(database.db)).toEqual([]);
  const { rows } = await rebuildInlineModels(database.pool, inlineModels);
  expect(Object.values(rows).reduce((sum, count) => sum + count)).toBe(readGoldenRows().length);
});
