import { afterAll, beforeAll, expect, test } from 'vitest';
import { inlineModels } from '#apps/platform/models.ts';
import { checkInlineModels } from '#libs/event-log/rebuild.ts';
import { startPlatform, type TestPlatform } from '#test/platform.ts';
import { createWorkspace } from './second-workspace.ts';

let platform: TestPlatform;
beforeAll(async () => {
  platform = await startPlatform({ worker: false, environment: { SLUICE_TRUSTED_PROXIES: '127.0.0.0/8' } });
});
afterAll(() => platform?.stop());

type Answer = { status: number; body: Record<string, string> & { data: Record<string, string>[]; error: object } };

async function call(method: string, path: string, body?: object, key = platform.adminKey): Promise<Answer> {
  const response = await fetch(`${platform.baseUrl}${path}`, {
    method,
    headers: {
      authorization: `Bearer ${key}`,
      'content-type': 'application/json',
      'x-forwarded-for': '192.0.2.7',
    },
    ...(body === undefined ? {} : { body: JSON.stringify(body) }),
  });
  return { status: response.status, body: (await response.json()) as Answer['body'] };
}

async function makeWorkspace(name: string): Promise<{ id: string; key: string; keyId: string }> {
  const { body } = await call('POST', '/admin/workspaces', { name });
  const made = await call('POST', '/api-keys', { name: 'ci', workspace_id: body['slug'] });
  return { id: body['id'] ?? '', key: made.body['key'] ?? '', keyId: made.body['id'] ?? '' };
}

test('the key of the organisation makes, finds, changes and deletes workspaces', async () => {
  const made = await call('POST', '/admin/workspaces', { name: 'Search Team', description: 'finds' });
  expect(made).toMatchObject({
    status: 200,
    body: { object: 'workspace', slug: 'search-team', name: 'Search Team', description: 'finds', status: 'active' },
  });
  expect(made.body['id']).toMatch(/^ws_[0-9a-f]{32}$/);
  expect(new Date(made.body['created_at'] ?? '').toISOString()).toBe(made.body['created_at']);
  expect((await call('POST', '/admin/workspaces', { name: 'x', slug: 'search-team' })).status).toBe(409);
  const changed = await call('PUT', '/admin/workspaces/search-team', { name: 'Finders' });
  expect(changed.body).toMatchObject({
    id: made.body['id'],
    slug: 'search-team',
    name: 'Finders',
    description: 'finds',
  });
  expect((await call('GET', `/admin/workspaces/${made.body['id']}`)).body).toEqual({ ...changed.body, users: [] });
  expect((await call('GET', '/admin/workspaces?exact_name=Finders')).body).toMatchObject({ total: 1 });
  expect((await call('GET', '/admin/workspaces?name=inder&page_size=1&current_page=0')).body.data).toEqual([
    changed.body,
  ]);
  expect((await call('GET', '/admin/workspaces')).body.data.map(({ slug }) => slug)).toEqual([
    'search-team',
    'default',
  ]);
  expect((await call('DELETE', '/admin/workspaces/search-team')).body).toMatchObject({ deleted: true });
  expect(await call('GET', '/admin/workspaces/search-team')).toMatchObject({
    status: 404,
    body: { error: { code: 'workspace_not_found' } },
  });
  expect(await call('DELETE', '/admin/workspaces/default')).toMatchObject({
    status: 409,
    body: { error: { code: 'own_workspace' } },
  });
});

test('the weight of a workspace is 1 until it is set, and then holds for all work of its batches', async () => {
  const { id, key } = await makeWorkspace('Heavy');
  const path = `/admin/workspaces/${id}`;
  expect((await call('GET', path)).body).toMatchObject({ batch_weight: 1 });
  expect(await call('PUT', path, { batch_weight: 3 })).toMatchObject({ status: 200, body: { batch_weight: 3 } });
  for (const batch_weight of [0.09, 100.1, '3'])
    expect(await call('PUT', path, { batch_weight })).toMatchObject({
      status: 400,
      body: { error: { param: 'batch_weight' } },
    });
  expect((await call('PUT', path, { batch_weight: 100 }, key)).status).toBe(403);
  const shares = await platform.database.db
    .selectFrom('batch_share')
    .select('weight')
    .where('workspace_id', '=', id)
    .execute();
  expect(shares).toEqual([{ weight: 3 }, { weight: 3 }, { weight: 3 }]);
});

test('a key is bound to its workspace, and a deleted workspace ends its keys at once', async () => {
  const { id, key, keyId } = await makeWorkspace('bound');
  expect((await call('GET', `/api-keys/${keyId}`, undefined, key)).body).toMatchObject({
    workspace_id: id,
    type: 'workspace-service',
  });
  expect(await call('GET', `/api-keys/${keyId}`)).toMatchObject({ status: 200, body: { workspace_id: id } });
  expect((await call('GET', `/api-keys/${keyId}?workspace_id=${id}`)).status).toBe(200);
  expect((await call('GET', `/api-keys?workspace_id=bound`)).body.data).toMatchObject([{ id: keyId }]);
  expect((await call('DELETE', '/admin/workspaces/bound')).status).toBe(200);
  expect((await call('GET', '/configs', undefined, key)).status).toBe(401);
  expect((await call('POST', '/api-keys', { name: 'late', workspace_id: id })).status).toBe(404);
});

test('a key of a workspace sees its own workspace alone and changes none', async () => {
  const own = await makeWorkspace('own');
  const other = await makeWorkspace('other');
  const as = (method: string, path: string, body?: object) => call(method, path, body, own.key);
  expect((await as('GET', '/admin/workspaces')).body).toMatchObject({ total: 1, data: [{ id: own.id }] });
  expect((await as('GET', '/admin/workspaces/own')).status).toBe(200);
  const forbidden = { status: 403, body: { error: { code: 'organisation_key_required' } } };
  expect(await as('PUT', '/admin/workspaces/own', { name: 'x' })).toMatchObject(forbidden);
  expect(await as('DELETE', '/admin/workspaces/own')).toMatchObject(forbidden);
  expect(await as('POST', '/admin/workspaces', { name: 'x' })).toMatchObject(forbidden);
  for (const [method, body] of [['GET'], ['PUT', { name: 'x' }], ['DELETE']] as const) {
    for (const name of ['other', other.id]) {
      expect((await as(method, `/admin/workspaces/${name}`, body)).status).toBe(404);
    }
  }
  for (const workspace_id of ['other', other.id, 'nothing', 'default']) {
    expect(await as('POST', '/api-keys', { name: 'x', workspace_id })).toMatchObject({
      status: 404,
      body: { error: { code: 'workspace_not_found', param: 'workspace_id' } },
    });
  }
  expect((await as('POST', '/api-keys', { name: 'x', workspace_id: 'own' })).status).toBe(200);
  expect(await as('POST', '/api-keys', { name: 'x', type: 'organisation-service' })).toMatchObject(forbidden);
});

test('a new workspace can call the simulator at once', async () => {
  const key = await createWorkspace(platform);
  const chat = { model: '@simulator/sim-small', messages: [{ role: 'user', content: 'Hi' }] };
  expect((await call('POST', '/chat/completions', chat, key)).status).toBe(200);
});

test('nothing of one workspace is found with a key of another', async () => {
  const stranger = await createWorkspace(platform);
  const { body: config } = await call('POST', '/configs', { name: 'mine', config: { virtual_key: 'simulator' } });
  const { body: key } = await call('POST', '/api-keys', { name: 'mine' });
  const host = { custom_host: platform.simulatorUrl };
  await call('POST', '/virtual-keys', { name: 'mine', provider: 'simulator', key: 'k', ...host });
  const paths = [
    `/configs/${config['slug']}`,
    `/configs/${config['id']}`,
    `/configs/mine/versions`,
    `/configs/mine/versions/1`,
    `/api-keys/${key['id']}`,
    '/virtual-keys/mine',
  ];
  for (const path of paths) {
    expect([path, (await call('GET', path)).status]).toEqual([path, 200]);
    expect([path, (await call('GET', path, undefined, stranger)).status]).toEqual([path, 404]);
  }
  expect((await call('PUT', '/configs/mine', { name: 'x' }, stranger)).status).toBe(404);
  expect((await call('DELETE', '/configs/mine', undefined, stranger)).status).toBe(404);
  expect((await call('DELETE', `/api-keys/${key['id']}`, undefined, stranger)).status).toBe(404);
  const listed = async (path: string) => (await call('GET', path, undefined, stranger)).body.data.length;
  // Every workspace has its own virtual key for the simulator.
  expect([await listed('/configs'), await listed('/virtual-keys'), await listed('/api-keys')]).toEqual([0, 1, 1]);
  const ask = { model: '@mine/sim-small', messages: [{ role: 'user', content: 'Hi' }] };
  expect((await call('POST', '/chat/completions', ask)).status).toBe(200);
  expect((await call('POST', '/chat/completions', ask, stranger)).body).toMatchObject({
    error: { code: expect.stringMatching(/virtual_key/) },
  });
});

test('a key that may do everything in its workspace cannot revoke a key of the organisation', async () => {
  const { body: full } = await call('POST', '/api-keys', { name: 'full' });
  const { body: admin } = await call('POST', '/api-keys', { name: 'second admin', type: 'organisation-service' });
  expect((await call('POST', '/admin/workspaces', { name: 'x' }, full['key'])).status).toBe(403);
  expect(await call('DELETE', `/api-keys/${admin['id']}`, undefined, full['key'])).toMatchObject({
    status: 403,
    body: { error: { code: 'insufficient_scope' } },
  });
  expect((await call('POST', '/admin/workspaces', { name: 'by it' }, admin['key'])).status).toBe(200);
  expect((await call('DELETE', `/api-keys/${admin['id']}`)).status).toBe(200);
});

test('events say who acted, with which rights, in which workspace and from which address', async () => {
  const { id, key, keyId } = await makeWorkspace('recorded');
  const { body: scoped } = await call('POST', '/api-keys', { name: 's', scopes: ['configs.write'] }, key);
  const made = await call('POST', '/configs', { name: 'c', config: { virtual_key: 'a' } }, scoped['key']);
  const { pool } = platform.database;
  const getCallMetadata = async (stream: string | undefined) =>
    (await pool.query<{ metadata: object }>('select metadata from event where stream_id = $1', [stream])).rows[0]
      ?.metadata;
  expect(await getCallMetadata(made.body['id'])).toEqual({
    actor: {
      type: 'api_key',
      id: scoped['id'],
      principal: { type: 'service_key', id: scoped['id'], role: null },
      workspace_id: id,
      scopes: ['configs.write'],
    },
    address: '192.0.2.7',
    request_id: expect.stringMatching(/^req_/),
    trace_id: expect.any(String),
    method: 'POST',
    path: '/v1/configs',
  });
  // So do those of refused attempts.
  expect((await call('GET', '/logs', undefined, scoped['key'])).status).toBe(403);
  await platform.api.facts.flush();
  const { rows: refused } = await pool.query(
    "select metadata from event where stream_id = $1 and type = 'api_key.request_refused'",
    [scoped['id']],
  );
  const principal = { type: 'service_key', id: scoped['id'] };
  expect(refused).toMatchObject([{ metadata: { actor: { id: scoped['id'], principal, workspace_id: id } } }]);
  // The organisation's key acts in a workspace that is not its own.
  const byOrganisation = (await getCallMetadata(keyId)) as { actor: { workspace_id: string } };
  expect(byOrganisation).toMatchObject({ actor: { principal: { type: 'organisation_key' }, scopes: null } });
  expect(byOrganisation.actor.workspace_id).not.toBe(id);
  const { rows } = await pool.query('select workspace_id from event where stream_id = $1', [keyId]);
  expect(rows).toEqual([{ workspace_id: id }]);
  expect((await checkInlineModels(pool, inlineModels)).difference).toBeNull();
});

type Workspace = Awaited<ReturnType<typeof makeWorkspace>>;
let twoWorkspaces: Promise<{ one: Workspace; other: Workspace }> | undefined;
const makeTwo = async () => ({ one: await makeWorkspace('one'), other: await makeWorkspace('other') });
const limitOf = { conditions: [{ key: 'api_key', value: '*' }], group_by: [{ key: 'api_key' }] };

test.each([
  ['/api-keys', { scopes: ['chat.write'] }],
  ['/api-keys/workspace/service', { scopes: ['chat.write'] }],
  ['/virtual-keys', { provider: 'openai', key: 'sk-1' }],
  ['/configs', { config: {} }],
  ['/guardrails', { checks: [{ id: 'default.contains', parameters: { words: ['x'], operator: 'none' } }] }],
  ['/collections', {}],
  ['/labels', {}],
  ['/prompts/partials', { string: 'x' }],
  ['/policies/usage-limits', { ...limitOf, type: 'cost', credit_limit: 5 }],
  ['/policies/rate-limits', { ...limitOf, type: 'requests', unit: 'rpm', value: 5 }],
])('a key of the organisation reaches what it made in a workspace by its ID: %s', async (path, fields) => {
  const { one, other } = await (twoWorkspaces ??= makeTwo());
  const made = await call('POST', path, { name: 'mine', workspace_id: one.id, ...fields });
  expect(made).toMatchObject({ status: 200 });
  const at = `${path.replace('/workspace/service', '')}/${made.body['id']}`;
  expect(await call('GET', at)).toMatchObject({ status: 200, body: { name: 'mine' } });
  expect((await call('PUT', at, { name: 'renamed' })).status).toBe(200);
  expect(await call('GET', at, undefined, one.key)).toMatchObject({ status: 200, body: { name: 'renamed' } });
  const rotated = path.startsWith('/api-keys') ? await call('POST', `${at}/rotate`, {}) : { status: 200 };
  expect(rotated.status).toBe(200);
  for (const method of ['GET', 'DELETE']) expect((await call(method, at, undefined, other.key)).status).toBe(404);
  expect((await call('GET', `${at}?workspace_id=${other.id}`)).status).toBe(404);
  expect((await call('DELETE', at)).status).toBe(200);
  expect((await call('GET', at)).status).toBe(404);
  expect((await call('GET', at, undefined, one.key)).status).toBe(404);
});

test('budgets of every kind of record say when they are reset next', async () => {
  const limit = { type: 'cost', credit_limit: 5, periodic_reset: 'monthly' };
  const { body: workspace } = await call('POST', '/admin/workspaces', { name: 'budgets', usage_limits: [limit] });
  const made = [
    ['/api-keys', {}],
    ['/virtual-keys', { provider: 'openai', key: 'sk-1' }],
  ] as const;
  const integration = { name: 'budgets', ai_provider_id: 'openai', key: 'sk-1', workspace_id: workspace['id'] };
  const { body: shared } = await call('POST', '/integrations', { ...integration, create_default_provider: false });
  const records = [...made, ['/providers', { integration_id: shared['slug'] }] as const];
  const budgets: unknown[] = [workspace['usage_limits']?.[0]];
  for (const [path, fields] of records) {
    const name = `budget of ${path}`;
    const { body } = await call('POST', path, { name, workspace_id: workspace['id'], usage_limits: limit, ...fields });
    const at = `${path}/${body['slug'] ?? body['id']}?workspace_id=${workspace['id']}`;
    budgets.push((await call('GET', at)).body['usage_limits']);
    // What a client was answered can be sent back, and is no change.
    const again = await call('PUT', at, { usage_limits: body['usage_limits'] });
    expect(again.body['last_updated_at']).toBe(body['last_updated_at']);
  }
  for (const budget of budgets) {
    const { next_usage_reset_at: next } = budget as { next_usage_reset_at: string };
    expect(next).toMatch(/^\d{4}-\d\d-01T00:00:00\.000Z$/);
    expect(Date.parse(next)).toBeGreaterThan(Date.now());
  }
  expect(budgets).toHaveLength(4);
});

test('deleted workspaces are found as archived ones, and nowhere else', async () => {
  const { body: made } = await call('POST', '/admin/workspaces', { name: 'Archived soon' });
  const at = `/admin/workspaces/${made['id']}`;
  await call('DELETE', at);
  const archived = (await call('GET', '/admin/workspaces?status=archived&page_size=100')).body.data;
  expect(archived).toContainEqual(expect.objectContaining({ id: made['id'], status: 'archived' }));
  const active = (await call('GET', '/admin/workspaces?status=active&page_size=100')).body.data;
  expect(active.map(({ status }) => status)).toEqual(active.map(() => 'active'));
  expect((await call('GET', '/admin/workspaces?page_size=100')).body.data).toEqual(active);
  expect((await call('GET', at)).status).toBe(404);
  expect(await call('GET', `${at}?status=archived`)).toMatchObject({ status: 200, body: { name: 'Archived soon' } });
});
