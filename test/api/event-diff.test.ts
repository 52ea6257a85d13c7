import { applyPatch } from 'rfc6902';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { eventually } from '#test/eventually.ts';
import { startPlatform, type TestPlatform } from '#test/platform.ts';
import { createWorkspace } from './second-workspace.ts';

type Json = Record<string, unknown>;
type Diff = {
  from: { version: number };
  to: { version: number };
  is_newest: boolean;
  patch: { op: string; path: string; value?: unknown }[];
  changes: { path: string; count: number; events: { type: string; stream_version: number; actor: Json }[] }[];
};

let platform: TestPlatform;
beforeAll(async () => {
  platform = await startPlatform({ worker: false });
});
afterAll(() => platform.stop());

async function call(method: string, path: string, body?: object, key = platform.adminKey) {
  const response = await fetch(platform.baseUrl + path, {
    method,
    headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
    ...(body === undefined ? {} : { body: JSON.stringify(body) }),
  });
  return { status: response.status, body: (await response.json()) as Json };
}

const diff = async (query: string): Promise<Diff> =>
  (await call('GET', `/events/diff?${query}`)).body as unknown as Diff;
const stateAt = async (query: string): Promise<Json> =>
  (await call('GET', `/events/replay?${query}`)).body['state'] as Json;

const weighted = (weight: number) => ({
  strategy: { mode: 'loadbalance' },
  targets: [
    { virtual_key: 'a', weight },
    { virtual_key: 'b', weight: 1 },
  ],
});

async function createChangedConfig(name: string): Promise<string> {
  const id = String((await call('POST', '/configs', { name, slug: name, config: weighted(1) })).body['id']);
  await call('PUT', `/configs/${name}`, { config: weighted(3) });
  await call('PUT', `/configs/${name}`, { name: `${name}, renamed` });
  return id;
}

test('a diff is the patch between two states, with the events behind each change', async () => {
  const id = await createChangedConfig('diffed');
  const whole = await diff(`stream=${id}`);
  expect(whole).toMatchObject({ from: { version: 0 }, to: { version: 3 }, is_newest: true });
  for (const [from, to] of [
    [1, 2],
    [1, 3],
    [2, 3],
    [3, 3],
  ]) {
    const { patch, changes } = await diff(`stream=${id}&from=${from}&to=${to}`);
    const state = await stateAt(`stream=${id}&version=${from}`);
    applyPatch(state, patch as never);
    expect(state).toEqual(await stateAt(`stream=${id}&version=${to}`));
    expect(new Set(changes.map(({ path }) => path))).toEqual(
      new Set(patch.map(({ path }) => `/${path.split('/')[1]}`)),
    );
  }
  const { patch, changes } = await diff(`stream=${id}&from=1&to=2`);
  expect(patch).toContainEqual({ op: 'replace', path: '/config/targets/0/weight', value: 3 });
  expect(changes.find(({ path }) => path === '/config')).toMatchObject({
    count: 1,
    events: [{ type: 'config.updated', stream_version: 2, actor: { type: 'api_key' } }],
  });
});

test('the moments can be times, and are checked', async () => {
  const id = await createChangedConfig('timed');
  const { body } = await eventually(
    () => call('GET', `/events?stream=${id}`),
    ({ body: list }) => (list['data'] as unknown[]).length === 3,
  );
  const [first, second] = (body['data'] as { recorded_at: string }[]).map(({ recorded_at: at }) => at);
  const before = new Date(Date.parse(first ?? '') - 1_000).toISOString();
  expect(await diff(`stream=${id}&from=${before}`)).toMatchObject({ from: { version: 0 }, to: { version: 3 } });
  expect((await diff(`stream=${id}&from=1&to=${second}`)).to.version).toBeGreaterThanOrEqual(2);
  expect(await call('GET', `/events/diff?stream=${id}&to=${before}`)).toMatchObject({ status: 404 });
  expect(await call('GET', '/events/diff?stream=nothing')).toMatchObject({ status: 404 });
  for (const query of ['from=2&to=1', `from=${second}&to=${before}`, 'from=yesterday']) {
    expect(await call('GET', `/events/diff?stream=${id}&${query}`)).toMatchObject({
      status: 400,
      body: { error: { code: 'invalid_value', param: 'from' } },
    });
  }
});

test('a diff shows no secret, and other workspaces no diff', async () => {
  const webhook = (token: string) => [
    { id: 'default.webhook', parameters: { webhookURL: 'https://example.com/hook', headers: { 'x-token': token } } },
  ];
  const made = await call('POST', '/guardrails', { name: 'hooked', checks: webhook('CANARY-1') });
  const id = String(made.body['id']);
  await call('PUT', '/guardrails/hooked', { checks: webhook('CANARY-2') });
  expect(JSON.stringify([await diff(`stream=${id}`), await diff(`stream=${id}&from=1`)])).not.toContain('CANARY');
  const other = await createWorkspace(platform);
  expect((await call('GET', `/events/diff?stream=${id}`, undefined, other)).status).toBe(404);
});

test('records of the organisation and deleted workspaces have states and diffs too', async () => {
  const [user] = (await call('GET', '/admin/users')).body['data'] as { id: string }[];
  expect(await diff(`stream=${user?.id}&workspace_id=org_default`)).toMatchObject({ from: { version: 0 } });
  expect(await stateAt(`stream=${user?.id}&workspace_id=org_default`)).toHaveProperty('email');
  const { body: workspace } = await call('POST', '/admin/workspaces', { name: 'Short-lived' });
  const place = `workspace_id=${String(workspace['id'])}`;
  const { body: key } = await call('POST', '/api-keys', { name: 'k', workspace_id: workspace['id'] });
  await call('POST', '/configs', { name: 'inside', config: weighted(1) }, String(key['key']));
  expect((await call('DELETE', `/admin/workspaces/${String(workspace['slug'])}`)).status).toBe(200);
  expect(await stateAt(`stream=${String(workspace['id'])}&${place}`)).toMatchObject({
    name: 'Short-lived',
    deleted_at: expect.any(String),
  });
  const { body } = await eventually(
    () => call('GET', `/events?${place}&type=config.created`),
    ({ body: list }) => (list['data'] as unknown[]).length === 1,
  );
  expect(body).toMatchObject({ data: [{ data: { name: 'inside' } }] });
  const other = await createWorkspace(platform);
  expect((await call('GET', `/events?${place}`, undefined, other)).status).toBe(404);
});
