import { sql } from 'kysely';
import { pino } from 'pino';
import { afterEach, beforeEach, expect, onTestFinished, test } from 'vitest';
import { hasHung, isTransient } from '#libs/database/database-error.ts';
import { createDatabase, createPool, type PoolOptions } from '#libs/database/pool.ts';
import { createEventLog } from '#libs/event-log/event-log.ts';
import { eventually } from '#test/eventually.ts';
import { useTestDatabase } from '#test/postgres.ts';
import { startTcpProxy, type TcpProxy } from './tcp-proxy.ts';

// A query that waits in silence: is it slow, was it lost, or does the server hang?

const database = useTestDatabase();
const silent = pino({ level: 'silent' });
const limits = { silenceMs: 100, askMs: 400 };

let proxy: TcpProxy;
beforeEach(async () => {
  proxy = await startTcpProxy(database.connectionString);
});
afterEach(() => proxy.close());

function connect(options: Partial<PoolOptions> = {}) {
  const applicationName = `silence-${Math.random().toString(36).slice(2, 10)}`;
  const pool = createPool({ connectionString: proxy.connectionString, applicationName, ...limits, ...options }, silent);
  onTestFinished(() => pool.end());
  return { pool, db: createDatabase(pool), applicationName };
}

const toFailure = (work: Promise<unknown>): Promise<unknown> =>
  work.then(
    () => expect.fail('it succeeded'),
    (error: unknown) => error,
  );

test('a query that is only slow is left alone, however often the server has to be asked', async () => {
  const { db } = connect();
  let answers = 0;
  proxy.setFilter(() => {
    answers += 1;
    return true;
  });
  expect((await sql`select pg_sleep(1.5), 1 as one`.execute(db)).rows).toMatchObject([{ one: 1 }]);
  // Its own, and those of the connections that asked.
  expect(answers).toBeGreaterThan(8);
});

test('a query whose answer was lost fails, although the server answers others', async () => {
  const { db, applicationName } = connect();
  await sql`select 1`.execute(db);
  let swallowed = 0;
  proxy.setFilter((data) => {
    if (!data.includes('the answer')) return true;
    swallowed += 1;
    return false;
  });
  const error = await toFailure(sql`select 'the answer' as text`.execute(db));
  expect(swallowed).toBe(1);
  expect(error).toMatchObject({ code: 'ECONNRESET' });
  expect([isTransient(error), hasHung(error)]).toEqual([true, false]);
  await eventually(
    async () =>
      (await sql`select from pg_stat_activity where application_name = ${applicationName}`.execute(database.db)).rows,
    (rows) => rows.length === 0,
  );
});

test('a command on a server that says nothing is not tried again by itself', async () => {
  const { db } = connect({ connectionTimeoutMs: 400 });
  const eventLog = createEventLog(db);
  const command = {
    workspaceId: 'ws_1',
    streams: ['s_1'],
    metadata: { actor: { type: 'system' as const, id: 'test' } },
  };
  await eventLog.transact(command, async () => {});
  let tries = 0;
  let swallowed = 0;
  proxy.setFilter(() => {
    swallowed += 1;
    return false;
  });
  const error = await toFailure(
    eventLog.transact(command, async () => {
      tries += 1;
    }),
  );
  expect([isTransient(error), hasHung(error), tries]).toEqual([true, true, 0]);
  // The transaction, and the connection that asked.
  expect(swallowed).toBeLessThanOrEqual(2);
  expect(await toFailure(eventLog.transact(command, async () => {}))).toMatchObject({ kind: 'unavailable' });
});
