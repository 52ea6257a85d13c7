import { Agent, request as httpRequest } from 'node:http';
import { sql } from 'kysely';
import { expect, onTestFinished, test } from 'vitest';
import { sleep } from '#libs/kernel/sleep.ts';
import { eventually } from '#test/eventually.ts';
import { freePort } from '#test/free-port.ts';
import { listens } from '#test/listens.ts';
import { startPlatform } from '#test/platform.ts';
import { isAlive } from '../database/embedded-harness.ts';
import { appEnvironment, startApp, unusedPort, type AppProcess } from './app-process.ts';

// An API of two processes on one port.

const listening = 'all API processes are listening';

type Api = { api: AppProcess; port: number; operationsPort: number; key: string; pids: () => number[] };

/** The database and the simulator are those of a platform in this process, whose own API is not used. */
async function startTwo(more: Record<string, string> = {}) {
  const platform = await startPlatform({ worker: false });
  onTestFinished(() => platform.stop());
  const [port, operationsPort] = [await freePort(), await freePort()];
  const api = startApp('api', {
    ...platform.environment,
    SLUICE_API_PROCESSES: '2',
    PORT: String(port),
    ...(more['SLUICE_OPERATIONS_PORT'] === '' ? {} : { SLUICE_OPERATIONS_PORT: String(operationsPort) }),
    ...more,
  });
  await eventually(
    () => api.said(listening),
    (lines) => lines.length === 1,
  );
  const pids = () => api.said('listening').map(({ pid }) => pid);
  return { api, port, operationsPort, key: platform.adminKey, pids, database: platform.database };
}

/** One call: its status, or the error. Without an agent, it has its own connection. */
function call({ port, key }: Pick<Api, 'port' | 'key'>, options: { agent?: Agent; latency?: string } = {}) {
  const { agent = false, latency = '20ms' } = options;
  return new Promise<number | string>((resolve) => {
    const headers = { authorization: `Bearer ${key}`, 'content-type': 'application/json' };
    const request = httpRequest({ agent, port, method: 'POST', path: '/v1/chat/completions', headers }, (response) => {
      response.on('error', (error) => resolve(String(error)));
      response.on('end', () => resolve(response.statusCode ?? 0));
      response.resume();
    });
    request.on('error', (error) => resolve(String(error)));
    const messages = [{ role: 'user', content: 'hello' }];
    request.end(JSON.stringify({ model: `@simulator/sim-echo+${latency}`, messages }));
  });
}

const callMany = async (count: number, api: Api, latency?: string) =>
  await Promise.all(
    Array.from({ length: count }, async () => await call(api, latency === undefined ? {} : { latency })),
  );

async function readMetrics(port: number): Promise<string> {
  const response = await fetch(`http://127.0.0.1:${port}/metrics`);
  expect(response.status).toBe(200);
  return await response.text();
}

/** The sum of all values of a metric. */
const total = (metrics: string, name: string): number =>
  [...metrics.matchAll(new RegExp(`^${name}(?:\\{.*\\})? (\\S+)$`, 'gm'))].reduce(
    (sum, [, value]) => sum + Number(value),
    0,
  );

async function readReadiness(port: number): Promise<[number, unknown]> {
  const response = await fetch(`http://127.0.0.1:${port}/health/ready`);
  return [response.status, await response.json()];
}

test('both processes serve calls, their metrics are summed, and SIGTERM lets running calls finish', async () => {
  const started = await startTwo();
  const { api, port, operationsPort, pids, database } = started;
  expect(new Set(pids()).size).toBe(2);
  expect(await callMany(40, started)).toEqual(Array(40).fill(200));

  const metrics = await readMetrics(operationsPort);
  expect(total(metrics, 'sluice_calls_total')).toBe(40);
  expect(total(metrics, 'sluice_call_duration_seconds_count')).toBe(40);
  for (const process of [1, 2]) {
    expect(metrics).toMatch(new RegExp(`^sluice_build_info\\{version="[^"]+",process="${process}"\\} 1$`, 'm'));
    expect(metrics).toMatch(new RegExp(`^process_resident_memory_bytes\\{process="${process}"\\} \\d+$`, 'm'));
  }
  // Each has half of the connections.
  expect(total(metrics, 'sluice_memory_max_bytes')).toBeGreaterThan(50 * 1_048_576);
  expect((await fetch(`http://127.0.0.1:${port}/metrics`)).status).toBe(404);
  expect(await readReadiness(operationsPort)).toMatchObject([
    200,
    { status: 'ready', checks: { process: 'ok', database: 'ok', processes: '2 of 2' } },
  ]);
  const { rows } = await eventually(
    () =>
      sql<{ calls: number }>`select count(*)::int as calls from request_log group by process_id`.execute(database.db),
    (found) => found.rows.reduce((sum, { calls }) => sum + calls, 0) === 40,
  );
  expect(rows).toHaveLength(2);
  const { rows: starts } = await sql<{ data: { is_standalone: boolean; settings: Record<string, unknown> } }>`
    select data from event where type = 'organisation.process_started' order by position desc limit 2`.execute(
    database.db,
  );
  for (const { data } of starts) {
    expect(data).toMatchObject({
      is_standalone: false,
      settings: { SLUICE_API_PROCESSES: 2, SLUICE_DB_POOL_MAX: 5, SLUICE_CONNECTIONS: 2_048 },
    });
  }

  const running = callMany(10, started, '700ms');
  await eventually(
    async () => total(await readMetrics(operationsPort), 'sluice_forwarding_open_calls'),
    (calls) => calls === 10,
  );
  api.signal('SIGTERM');
  expect(await running).toEqual(Array(10).fill(200));
  expect(await api.ended).toBe(0);
  expect(api.said('stopped')).toHaveLength(3);
  expect(api.stderr()).toBe('');
}, 120_000);

test('a process that is killed is replaced, and only calls on its connections fail', async () => {
  // Without an operations port: each process serves the metrics of both.
  const started = await startTwo({ SLUICE_OPERATIONS_PORT: '' });
  const { api, port, pids } = started;
  expect(await callMany(20, started)).toEqual(Array(20).fill(200));
  expect(total(await readMetrics(port), 'sluice_calls_total')).toBe(20);

  const over = new AbortController();
  const lost: (number | string)[][] = [];
  const clients = Promise.all(
    Array.from({ length: 16 }, async (_value, client) => {
      const agent = new Agent({ keepAlive: true, maxSockets: 1 });
      lost[client] = [];
      while (!over.signal.aborted) {
        const answer = await call(started, { agent });
        if (answer !== 200) lost[client].push(answer);
      }
      agent.destroy();
    }),
  );
  await sleep(300);
  const [killed = 0] = pids();
  process.kill(killed, 'SIGKILL');
  // Its sockets are closed when its last thread has ended. Then the parent reports it.
  await eventually(
    () => api.logged().filter(({ msg }) => /^the API process \d was killed by SIGKILL; restarting it/.test(msg)),
    (lines) => lines.length === 1,
  );
  // Every new connection goes to the process that is left, also while its sibling starts.
  while (pids().length < 3) expect(await call(started)).toBe(200);
  const later = await eventually(
    () => readMetrics(port),
    (metrics) => total(metrics, 'sluice_build_info') === 2,
  );
  expect(total(later, 'sluice_calls_total')).toBeGreaterThan(20);
  over.abort();
  await clients;
  // A client can lose the call that was running, and none after it.
  expect(lost.filter((calls) => calls.length > 1)).toEqual([]);
  api.signal('SIGTERM');
  expect(await api.ended).toBe(0);
}, 120_000);

test('a parent that is killed takes its processes with it', async () => {
  const { api, port, pids } = await startTwo();
  api.signal('SIGKILL');
  await eventually(
    () => pids().filter((pid) => isAlive(pid)),
    (alive) => alive.length === 0,
  );
  expect(await listens(port)).toBe(false);
}, 120_000);

test('a start that fails in a process, and a port in use, end the start with status 1', async () => {
  const environment = { ...(await appEnvironment(`postgres://sluice:pass@127.0.0.1:${await unusedPort()}/sluice`)) };
  const several = { SLUICE_API_PROCESSES: '2', SLUICE_DATABASE_WAIT: '300ms' };
  const api = startApp('api', { ...environment, ...several });
  expect(await api.ended).toBe(1);
  expect(api.said('start failed').at(-1)).toMatchObject({
    err: { message: expect.stringMatching(/^The API process \d could not be started: it exited with code 1\.$/) },
  });

  const first = await startTwo();
  const second = startApp('api', { ...environment, ...several, PORT: String(first.port) });
  expect(await second.ended).toBe(1);
  expect(second.output()).toContain('EADDRINUSE');
  expect(second.said('waiting for the database')).toEqual([]);
}, 120_000);
