import { sql } from 'kysely';
import { expect, onTestFinished, test } from 'vitest';
import { composeApi } from '#apps/api/compose.ts';
import { ApiConfig } from '#apps/api/config.ts';
import { composeWorker } from '#apps/worker/compose.ts';
import { WorkerConfig } from '#apps/worker/config.ts';
import { stopAll } from '#libs/kernel/lifecycle.ts';
import { startAll } from '#test/start-parts.ts';
import { createLogger } from '#libs/kernel/logging/logger.ts';
import { eventually } from '#test/eventually.ts';
import { createTestDatabase, type TestDatabase } from '#test/postgres.ts';
import { query } from '../database/embedded-harness.ts';
import { startTcpProxy } from '../database/tcp-proxy.ts';
import { appEnvironment, startApp, unusedPort, type AppProcess } from './app-process.ts';

// An API and a worker that are started while their database is away: compose brings them up together, and a managed
// Postgres is restarted when its provider likes.

const logger = createLogger({ name: 'test', level: 'silent' });
const apps = ['api', 'worker'] as const;

/** A database as it is before the first start: no tables, and none of the queue's. */
async function emptyDatabase(): Promise<TestDatabase> {
  const database = await createTestDatabase();
  onTestFinished(() => database.drop());
  await sql`drop schema pgboss cascade`.execute(database.db);
  await sql`drop schema public cascade`.execute(database.db);
  await sql`create schema public`.execute(database.db);
  return database;
}

function at(connectionString: string, change: (url: URL) => void): string {
  const url = new URL(connectionString);
  change(url);
  return url.href;
}

/** Where the process answers probes, from the first moment on. */
async function originOf(app: (typeof apps)[number], process: AppProcess): Promise<string> {
  const message = app === 'api' ? 'starting' : 'health and metrics';
  const [line] = await eventually(
    () => process.said(message),
    (lines) => lines.length > 0,
  );
  return line?.url ?? `http://127.0.0.1:${line?.port}`;
}

test('started before Postgres, both wait alive but not ready, and serve when it is there', async () => {
  const database = await emptyDatabase();
  const port = await unusedPort();
  const environment = await appEnvironment(at(database.connectionString, (url) => (url.port = String(port))));
  const processes = apps.map((app) => ({ app, process: startApp(app, environment) }));
  const origins: string[] = [];
  for (const { app, process } of processes) {
    const origin = await originOf(app, process);
    origins.push(origin);
    await eventually(
      () => process.said('waiting for the database'),
      (lines) => lines.length === 1,
    );
    expect(process.said('waiting for the database')[0]).toMatchObject({
      level: 'warn',
      host: new URL(database.connectionString).hostname,
      port,
      reason: expect.stringContaining('ECONNREFUSED'),
    });
    expect((await fetch(`${origin}/health/live`)).status).toBe(200);
    const ready = await fetch(`${origin}/health/ready`);
    expect([ready.status, await ready.json()]).toMatchObject([
      503,
      { error: { code: 'not_ready', message: expect.stringMatching(/process: starting; database: does not answer/) } },
    ]);
    expect((await fetch(`${origin}/metrics`)).status).toBe(200);
  }
  const headers = { authorization: `Bearer ${environment['SLUICE_BOOTSTRAP_KEY']}` };
  const early = await fetch(`${origins[0]}/v1/models`, { headers });
  expect([early.status, early.headers.get('retry-after'), await early.json()]).toMatchObject([
    503,
    '1',
    { error: { code: 'starting' } },
  ]);

  const proxy = await startTcpProxy(database.connectionString, port);
  onTestFinished(() => proxy.close());
  for (const origin of origins) {
    await eventually(
      async () => (await fetch(`${origin}/health/ready`)).status,
      (status) => status === 200,
    );
  }
  expect((await fetch(`${origins[0]}/v1/models`, { headers })).status).toBe(200);
  for (const { process } of processes) {
    expect(process.said('the database answers')).toHaveLength(1);
    process.signal('SIGTERM');
    expect(await process.ended).toBe(0);
    expect(process.output()).not.toContain(new URL(database.connectionString).password);
    expect(process.stderr()).toBe('');
  }
});

test('SIGTERM during the wait ends both in order, with status 0', async () => {
  const environment = await appEnvironment(`postgres://sluice:pass@127.0.0.1:${await unusedPort()}/sluice`);
  const stopOne = async (app: (typeof apps)[number]): Promise<void> => {
    const process = startApp(app, environment);
    await eventually(
      () => process.said('waiting for the database'),
      (lines) => lines.length > 0,
    );
    process.signal('SIGTERM');
    expect(await process.ended).toBe(0);
    expect(
      process
        .logged()
        .slice(-2)
        .map(({ msg }) => msg),
    ).toEqual(['stopping', 'stopped']);
  };
  await Promise.all(apps.map(stopOne));
});

test('a database that does not come within the time to wait ends the start with status 1 and the reason', async () => {
  const environment = await appEnvironment(`postgres://sluice:pass@127.0.0.1:${await unusedPort()}/sluice`);
  const startOne = async (app: (typeof apps)[number]): Promise<void> => {
    const process = startApp(app, { ...environment, SLUICE_DATABASE_WAIT: '300ms' });
    expect(await process.ended).toBe(1);
    expect(process.said('start failed')).toMatchObject([
      { level: 'fatal', err: { message: expect.stringMatching(/did not answer within 0\.3 s .+ECONNREFUSED/) } },
    ]);
  };
  await Promise.all(apps.map(startOne));
});

test('a wrong password and an unknown database end the start at once, with one line that says so', async (context) => {
  const { connectionString } = await emptyDatabase();
  const wrong = 'not-the-password-4711';
  const refused = at(connectionString, (url) => (url.password = wrong));
  const asksForPassword = await query(refused, 'select 1').then(
    () => false,
    () => true,
  );
  context.skip(!asksForPassword, 'this Postgres lets everybody in');
  const cases: [string, RegExp][] = [
    [refused, /password authentication failed for user "\w+"/],
    [at(connectionString, (url) => (url.pathname = '/nowhere')), /database "nowhere" does not exist/],
  ];
  const startOne = async (app: (typeof apps)[number]): Promise<void> => {
    for (const [url, reason] of cases) {
      const process = startApp(app, await appEnvironment(url));
      expect(await process.ended).toBe(1);
      expect(process.stderr()).toMatch(/^The database "\w+" at [^ ]+ cannot be used: .+\. Check DATABASE_URL\.\n$/);
      expect(process.stderr()).toMatch(reason);
      expect(process.said('start failed')).toMatchObject([
        { level: 'fatal', problem: expect.stringMatching('Check DATABASE_URL') },
      ]);
      expect(process.said('waiting for the database')).toEqual([]);
      expect(process.output()).not.toContain(wrong);
    }
  };
  await Promise.all(apps.map(startOne));
});

test.each([1, 8, 25, 50, 75, 100])(
  'an API and a worker that lose the database at its answer %i go on with their start when it is back',
  async (answer) => {
    const database = await emptyDatabase();
    const proxy = await startTcpProxy(database.connectionString);
    onTestFinished(() => proxy.close());
    const environment = await appEnvironment(proxy.connectionString);
    for (const app of apps) {
      let answers = 0;
      proxy.setFilter(() => {
        answers += 1;
        // Away for this one, and for the first answer of the next try.
        if (answers < answer || answers > answer + 1) return true;
        proxy.resetAll();
        return false;
      });
      const { parts } =
        app === 'api'
          ? await composeApi(ApiConfig.parse(environment), logger)
          : await composeWorker(WorkerConfig.parse(environment), logger);
      try {
        await startAll(parts, logger);
        expect(answers).toBeGreaterThan(answer + 1);
      } finally {
        await stopAll(parts, logger);
      }
      proxy.setFilter(() => true);
    }
    const { rows } = await sql<{ keys: number; queues: number }>`
      select (select count(*)::int from resource where kind = 'api_key') as keys, (select count(*)::int from pgboss.queue) as queues`.execute(
      database.db,
    );
    expect(rows[0]).toMatchObject({ keys: 1 });
    expect(rows[0]?.queues).toBeGreaterThanOrEqual(7);
  },
);
