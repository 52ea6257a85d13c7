import { inspect } from 'node:util';
import { sql } from 'kysely';
import { pino } from 'pino';
import { afterEach, beforeEach, expect, onTestFinished, test } from 'vitest';
import {
  isConnectionLost,
  isLockTimeout,
  CommitOutcomeUnknownError,
  isTransient,
  getSqlState,
} from '#libs/database/database-error.ts';
import { acquireClient, createDatabase, createPool, type PoolOptions } from '#libs/database/pool.ts';
import { createTestDatabase, useTestDatabase, type TestDatabase } from '#test/postgres.ts';
import { startTcpProxy, type TcpProxy } from './tcp-proxy.ts';

const database = useTestDatabase();
const silent = pino({ level: 'silent' });

let proxy: TcpProxy;
beforeEach(async () => {
  proxy = await startTcpProxy(database.connectionString);
  await sql`drop table if exists note`.execute(database.db);
  await sql`create table note (text text)`.execute(database.db);
});
afterEach(() => proxy.close());

function poolThroughProxy(options: Partial<PoolOptions> = {}) {
  const pool = createPool({ connectionString: proxy.connectionString, applicationName: 'proxied', ...options }, silent);
  onTestFinished(() => pool.end());
  return { pool, db: createDatabase(pool) };
}

const toFailure = (work: Promise<unknown>): Promise<unknown> =>
  work.then(
    () => expect.fail('it succeeded'),
    (error: unknown) => error,
  );

const notes = async () => (await sql<{ text: string }>`select text from note`.execute(database.db)).rows;

test('values come back as the types say', async () => {
  const { rows } = await sql`
    select 9007199254740991::bigint as big, array[1, null, 3]::bigint[] as bigs,
      array[1, -2147483648, 2147483647]::integer[] as integers, array[1, null]::smallint[] as smalls, '{}'::integer[] as none,
      array[array[1, 2], array[3, 4]]::integer[] as nested, '2026-11-21'::date as day,
      array['2026-11-21'::date] as days, '2026-11-21 10:00:00+00'::timestamptz as moment, '5'::xid8 as transaction_id,
      1.50::numeric as price, '\\x00ff'::bytea as bytes, '{"a": 1}'::jsonb as data, null::bigint as nothing`.execute(
    database.db,
  );
  expect(rows[0]).toEqual({
    big: Number.MAX_SAFE_INTEGER,
    bigs: [1, null, 3],
    integers: [1, -2_147_483_648, 2_147_483_647],
    smalls: [1, null],
    none: [],
    nested: [
      [1, 2],
      [3, 4],
    ],
    day: '2026-11-21',
    days: ['2026-11-21'],
    moment: new Date('2026-11-21T10:00:00Z'),
    transaction_id: '5',
    price: '1.50',
    bytes: Buffer.from([0, 255]),
    data: { a: 1 },
    nothing: null,
  });
});

test('a bigint that a number cannot hold fails its query and leaves the connection usable', async () => {
  const { db } = poolThroughProxy({ max: 1 });
  await expect(sql`select 9007199254740993::bigint`.execute(db)).rejects.toThrow(/9007199254740993/);
  expect((await sql`select 1 as one`.execute(db)).rows).toEqual([{ one: 1 }]);
});

test('sessions run in UTC under the limits of the pool', async () => {
  const { pool } = poolThroughProxy({
    statementTimeoutMs: 1_234,
    lockTimeoutMs: 0,
    idleInTransactionTimeoutMs: 77_000,
  });
  const { rows } = await pool.query(
    `select current_setting('timezone') as zone, current_setting('statement_timeout') as statement,
       current_setting('lock_timeout') as lock, current_setting('idle_in_transaction_session_timeout') as idle,
       coalesce(current_setting('transaction_timeout', true), '1min') as transaction,
       current_setting('application_name') as name`,
  );
  expect(rows[0]).toEqual({
    zone: 'UTC',
    statement: '1234ms',
    lock: '0',
    idle: '77s',
    transaction: '1min',
    name: 'proxied',
  });
});

test('a session that is terminated between two queries of a transaction does not end the process', async () => {
  const { db, pool } = poolThroughProxy({ max: 1 });
  const error = await toFailure(
    db.transaction().execute(async (tx) => {
      const { rows } = await sql<{
        pid: number;
      }>`insert into note values ('a') returning pg_backend_pid() as pid`.execute(tx);
      const ended = new Promise((resolve) => pool.once('error', resolve).once('remove', resolve));
      await sql`select pg_terminate_backend(${rows[0]?.pid})`.execute(database.db);
      await Promise.race([ended, until(async () => (await failsToQuery(tx)) ?? false)]);
      await sql`select 1`.execute(tx);
    }),
  );
  expect(isTransient(error)).toBe(true);
  expect(error).not.toBeInstanceOf(CommitOutcomeUnknownError);
  expect((await sql`select 1 as one`.execute(db)).rows).toEqual([{ one: 1 }]);
  expect(await notes()).toEqual([]);
});

test('the first error of a lost transaction is told, not the failure of its rollback', async () => {
  const { db } = poolThroughProxy();
  const error = await toFailure(
    db.transaction().execute((tx) => sql`select pg_terminate_backend(pg_backend_pid())`.execute(tx)),
  );
  expect(getSqlState(error)).toBe('57P01');
  expect(isTransient(error)).toBe(true);
});

test('a connection lost while COMMIT is in flight leaves the outcome unknown, here committed', async () => {
  const { db } = poolThroughProxy();
  const error = await toFailure(
    db.transaction().execute(async (tx) => {
      await sql`insert into note values ('kept')`.execute(tx);
      proxy.setFilter((data) => {
        if (!data.includes('COMMIT')) return true;
        proxy.resetAll();
        return false;
      });
    }),
  );
  expect(error).toBeInstanceOf(CommitOutcomeUnknownError);
  expect(isTransient(error)).toBe(true);
  expect(await notes()).toEqual([{ text: 'kept' }]);
});

test('a COMMIT on a connection known to be lost was never sent, so the outcome is known', async () => {
  const { db } = poolThroughProxy();
  const error = await toFailure(
    db.transaction().execute(async (tx) => {
      await sql`insert into note values ('lost')`.execute(tx);
      proxy.resetAll();
      await until(async () => (await failsToQuery(tx)) ?? false);
    }),
  );
  expect(isTransient(error)).toBe(true);
  expect(error).not.toBeInstanceOf(CommitOutcomeUnknownError);
  expect(await notes()).toEqual([]);
});

test('a COMMIT that the database refuses is neither transient nor of unknown outcome', async () => {
  await sql`alter table note add constraint once unique (text) deferrable initially deferred`.execute(database.db);
  const error = await toFailure(
    database.db.transaction().execute((tx) => sql`insert into note values ('a'), ('a')`.execute(tx)),
  );
  expect(getSqlState(error)).toBe('23505');
  expect(error).not.toBeInstanceOf(CommitOutcomeUnknownError);
  expect([isTransient(error), isConnectionLost(error)]).toEqual([false, false]);
});

test('a caller for whom no connection becomes free in time is told unavailable', async () => {
  const { pool, db } = poolThroughProxy({ max: 1, connectionTimeoutMs: 50 });
  const holder = await acquireClient(pool);
  const error = await toFailure(sql`select 1`.execute(db));
  expect(error).toMatchObject({
    name: 'GatewayError',
    kind: 'unavailable',
    code: 'database_unavailable',
    retryAfterMs: 1_000,
  });
  expect(isTransient(error)).toBe(true);
  holder.release();
  expect((await sql`select 1 as one`.execute(db)).rows).toEqual([{ one: 1 }]);
});

test('an exhausted pool serves everyone who can wait', async () => {
  const { db } = poolThroughProxy({ max: 5 });
  const answers = await Promise.all(
    Array.from(
      { length: 200 },
      async (_, n) => (await sql<{ n: number }>`select ${n}::int as n`.execute(db)).rows[0]?.n,
    ),
  );
  expect(answers).toEqual(Array.from({ length: 200 }, (_, n) => n));
});

test('a server that cannot be reached is unavailable, and its password is nowhere in the error', async () => {
  const url = new URL(proxy.connectionString);
  url.password = 'hunter2-hunter2';
  await proxy.close();
  const pool = createPool({ connectionString: url.href, applicationName: 'x' }, silent);
  onTestFinished(() => pool.end());
  const error = await toFailure(sql`select 1`.execute(createDatabase(pool)));
  expect(error).toMatchObject({ kind: 'unavailable' });
  expect(inspect(error, { depth: 10 })).not.toContain('hunter2');
  expect(inspect(pool, { depth: 10 })).not.toContain('hunter2');
});

test('a connection string that is no Postgres URL is refused without being quoted', () => {
  const create = (connectionString: string) => () => createPool({ connectionString, applicationName: 'x' }, silent);
  expect(create('mysql://u:secret@h/d')).toThrow(/postgres:\/\/user:password@host/);
  expect(create('not a url secret')).not.toThrow(/secret/);
});

test('a query on a connection that has gone silent ends, and the connection is not used again', async () => {
  const { db } = poolThroughProxy({ max: 1, stallTimeoutMs: 200 });
  await sql`select 1`.execute(db);
  proxy.setFilter(() => false);
  const error = await toFailure(sql`select 2`.execute(db));
  expect(error).toMatchObject({ code: 'ETIMEDOUT' });
  expect(isTransient(error)).toBe(true);
  proxy.setFilter(() => true);
  expect((await sql`select 3 as three`.execute(db)).rows).toEqual([{ three: 3 }]);
});

test('a silent connection without a waiting query is kept', async () => {
  const { pool } = poolThroughProxy({ max: 1, stallTimeoutMs: 200 });
  const pid = async () => (await pool.query<{ pid: number }>('select pg_backend_pid() as pid')).rows[0]?.pid;
  const before = await pid();
  await new Promise((resolve) => setTimeout(resolve, 500)); // in which nothing must happen
  expect(await pid()).toBe(before);
});

test('a deadlock is transient, a lock timeout is not but can be told', async () => {
  await sql`insert into note values ('a'), ('b')`.execute(database.db);
  const update = (first: string, second: string) =>
    database.db.transaction().execute(async (tx) => {
      await sql`update note set text = text where text = ${first}`.execute(tx);
      await both();
      await sql`update note set text = text where text = ${second}`.execute(tx);
    });
  let arrived = 0;
  const both = () => ((arrived += 1), until(() => Promise.resolve(arrived === 2)));
  const results = await Promise.allSettled([update('a', 'b'), update('b', 'a')]);
  const reasons = results.flatMap((result) => (result.status === 'rejected' ? [result.reason as unknown] : []));
  expect(reasons.map((reason) => [getSqlState(reason), isTransient(reason)])).toEqual([['40P01', true]]);

  const { db } = poolThroughProxy({ lockTimeoutMs: 20 });
  await database.db.transaction().execute(async (tx) => {
    await sql`lock table note`.execute(tx);
    const error = await toFailure(sql`select * from note`.execute(db));
    expect([isLockTimeout(error), isTransient(error)]).toEqual([true, false]);
  });
});

test('a forgotten transaction is ended by the server and its holder can try again', async () => {
  const { db } = poolThroughProxy({ idleInTransactionTimeoutMs: 30 });
  const error = await toFailure(
    db.transaction().execute(async (tx) => {
      await sql`insert into note values ('forgotten')`.execute(tx);
      await until(async () => (await notesLocked()) === 0);
      await sql`select 1`.execute(tx);
    }),
  );
  expect(isTransient(error)).toBe(true);
  expect(await notes()).toEqual([]);
});

test('each test database is a copy of the migrated template, apart from the others', async () => {
  const others: TestDatabase[] = [await createTestDatabase(), await createTestDatabase()];
  const [first, second] = others as [TestDatabase, TestDatabase];
  await sql`create table only_here (x int)`.execute(first.db);
  await expect(sql`select * from only_here`.execute(second.db)).rejects.toThrow(/does not exist/);
  expect((await sql`select name from kysely_migration`.execute(second.db)).rows.length).toBeGreaterThan(0);
  const { rows } = await sql`select rolsuper from pg_roles where rolname = current_user`.execute(second.db);
  expect(rows).toEqual([{ rolsuper: false }]);
  await Promise.all(others.flatMap((other) => [other.drop(), other.drop()]));
  await expect(sql`select 1`.execute(createDatabase(first.pool))).rejects.toThrow(/after calling end/);
});

async function until(holds: () => Promise<boolean>): Promise<void> {
  while (!(await holds())) await new Promise((resolve) => setTimeout(resolve, 5));
}

async function failsToQuery(tx: TestDatabase['db']): Promise<boolean> {
  return sql`select 1`.execute(tx).then(
    () => false,
    () => true,
  );
}

async function notesLocked(): Promise<number> {
  const { rows } = await sql`
    select from pg_locks join pg_database on pg_database.oid = pg_locks.database
    where datname = current_database() and relation = 'note'::regclass and mode = 'RowExclusiveLock'`.execute(
    database.db,
  );
  return rows.length;
}
