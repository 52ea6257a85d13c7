import { sql, type Kysely, type RawBuilder } from 'kysely';
import { beforeAll, expect, test } from 'vitest';
import { isolateWorkspaces, canAssumeTenantRole, sharedKinds, tenantRole } from '#libs/database/isolate-workspaces.ts';
import type { Database } from '#libs/database/schema.ts';
import { asSystem, rebind, runForWorkspace } from '#libs/database/workspace-binding.ts';
import { createWorkspaceDatabase } from '#libs/database/workspace-database.ts';
import { createEventLog } from '#libs/event-log/event-log.ts';
import { organisationId } from '#libs/http/caller.ts';
import { createLogger } from '#libs/kernel/logging/logger.ts';
import { resourceKinds } from '#libs/resources/resource-kinds.ts';
import { useTestDatabase } from '#test/postgres.ts';

const database = useTestDatabase();
const logger = createLogger({ name: 'test', level: 'silent' });
let bound: Kysely<Database>;
/** From the database itself: a table of a new migration takes part by itself. */
let tables: string[];

beforeAll(async () => {
  bound = createWorkspaceDatabase(database.pool, () => true);
  const { rows } = await sql<{ name: string }>`
    select class.relname as name from pg_class as class join pg_attribute as attribute on attribute.attrelid = class.oid
    where class.relnamespace = 'public'::regnamespace and class.relkind in ('r', 'p') and not class.relispartition
      and attribute.attname = 'workspace_id' order by 1`.execute(database.db);
  tables = rows.map(({ name }) => name);
  for (const table of tables) await dropChecks(table);
  for (const table of tables) await insertRow(table, 'ws_a');
  for (const table of tables) await insertRow(table, 'ws_b');
  for (const id of ['ws_a', 'ws_b']) {
    await sql`
      insert into batch_chunk (batch_id, chunk, byte_offset, byte_length, range_first_line, first_line, line_count, settled)
      values (${`id of ${id}`}, 0, 0, 1, 0, 0, 1, '')`.execute(database.db);
  }
});

/** Rows of two workspaces fit any table without its checks, foreign keys and triggers, and its partitions with one for all other values. */
async function dropChecks(table: string): Promise<void> {
  const { rows } = await sql<{ name: string }>`
    select conname as name from pg_constraint where conrelid = ${table}::regclass and contype in ('c', 'f')`.execute(
    database.db,
  );
  for (const { name } of rows) {
    await sql`alter table ${sql.table(table)} drop constraint ${sql.ref(name)}`.execute(database.db);
  }
  await sql`alter table ${sql.table(table)} disable trigger user`.execute(database.db);
  const partitioned = await sql`select from pg_class where oid = ${table}::regclass and relkind = 'p'`.execute(
    database.db,
  );
  if (partitioned.rows.length === 0) return;
  await sql`create table ${sql.table(`${table}_others`)} partition of ${sql.table(table)} default`.execute(database.db);
}

/** Fills every column that needs a value by its type: what the rows say does not matter here. */
async function insertRow(table: string, workspaceId: string): Promise<void> {
  const { rows: columns } = await sql<{ name: string; type: string }>`
    select attname as name, format_type(atttypid, null) as type from pg_attribute
    where attrelid = ${table}::regclass and attnum > 0 and not attisdropped and attnotnull and not atthasdef
      and attidentity = '' and attname <> 'workspace_id'`.execute(database.db);
  const values = columns.map(({ name, type }) => valueOf(name, type, workspaceId));
  const names = ['workspace_id', ...columns.map(({ name }) => name)].map((name) => sql.ref(name));
  await sql`insert into ${sql.table(table)} (${sql.join(names)}) values (${sql.join([workspaceId, ...values])})`.execute(
    database.db,
  );
}

function valueOf(name: string, type: string, workspaceId: string): unknown {
  if (type === 'jsonb' || type === 'json') return '{}';
  if (type === 'uuid')
    return workspaceId === 'ws_a' ? '00000000-0000-7000-8000-00000000000a' : '00000000-0000-7000-8000-00000000000b';
  if (type === 'bytea') return Buffer.from('x');
  if (type === 'boolean') return false;
  if (type.startsWith('timestamp') || type === 'date') return '2026-01-31';
  if (type.endsWith('[]') || type.endsWith('multirange')) return '{}';
  if (/int|numeric|double|real|xid8/.test(type)) return workspaceId === 'ws_a' ? 1 : 2;
  return `${name} of ${workspaceId}`;
}

const workspacesIn = async (db: Kysely<Database>, table: string): Promise<string[]> => {
  const { rows } = await sql<{ workspace_id: string }>`select workspace_id from ${sql.table(table)}`.execute(db);
  return [...new Set(rows.map((row) => row.workspace_id))].toSorted();
};

const onlyOwn = (table: string): Promise<string[]> => runForWorkspace('ws_a', () => workspacesIn(bound, table));

test('a query without a condition gets no row of another workspace, from any table that has workspaces', async () => {
  expect(tables).toEqual(
    expect.arrayContaining(['batch', 'event', 'file', 'request_log_pack', 'request_log_row', 'resource', 'secret']),
  );
  const all = await Promise.all(tables.map(async (table) => [table, await workspacesIn(database.db, table)]));
  expect(all).toEqual(tables.map((table) => [table, ['ws_a', 'ws_b']]));
  const own = await Promise.all(tables.map(async (table) => [table, await onlyOwn(table)]));
  expect(own).toEqual(tables.map((table) => [table, ['ws_a']]));
});

test('the view of the request log has only the own rows and packs', async () => {
  await sql`update request_log_pack set id = array[last_id]`.execute(database.db);
  const read = sql<{ calls: number }>`select workspace_id, count(*) as calls from request_log group by 1 order by 1`;
  expect((await read.execute(database.db)).rows).toEqual([
    { workspace_id: 'ws_a', calls: 2 },
    { workspace_id: 'ws_b', calls: 2 },
  ]);
  const own = await runForWorkspace('ws_a', () => read.execute(bound));
  expect(own.rows).toEqual([{ workspace_id: 'ws_a', calls: 2 }]);
});

type Reached = [table: string, rows: bigint | 'denied'];

/** Runs one statement on each table, as a command of ws_a would, and undoes it. */
async function reachedByCommand(statementOn: (table: string) => RawBuilder<unknown>): Promise<Reached[]> {
  const reached: Reached[] = [];
  const commands = createEventLog(bound);
  const command = { workspaceId: 'ws_a', streams: [], metadata: { actor: { type: 'system', id: 'test' } } } as const;
  for (const table of [...tables, 'batch_chunk']) {
    const undone = commands.transact(command, async ({ tx }) => {
      const { numAffectedRows = 0n } = await statementOn(table).execute(tx);
      reached.push([table, numAffectedRows]);
      throw new Error('undone');
    });
    await undone.catch((error: Error) => {
      if (error.message.startsWith('permission denied')) reached.push([table, 'denied']);
      else if (error.message !== 'undone') throw error;
    });
  }
  return reached;
}

test('a command whose condition was forgotten deletes and changes rows of its own workspace only, in any table', async () => {
  const deleted = await runForWorkspace('ws_a', () =>
    reachedByCommand((table) => sql`delete from ${sql.table(table)}`),
  );
  const changed = await runForWorkspace('ws_a', () =>
    reachedByCommand((table) => {
      const column = sql.ref(table === 'batch_chunk' ? 'state' : 'workspace_id');
      return sql`update ${sql.table(table)} set ${column} = ${column}`;
    }),
  );
  const one = (denied: string[]): Reached[] =>
    [...tables, 'batch_chunk'].map((table) => [table, denied.includes(table) ? 'denied' : 1n]);
  expect(deleted).toEqual(one(['batch_chunk', 'event']));
  expect(changed).toEqual(one(['event']));
});

test('no row of another workspace can be written, changed or deleted', async () => {
  await runForWorkspace('ws_a', async () => {
    const values = { workspace_id: 'ws_b', id: 'x', version: 1, updated_at: new Date(), kind: 'config', data: '{}' };
    const row = { ...values, created_at: new Date(), slug: null, lookup: null, last_version: null, deleted_at: null };
    const inserted = bound.insertInto('resource').values(row).execute();
    await expect(inserted).rejects.toThrow('row-level security');
    const moved = sql`update resource set workspace_id = 'ws_b'`.execute(bound);
    await expect(moved).rejects.toThrow('row-level security');
    await sql`delete from secret`.execute(bound);
  });
  expect(await workspacesIn(database.db, 'secret')).toEqual(['ws_b']);
  expect(await workspacesIn(database.db, 'resource')).toEqual(['ws_a', 'ws_b']);
});

test('within a transaction a part can be bound otherwise, and what follows is bound as before', async () => {
  const seen = await runForWorkspace('ws_a', () =>
    bound
      .transaction()
      .execute(async (tx) => [
        await workspacesIn(tx, 'file'),
        await asSystem(() => workspacesIn(tx, 'file')),
        await runForWorkspace('ws_b', () => workspacesIn(tx, 'file')),
        await workspacesIn(tx, 'file'),
      ]),
  );
  expect(seen).toEqual([['ws_a'], ['ws_a', 'ws_b'], ['ws_b'], ['ws_a']]);
});

test('the role sees nothing while no workspace is set, and no table without workspaces', async () => {
  const asRole = (table: string): Promise<unknown[]> =>
    database.db.transaction().execute(async (tx) => {
      await sql`set local role ${sql.raw(tenantRole)}`.execute(tx);
      return (await sql`select * from ${sql.table(table)}`.execute(tx)).rows;
    });
  expect(await asRole('file')).toEqual([]);
  await expect(asRole('batch_result')).rejects.toThrow('permission denied');
});

test('a transaction is bound as a whole, and its connection is free of it afterwards', async () => {
  const seen = await runForWorkspace('ws_b', () =>
    bound.transaction().execute(async (tx) => [await workspacesIn(tx, 'batch'), await workspacesIn(tx, 'file')]),
  );
  expect(seen).toEqual([['ws_b'], ['ws_b']]);
  const failed = runForWorkspace('ws_b', () => sql`select 1 / 0`.execute(bound));
  await expect(failed).rejects.toThrow('division by zero');
  const connections = Array.from({ length: 12 }, () => workspacesIn(database.db, 'batch'));
  expect(new Set((await Promise.all(connections)).map(String))).toEqual(new Set(['ws_a,ws_b']));
});

test('a request can be bound to another workspace or see all of them, and nothing runs outside of one', async () => {
  await runForWorkspace('ws_a', async () => {
    expect(await asSystem(() => workspacesIn(bound, 'file'))).toEqual(['ws_a', 'ws_b']);
    expect(await workspacesIn(bound, 'file')).toEqual(['ws_a']);
    rebind("ws_b'; reset role; --");
    expect(await workspacesIn(bound, 'file')).toEqual([]);
    rebind('ws_b');
    expect(await workspacesIn(bound, 'file')).toEqual(['ws_b']);
    rebind(null);
    expect(await workspacesIn(bound, 'file')).toEqual(['ws_a', 'ws_b']);
  });
  await expect(workspacesIn(bound, 'file')).rejects.toThrow('outside a request');
});

test("of the organisation's records a workspace sees those that its kinds share, and changes none", async () => {
  expect(sharedKinds.toSorted()).toEqual(
    resourceKinds
      .filter(({ shared }) => shared && !shared.isHidden)
      .map(({ noun }) => noun)
      .toSorted(),
  );
  await sql`
    insert into resource (id, workspace_id, version, updated_at, kind, data, created_at)
    select 'shared_' || kind, ${organisationId}, 1, now(), kind, '{}', now() from unnest(${['label', 'user']}::text[]) as kind`.execute(
    database.db,
  );
  expect(await onlyOwn('resource')).toEqual([organisationId, 'ws_a']);
  await runForWorkspace('ws_a', async () => {
    const kinds = await sql<{ id: string }>`select id from resource where workspace_id <> 'ws_a'`.execute(bound);
    expect(kinds.rows).toEqual([{ id: 'shared_label' }]);
    const changed = await sql`update resource set slug = 'x' where id like 'shared%'`.execute(bound);
    expect(changed.numAffectedRows).toBe(0n);
  });
});

test('the functions that look up rollups by value have rows of the bound workspace only, and are closed to other roles', async () => {
  for (const table of ['metadata_rollup', 'value_rollup']) {
    await sql`update ${sql.table(table)} set key = 'team', value = 'red', grain = 'day'`.execute(database.db);
    const rowsOf = async (db: Kysely<Database>, workspaceId: string): Promise<number> => {
      const of = sql.table(`${table}_of`);
      const found = await sql`
        select from ${of}(${workspaceId}, 'day', 'team', array['red', 'blue'], '2026-01-01', '2026-12-31')`.execute(db);
      return found.rows.length;
    };
    expect([await rowsOf(database.db, 'ws_a'), await rowsOf(database.db, 'ws_b')]).toEqual([1, 1]);
    const seen = await runForWorkspace('ws_a', async () => [await rowsOf(bound, 'ws_a'), await rowsOf(bound, 'ws_b')]);
    expect(seen).toEqual([1, 0]);
    const { rows } = await sql`
      select from pg_proc, aclexplode(proacl) as entry where proname = ${`${table}_of`} and entry.grantee = 0`.execute(
      database.db,
    );
    expect(rows).toEqual([]);
  }
});

test('a table of a later migration is isolated at the next start, and rights that a restore lost come back', async () => {
  await sql`create table later (id text, workspace_id text not null)`.execute(database.db);
  await sql`insert into later values ('a', 'ws_a'), ('b', 'ws_b')`.execute(database.db);
  await sql`revoke all on file from ${sql.raw(tenantRole)}`.execute(database.db);
  expect(await canAssumeTenantRole(database.db)).toBe(true);
  await isolateWorkspaces(database.db, logger);
  expect(await onlyOwn('later')).toEqual(['ws_a']);
  expect(await onlyOwn('file')).toEqual(['ws_a']);
});
