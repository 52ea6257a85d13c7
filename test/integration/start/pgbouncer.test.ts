import { sql } from 'kysely';
import { pino } from 'pino';
import { expect, onTestFinished, test } from 'vitest';
import { createDatabase, createPool } from '#libs/database/pool.ts';
import { createDatabaseWait } from '#libs/database/wait-for-database.ts';
import { createJobQueue } from '#libs/queue/job-queue.ts';
import { eventually } from '#test/eventually.ts';
import { missingPgBouncer, startPgBouncer, type PgBouncer } from '#test/pgbouncer.ts';
import { createTestDatabase, type TestDatabase } from '#test/postgres.ts';
import { chatLines, createBatch, ended, resultsOf, type Batch } from '../../api/batch-kit.ts';
import type { Client } from '../../api/sdk.ts';
import { prepareInstallation, sdk } from './installation.ts';

// The real PgBouncer in transaction mode, with fewer sessions than the processes have connections.

const sessions = 5;
const missing = missingPgBouncer();

async function createEmptyDatabase(): Promise<TestDatabase> {
  const database = await createTestDatabase();
  onTestFinished(() => database.drop());
  for (const schema of ['public', 'pgboss']) await sql`drop schema ${sql.id(schema)} cascade`.execute(database.db);
  await sql`create schema public`.execute(database.db);
  return database;
}

async function startFailure(connectionString: string, directUrl?: string): Promise<string | null> {
  const logger = pino({ level: 'silent' });
  const { part } = createDatabaseWait({ connectionString, directUrl, logger, waitMsMax: 5_000 });
  try {
    await part.start?.();
    return null;
  } catch (error) {
    return (error as Error).message;
  }
}

/** The statements that a start prints. They are run by the role itself, and PgBouncer opens new sessions. */
async function makeMissingSettings(database: TestDatabase, pooler: PgBouncer): Promise<string[]> {
  const problem = (await startFailure(pooler.connectionString, database.connectionString)) ?? '';
  expect(problem).toMatch(/lack settings/);
  const [, ...statements] = problem.split('\n');
  for (const statement of statements) await database.pool.query(statement);
  await pooler.kill();
  await pooler.start();
  return statements;
}

test('a start reports a missing or wrong direct address, and the settings that the role lacks', async (context) => {
  if (missing !== null) context.skip(missing);
  const database = await createEmptyDatabase();
  const direct = database.connectionString;
  const name = new URL(direct).pathname.slice(1);
  await database.pool.query(`alter role current_user in database ${name} set timezone = 'Asia/Tokyo'`);
  await database.pool.query(`alter role current_user in database ${name} set lock_timeout = '1s'`);
  const pooler = await startPgBouncer(direct, sessions);
  const pooled = pooler.connectionString;
  const isPooled = /is the address of a pooler in transaction mode\. Set SLUICE_DATABASE_DIRECT_URL/;
  expect(await startFailure(pooled)).toMatch(isPooled);
  expect(await startFailure(pooled, pooled)).toMatch(isPooled);
  expect(await startFailure(pooled, direct.replace(/\/\w+$/, '/postgres'))).toMatch(/must point to the same database/);
  const statements = await makeMissingSettings(database, pooler);
  expect(statements[0]).toMatch(/^ {2}alter role "\w+" in database "\w+" set timezone = 'UTC';$/);
  expect(statements.join()).not.toContain('lock_timeout');
  expect(await startFailure(pooled, direct)).toBeNull();
});

test('a query that waits for a session of the pooler is not given up, and changes no session of others', async (context) => {
  if (missing !== null) context.skip(missing);
  const database = await createEmptyDatabase();
  const directUrl = database.connectionString;
  const { connectionString } = await startPgBouncer(directUrl, 1);
  const options = { connectionString, directUrl, applicationName: 'pooled', silenceMs: 100, askMs: 200 };
  const pool = createPool({ ...options, statementTimeoutMs: 60_000 }, pino({ level: 'silent' }));
  const db = createDatabase(pool);
  onTestFinished(() => db.destroy());
  const slow = sql`select pg_sleep(1.5)`.execute(db);
  const { rows } = await sql<{ timeout: string }>`select current_setting('statement_timeout') as timeout`.execute(db);
  expect(rows).toEqual([{ timeout: '0' }]);
  await slow;
});

test('processes that start together through PgBouncer create the queue once', async (context) => {
  if (missing !== null) context.skip(missing);
  const database = await createEmptyDatabase();
  const { connectionString } = await startPgBouncer(database.connectionString, sessions);
  const logger = pino({ level: 'silent' });
  const startQueue = async (): Promise<void> => {
    const queue = createJobQueue({ connectionString, role: 'sender', queues: [], logger, poolSizeMax: 1 });
    onTestFinished(async () => await queue.stop?.());
    await queue.start?.();
  };
  // The sessions remember from one round to the next, which a new session does not.
  for (let round = 0; round < 6; round += 1) {
    await sql`drop schema if exists pgboss cascade`.execute(database.db);
    await Promise.all(Array.from({ length: sessions }, startQueue));
  }
});

/** The types of the workspace's events in the stream, until one has this type. */
async function tailEvents({ baseURL, apiKey }: Client, until: string): Promise<string[]> {
  const response = await fetch(`${baseURL}/events/stream`, { headers: { authorization: `Bearer ${apiKey}` } });
  let text = '';
  const typesIn = (): string[] => [...text.matchAll(/"type":"([a-z_.]+)"/g)].map(([, type = '']) => type);
  for await (const piece of response.body ?? []) {
    text += Buffer.from(piece).toString();
    if (typesIn().includes(until)) break;
  }
  return typesIn();
}

const toIds = (lines: readonly Record<string, unknown>[]) => lines.map((line) => line['custom_id']);

test(
  'API and worker run through PgBouncer, and its crash loses and repeats no line',
  { timeout: 120_000 },
  async (context) => {
    if (missing !== null) context.skip(missing);
    const database = await createEmptyDatabase();
    const pooler = await startPgBouncer(database.connectionString, sessions);
    await makeMissingSettings(database, pooler);
    const installation = await prepareInstallation(pooler.connectionString, {
      SLUICE_DATABASE_DIRECT_URL: database.connectionString,
      SLUICE_CALLS_MAX: '20',
      SLUICE_CHUNK_LINES: '50',
    });
    const client = await installation.start();
    onTestFinished(() => installation.kill());
    const lines = chatLines(400, { model: '@simulator/sim-echo+100ms' });
    const ask = async (): Promise<void> => {
      const messages = [{ role: 'user', content: 'hello' }] as const;
      const answer = await client.chat.completions.create({ model: '@simulator/sim-echo', messages: [...messages] });
      expect(answer.choices[0]?.message.content).toContain('hello');
    };
    const expectWhole = async (batch: Batch): Promise<void> => {
      expect(batch).toMatchObject({ status: 'completed', request_counts: { completed: lines.length, failed: 0 } });
      expect((await resultsOf(client, batch)).customIds).toEqual(toIds(lines));
    };

    const tail = tailEvents(client, 'batch.completed');
    const first = await createBatch(sdk, client, lines);
    for (let call = 0; call < 20; call += 1) await ask();
    await expectWhole(await ended(client, first));
    expect(await tail).toEqual(expect.arrayContaining(['batch.created', 'batch.completed']));

    const second = await createBatch(sdk, client, lines);
    await eventually(
      async () => (await client.batches.retrieve(second.id)).request_counts?.completed ?? 0,
      (completed) => completed > 50,
    );
    await pooler.kill();
    await ask();
    await pooler.start();
    await expectWhole(await ended(client, second, 60_000));
    expect(installation.simulator.stats().requests).toEqual({ 'POST /v1/chat/completions': 2 * lines.length + 21 });
    const countLiveCalls = () =>
      installation.query(`select count(*)::int as count from request_log where kind = 'live'`);
    await eventually(countLiveCalls, ({ rows }) => rows[0].count === 21);
  },
);
