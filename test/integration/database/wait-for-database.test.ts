import { createServer, type AddressInfo, type Server } from 'node:net';
import { pino } from 'pino';
import { expect, onTestFinished, test } from 'vitest';
import { assertNewEnough, createDatabaseWait, type DatabaseWaitOptions } from '#libs/database/wait-for-database.ts';
import { createPool } from '#libs/database/pool.ts';
import { ConfigurationError } from '#libs/kernel/read-env.ts';
import { eventually } from '#test/eventually.ts';
import { useTestDatabase } from '#test/postgres.ts';
import { startTcpProxy } from './tcp-proxy.ts';

const database = useTestDatabase();
const password = 'pass-of-the-test-4711';
const backoff = { firstMs: 1, maxMs: 4 };

function createWait(options: Partial<DatabaseWaitOptions> = {}) {
  const lines: string[] = [];
  const logger = pino({ level: 'trace' }, { write: (line: string) => void lines.push(line) });
  const { connectionString } = database;
  const wait = createDatabaseWait({ connectionString, logger, waitMsMax: 60_000, backoff, ...options });
  const logged = (): { msg: string; reason?: string }[] =>
    lines.map((line) => JSON.parse(line) as { msg: string; reason?: string });
  return { wait, lines, logged };
}

/** A server on a free port of 127.0.0.1 that does this with each connection, and where it is. */
async function serve(
  answer: Parameters<typeof createServer>[1],
): Promise<{ url: string; port: number; server: Server }> {
  const server = createServer(answer);
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  onTestFinished(() => void server.close());
  const { port } = server.address() as AddressInfo;
  return { url: `postgres://sluice:${password}@127.0.0.1:${port}/sluice`, port, server };
}

/** An ErrorResponse of the wire protocol, as Postgres sends it instead of an authentication request. */
function refusal(code: string, message: string): Buffer {
  const fields = Buffer.from(`SFATAL\0VFATAL\0C${code}\0M${message}\0\0`);
  const head = Buffer.from('E\0\0\0\0');
  head.writeInt32BE(fields.length + 4, 1);
  return Buffer.concat([head, fields]);
}

/** Nobody listens there until somebody does. */
async function unusedPort(): Promise<number> {
  const { port, server } = await serve(() => {});
  await new Promise((resolve) => server.close(resolve));
  return port;
}

const at = (url: string, change: (url: URL) => void): string => {
  const changed = new URL(url);
  change(changed);
  return changed.href;
};

const failure = async (work: Promise<void> | void | undefined): Promise<Error> => {
  try {
    await work;
  } catch (error) {
    return error as Error;
  }
  throw new Error('It did not fail.');
};

test('a database that answers is not waited for, and nothing is said', async () => {
  const { wait, lines } = createWait({ waitMsMax: 0 });
  await wait.part.start?.();
  expect(lines).toEqual([]);
});

test('one that comes up later is waited for, and the log says where and why, without the password', async () => {
  const port = await unusedPort();
  const target = new URL(database.connectionString);
  const connectionString = at(database.connectionString, (url) => (url.port = String(port)));
  const { wait, lines, logged } = createWait({ connectionString });
  const starting = wait.part.start?.();
  await expect.poll(() => logged().length, { timeout: 50_000 }).toBe(1);
  const proxy = await startTcpProxy(target.href, port);
  onTestFinished(() => proxy.close());
  await starting;
  const reason = expect.stringMatching(/ECONNREFUSED/);
  expect(logged()).toMatchObject([
    { msg: 'waiting for the database', level: 40, host: target.hostname, port, reason },
    { msg: 'the database answers', level: 30, waited_ms: expect.any(Number) },
  ]);
  expect(lines.join('')).not.toContain(target.password);
});

test.each([
  ['57P03', 'the database system is starting up'],
  ['57P03', 'the database system is shutting down'],
  ['53300', 'sorry, too many clients already'],
])(
  'a server that answers %s, "%s", is waited for, and a line of the log stands for many tries',
  async (code, message) => {
    let refusals = 0;
    const { port, server } = await serve((socket) => {
      socket.on('error', () => {});
      socket.once('data', () => socket.end(refusal(code, message)));
      refusals += 1;
      if (refusals === 25) server.close();
    });
    const { wait, logged } = createWait({
      connectionString: at(database.connectionString, (url) => (url.port = String(port))),
    });
    const starting = wait.part.start?.();
    await expect.poll(() => refusals, { timeout: 50_000 }).toBe(25);
    const proxy = await startTcpProxy(database.connectionString, port);
    onTestFinished(() => proxy.close());
    await starting;
    expect(logged().map(({ msg }) => msg)).toEqual(['waiting for the database', 'the database answers']);
    expect(logged()[0]?.reason).toBe(message);
  },
);

test('a server that takes connections and never says a word is given up, and so is a name that nobody knows', async () => {
  const silent = await serve((socket) => void socket.on('error', () => {}));
  for (const connectionString of [silent.url, `postgres://sluice:${password}@nowhere.invalid/sluice`]) {
    const { wait, lines } = createWait({ connectionString, waitMsMax: 30, probeTimeoutMs: 100 });
    const error = await failure(wait.part.start?.());
    expect(error).not.toBeInstanceOf(ConfigurationError);
    expect(error.message).toMatch(/^The database at \S+ did not answer within 0\.03 s \(SLUICE_DATABASE_WAIT\): \w/);
    expect(lines.join('')).not.toContain(password);
  }
});

test('a wrong password, an unknown database and a server without TLS that should have it end the start at once', async () => {
  const cases: [string, RegExp][] = [
    [at(database.connectionString, (url) => (url.pathname = '/nowhere')), /database "nowhere" does not exist/],
    [at(database.connectionString, (url) => (url.search = '?sslmode=require')), /does not support SSL/],
  ];
  const { url } = await serve((socket) => {
    socket.once('data', () => socket.end(refusal('28P01', 'password authentication failed for user "sluice"')));
  });
  cases.push([url, /password authentication failed for user "sluice"/]);
  for (const [connectionString, reason] of cases) {
    const { wait, lines } = createWait({ connectionString });
    const error = await failure(wait.part.start?.());
    expect(error).toBeInstanceOf(ConfigurationError);
    expect(error.message).toMatch(/^The database "\w+" at [^ ]+:\d+ cannot be used: .+\. Check DATABASE_URL\.$/);
    expect(error.message).toMatch(reason);
    expect(error.message + lines.join('')).not.toContain(password);
    expect(lines).toEqual([]);
  }
});

test('a server older than 15 is refused by its version', () => {
  expect(() => assertNewEnough('14.13 (Debian 14.13-1)', 'db:5432')).toThrow(
    'The database at db:5432 is PostgreSQL 14.13 (Debian 14.13-1); Sluice needs 15 or newer.',
  );
  for (const version of ['15.0', '18.1 (Ubuntu 18.1-1)', '19beta2']) assertNewEnough(version, 'db:5432');
});

test('an abort ends the wait at once, also in the middle of a try', async () => {
  const silent = await serve((socket) => void socket.on('error', () => {}));
  const refused = `postgres://127.0.0.1:${await unusedPort()}/sluice`;
  for (const connectionString of [silent.url, refused]) {
    const { wait, lines } = createWait({ connectionString, backoff: { firstMs: 3_600_000, maxMs: 3_600_000 } });
    const stopping = new AbortController();
    const starting = failure(wait.part.start?.(stopping.signal));
    if (connectionString === refused)
      await eventually(
        () => lines.length,
        (count) => count === 1,
      );
    stopping.abort(new Error('told to stop'));
    expect((await starting).message).toBe('told to stop');
  }
});

test('a step that loses its connection is begun anew, and another failure is its own', async () => {
  const proxy = await startTcpProxy(database.connectionString);
  onTestFinished(() => proxy.close());
  const { connectionString } = proxy;
  const { wait, logged } = createWait({ connectionString });
  const pool = createPool({ connectionString, applicationName: 'test', max: 1 }, pino({ level: 'silent' }));
  onTestFinished(() => pool.end());
  let tries = 0;
  const step = wait.outlasting({
    name: 'step',
    start: async () => {
      tries += 1;
      const query = pool.query('select pg_sleep(0.05)');
      if (tries <= 2) setTimeout(() => proxy.resetAll(), 10);
      await query;
    },
  });
  await step.start?.();
  expect(tries).toBe(3);
  expect(logged().map(({ msg }) => msg)).toContain('the database answers');

  const broken = wait.outlasting({
    name: 'broken',
    start: async () => void (await pool.query('select no_such_column')),
  });
  await expect(broken.start?.()).rejects.toThrow('column "no_such_column" does not exist');
});

test('all steps of a start share one time to wait', async () => {
  const { wait } = createWait({ waitMsMax: 200 });
  const away = Object.assign(new Error('connect ECONNREFUSED'), { code: 'ECONNREFUSED' });
  const awayFor = (tries: number) =>
    wait.outlasting({ name: 'step', start: () => (tries-- > 0 ? Promise.reject(away) : Promise.resolve()) });
  let steps = 0;
  // Each waits some 11 ms at least: four tries with pauses of 1, 2, 4 and 4 ms.
  const error = await failure(
    (async () => {
      for (; steps < 1_000; steps += 1) await awayFor(4).start?.();
    })(),
  );
  expect(error.message).toMatch(/did not answer within 0\.2 s/);
  expect(steps).toBeGreaterThan(0);
});

test('a part keeps its name and its stop', async () => {
  const { wait } = createWait();
  let stopped = 0;
  const part = wait.outlasting({ name: 'queue', stop: () => void (stopped += 1) });
  await part.start?.();
  await part.stop?.();
  expect([part.name, stopped]).toEqual(['queue', 1]);
});
