import { execFile } from 'node:child_process';
import { existsSync, readFileSync, statSync } from 'node:fs';
import { readFile, rm } from 'node:fs/promises';
import path from 'node:path';
import { promisify } from 'node:util';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { removeEmbeddedPostgres } from '#libs/database/embedded/start-embedded-postgres.ts';
import { makeDatabaseFolder } from '#test/database-folder.ts';
import { isAlive, until } from '../database/embedded-harness.ts';
import { environmentOf, npmStart, run, standaloneEnvironment, type NpmStart } from './npm-start.ts';

const canary = 'canary-of-the-shell-0123456789';
const apps = ['api', 'worker', 'simulator'] as const;

let folder = '';
let dataDir = '';
let env: Record<string, string> = {};
let platform: NpmStart;
let adminKey = '';

const start = async (): Promise<void> => {
  platform = await npmStart(env);
};

const pids = (): number[] => Object.values(platform.children()).filter((pid) => pid !== undefined);

/** When a process wrote a message into its log last; ISO times sort as text. */
function timeOf(app: string, message: string): string {
  const lines = readFileSync(path.join(dataDir, 'logs', `${app}.log`), 'utf8')
    .trimEnd()
    .split('\n');
  const records = lines.map((line) => JSON.parse(line) as { msg: string; time: string });
  const found = records.findLast(({ msg }) => msg === message);
  if (found === undefined) throw new Error(`no "${message}" in the log of ${app}`);
  return found.time;
}

/** Status of a live completion; 0 while nobody listens. */
async function complete(): Promise<number> {
  try {
    const response = await fetch(`${platform.baseUrl}/chat/completions`, {
      method: 'POST',
      headers: { authorization: `Bearer ${adminKey}`, 'content-type': 'application/json' },
      body: JSON.stringify({ model: '@simulator/sim-small', messages: [{ role: 'user', content: 'Hello' }] }),
    });
    await response.arrayBuffer();
    return response.status;
  } catch {
    return 0;
  }
}

async function upload(): Promise<Response> {
  const line = { custom_id: 'a', method: 'POST', url: '/v1/chat/completions', body: { model: '@simulator/sim-small' } };
  const body = { ...line, body: { ...line.body, messages: [{ role: 'user', content: 'Hello' }] } };
  const form = new FormData();
  form.set('purpose', 'batch');
  form.set('file', new Blob([`${JSON.stringify(body)}\n`]), 'one.jsonl');
  const headers = { authorization: `Bearer ${adminKey}` };
  return await fetch(`${platform.baseUrl}/files`, { method: 'POST', headers, body: form });
}

/** Sends a batch of one line and returns its status when it has ended. */
async function runBatch(): Promise<string> {
  const { id } = (await (await upload()).json()) as { id: string };
  const headers = { authorization: `Bearer ${adminKey}`, 'content-type': 'application/json' };
  const order = { input_file_id: id, endpoint: '/v1/chat/completions', completion_window: '24h' };
  const response = await fetch(`${platform.baseUrl}/batches`, { method: 'POST', headers, body: JSON.stringify(order) });
  const batch = (await response.json()) as { id: string };
  for (;;) {
    const now = await fetch(`${platform.baseUrl}/batches/${batch.id}`, { headers });
    const { status } = (await now.json()) as { status: string };
    if (['completed', 'failed', 'expired', 'cancelled'].includes(status)) return status;
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

beforeAll(async () => {
  folder = await makeDatabaseFolder('sluice-standalone-');
  dataDir = path.join(folder, 'data');
  env = standaloneEnvironment(dataDir, { AWS_SECRET_ACCESS_KEY: canary });
  await start();
  adminKey = /^admin key {2}(\S+)$/m.exec(platform.stdout())?.[1] ?? '';
});

afterAll(async () => {
  platform.signal('SIGTERM');
  await platform.ended;
  await removeEmbeddedPostgres(dataDir);
  await rm(folder, { recursive: true, force: true, maxRetries: 5 });
});

// In this order: each test finds the platform as the one before left it, because a start takes seconds.
describe('npm start', () => {
  test('prints a line to try that works as it is printed', async () => {
    const line = /^curl .*$/m.exec(platform.stdout())?.[0] ?? '';
    const { stdout } = await promisify(execFile)('/bin/sh', ['-c', line]);
    expect(JSON.parse(stdout)).toMatchObject({ object: 'chat.completion', model: 'sim-small' });
  });

  test('keeps its keys in files that only their owner can read', async () => {
    expect((await readFile(path.join(dataDir, 'admin.key'), 'utf8')).trim()).toBe(adminKey);
    for (const name of ['admin.key', 'master.key', 'runtime.json']) {
      expect(statSync(path.join(dataDir, name)).mode & 0o777).toBe(0o600);
    }
  });

  test('gives each process what it needs of the environment and nothing else', () => {
    const children = platform.children();
    for (const app of apps) expect([...environmentOf(children[app] ?? 0).values()]).not.toContain(canary);
    const simulator = environmentOf(children.simulator ?? 0);
    expect([...simulator.keys()].filter((name) => name.startsWith('SLUICE_') || name === 'DATABASE_URL')).toEqual([]);
    expect(environmentOf(children.worker ?? 0).has('SLUICE_BOOTSTRAP_KEY')).toBe(false);
  });

  test('the command line tool works on its database while it runs', async () => {
    const { code, stdout } = await run(['apps/cli/main.ts', 'check', 'records', '--json'], env);
    expect(code).toBe(0);
    expect(JSON.parse(stdout)).toMatchObject({ check: 'records', ok: true, counts: { rows: expect.any(Number) } });
  });

  test('the command line finds it and its admin key without a login', async () => {
    const none = { XDG_CONFIG_HOME: path.join(dataDir, 'no-config'), SLUICE_URL: '', SLUICE_API_KEY: '' };
    const { code, stdout } = await run(['apps/cli/main.ts', 'whoami'], { ...env, ...none });
    expect(code).toBe(0);
    expect(JSON.parse(stdout)).toMatchObject({ from: `npm start in ${path.resolve(dataDir)}`, scopes: 'all' });
  });

  test('its processes account for their rows of the request log', async () => {
    expect(await complete()).toBe(200);
    const { code, stdout } = await run(['apps/cli/main.ts', 'check', 'logs', '--json'], env);
    expect(code).toBe(0);
    expect(JSON.parse(stdout)).toMatchObject({ ok: true, counts: { missing_rows: 0, running_processes: 2 } });
  });

  test('a killed API and a killed worker come back and serve', async () => {
    const before = platform.children();
    for (const app of ['api', 'worker'] as const) process.kill(before[app] ?? 0, 'SIGKILL');
    await until(async () => (await complete()) === 200);
    expect(await runBatch()).toBe('completed');
    const after = platform.children();
    expect(after.simulator).toBe(before.simulator);
    expect([after.api, after.worker]).not.toContain(before.api);
    expect([after.api, after.worker]).not.toContain(before.worker);
    expect(platform.stderr()).toContain('the worker was killed by SIGKILL');
  });

  test('a killed database comes back on its data, while live calls go on', async () => {
    process.kill(platform.children().postgres ?? 0, 'SIGKILL');
    expect(await complete()).toBe(200);
    await until(async () => (await upload()).status === 200);
    expect(await runBatch()).toBe('completed');
  });

  test('a second start on the same data directory or port is refused in one line', async () => {
    const same = await run(['apps/standalone/main.ts'], env);
    expect(same).toMatchObject({ code: 1, stderr: expect.stringMatching(/^Another Sluice is running in .+\n$/) });
    const port = new URL(platform.baseUrl).port;
    const other = { ...env, SLUICE_DATA_DIR: path.join(folder, 'other'), PORT: port };
    const taken = await run(['apps/standalone/main.ts'], other);
    expect(taken).toMatchObject({
      code: 1,
      stderr: expect.stringMatching(/^Port \d+ on 127\.0\.0\.1 is already in use.+\n$/),
    });
  });

  test('when it is killed its processes end by themselves, and the next start works at once with the same key', async () => {
    const orphans = pids();
    expect(orphans).toHaveLength(4);
    // The same port again, which an orphan might still have.
    env = { ...env, PORT: new URL(platform.baseUrl).port };
    platform.signal('SIGKILL');
    await platform.ended;
    await start();
    expect(platform.stdout()).not.toContain(adminKey);
    expect(await complete()).toBe(200);
    await until(() => orphans.every((pid) => !isAlive(pid)));
  });

  test('SIGTERM ends API, worker, simulator and database, one after the other, and it exits 0', async () => {
    const running = pids();
    expect(running).toHaveLength(4);
    platform.signal('SIGTERM');
    expect(await platform.ended).toMatchObject({ code: 0, stdout: expect.stringMatching(/stopped\n$/) });
    expect(running.filter((pid) => isAlive(pid))).toEqual([]);
    expect(existsSync(path.join(dataDir, 'runtime.json'))).toBe(false);
    const times = apps.flatMap((app) => [timeOf(app, 'stopping'), timeOf(app, 'stopped')]);
    expect(times).toEqual(times.toSorted());
  });

  test('the command line tool starts the database itself when nothing runs', async () => {
    const { code, stdout } = await run(['apps/cli/main.ts', 'check'], env);
    const names = ['records', 'digests', 'seal', 'logs', 'calls', 'analytics', 'budgets', 'results'];
    expect(code).toBe(0);
    for (const name of names) expect(stdout).toMatch(new RegExp(`^${name} +ok `, 'm'));
  });

  test('an API that was stopped by SIGTERM has told of its last row', async () => {
    const { stdout } = await run(['apps/cli/main.ts', 'check', 'logs', '--json'], env);
    const { ok, counts } = JSON.parse(stdout) as { ok: boolean; counts: Record<string, number> };
    expect({ ok, missing: counts['missing_rows'] }).toEqual({ ok: true, missing: 0 });
    expect(counts['stopped_processes']).toBeGreaterThan(0);
  });
});

test('the command line tool tells wrong usage from failure by its exit code', async () => {
  const none = { ...env, SLUICE_DATA_DIR: path.join(folder, 'none') };
  expect((await run(['apps/cli/main.ts', 'check', '--reapir'], none)).code).toBe(2);
  expect((await run(['apps/cli/main.ts', 'check', 'everything'], none)).code).toBe(2);
  const missing = await run(['apps/cli/main.ts', 'check'], none);
  expect(missing).toMatchObject({ code: 1, stdout: '', stderr: expect.stringContaining('There is no database in') });
});
