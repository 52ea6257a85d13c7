import { afterAll, beforeAll, expect, test } from 'vitest';
import { startPlatform, type TestPlatform } from '#test/platform.ts';

let platform: TestPlatform;
beforeAll(async () => {
  platform = await startPlatform();
});
afterAll(() => platform.stop());

type System = {
  processes: { app: string; version: string; host: string; state: string }[];
  queues: { name: string }[];
  subscribers: { name: string; failures: number }[];
  database: { size_bytes: number; connections: number; tables: { name: string }[] };
  read_model_check: { state: string; events: number; problem: string | null } | null;
};

const call = async (path: string, { key = platform.adminKey, method = 'GET' } = {}): Promise<Response> =>
  await fetch(`${platform.baseUrl}${path}`, { method, headers: { authorization: `Bearer ${key}` } });
const system = async (): Promise<System> => (await (await call('/admin/system')).json()) as System;

test('the state of the installation names its processes, queues, subscribers and largest tables', async () => {
  const { version } = (await import('#libs/kernel/version.ts')) as { version: string };
  await expect
    .poll(async () => (await system()).processes.map(({ app }) => app).toSorted(), { timeout: 10_000 })
    .toEqual(['api', 'worker']);
  const { processes, queues, subscribers, database } = await system();
  for (const process of processes) expect(process).toMatchObject({ version, state: 'running' });
  expect(queues.map(({ name }) => name)).toContain('check-read-models');
  expect(subscribers.map(({ failures }) => failures)).toEqual(subscribers.map(() => 0));
  expect(database.size_bytes).toBeGreaterThan(1_000_000);
  expect(database.connections).toBeGreaterThan(0);
  expect(database.tables.length).toBe(10);
});

test('a worker compares the read models with the log when it is asked, and names the row that differs', async () => {
  const ask = async (): Promise<string> => {
    const asked = (await (await call('/admin/system/checks', { method: 'POST' })).json()) as { state: string };
    expect(asked.state).toMatch(/waiting|running/);
    await expect
      .poll(async () => (await system()).read_model_check?.state, { timeout: 20_000 })
      .not.toMatch(/waiting|running/);
    return (await system()).read_model_check?.state ?? '';
  };
  expect(await ask()).toBe('equal');
  expect((await system()).read_model_check?.events).toBeGreaterThan(0);

  const config = { name: 'Changed by hand', config: { retry: { attempts: 1 } } };
  const made = await fetch(`${platform.baseUrl}/configs`, {
    method: 'POST',
    headers: { authorization: `Bearer ${platform.adminKey}`, 'content-type': 'application/json' },
    body: JSON.stringify(config),
  });
  const { id } = (await made.json()) as { id: string };
  await platform.database.pool.query(`update resource set data = data || '{"name": "another"}' where id = $1`, [id]);
  expect(await ask()).toBe('different');
  expect((await system()).read_model_check?.problem).toContain(id);
});

test('a key of a workspace sees nothing of the installation', async () => {
  const made = await fetch(`${platform.baseUrl}/api-keys`, {
    method: 'POST',
    headers: { authorization: `Bearer ${platform.adminKey}`, 'content-type': 'application/json' },
    body: JSON.stringify({ name: 'of a workspace' }),
  });
  const { key } = (await made.json()) as { key: string };
  for (const [path, method] of [
    ['/admin/system', 'GET'],
    ['/admin/system/checks', 'POST'],
  ] as const) {
    const refused = await call(path, { key, method });
    expect(refused.status).toBe(403);
    expect(await refused.json()).toMatchObject({ error: { code: 'organisation_key_required' } });
  }
});
