import { sql } from 'kysely';
import { Portkey } from 'portkey-ai';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { inlineModels } from '#apps/platform/models.ts';
import { checkInlineModels } from '#libs/event-log/rebuild.ts';
import { createEventLog } from '#libs/event-log/event-log.ts';
import { Secret } from '#libs/kernel/logging/secret.ts';
import { bootstrap } from '#libs/people/bootstrap.ts';
import { recordDueRotations } from '#libs/resources/api-keys/record-due-rotations.ts';
import { eventually } from '#test/eventually.ts';
import { startPlatform, type TestPlatform } from '#test/platform.ts';
import { startApiProcess } from './api-process.ts';

// The life of an API key: made, changed, replaced while it is in use, and revoked.

const minute = 60_000;
let platform: TestPlatform;
beforeAll(async () => {
  platform = await startPlatform({ worker: false, movableClock: true });
});
afterAll(() => platform?.stop());

type Answer = { status: number; headers: Headers; body: Record<string, unknown> };

async function call(method: string, path: string, body?: object, key = platform.adminKey, baseUrl = platform.baseUrl) {
  const response = await fetch(`${baseUrl}${path}`, {
    method,
    headers: { authorization: `Bearer ${key}`, ...(body && { 'content-type': 'application/json' }) },
    ...(body && { body: JSON.stringify(body) }),
  });
  return { status: response.status, headers: response.headers, body: await response.json() } as Answer;
}

async function make(fields: object = {}, key?: string): Promise<{ id: string; key: string }> {
  const { status, body } = await call('POST', '/api-keys', { name: 'k', ...fields }, key);
  expect(body).toMatchObject({ object: 'api-key' });
  expect(status).toBe(200);
  return body as never;
}

const httpStatus = async (key: string, baseUrl?: string): Promise<number> =>
  (await call('GET', '/models', undefined, key, baseUrl)).status;

test("the public interface's own client makes, reads, changes, lists and deletes keys", async () => {
  const client = new Portkey({ apiKey: platform.adminKey, baseURL: platform.baseUrl });
  const fields = {
    name: 'App',
    description: 'of the app',
    scopes: ['chat.write', 'models.read'],
    usage_limits: { credit_limit: 500, type: 'cost', alert_threshold: 80, periodic_reset: 'monthly' },
    rate_limits: [{ type: 'requests', unit: 'rpm', value: 60 }],
    defaults: { metadata: { team: 'x' } },
    alert_emails: ['ops@example.com'],
    expires_at: '2090-01-01T00:00:00.000Z',
  };
  const made = await client.apiKeys.create({ type: 'workspace', 'sub-type': 'service', ...fields });
  const { id = '', key = '' } = made;
  expect(made.object).toBe('api-key');
  expect(await httpStatus(key)).toBe(200);
  const shown = {
    ...fields,
    id,
    key: `********${key.slice(-4)}`,
    type: 'workspace-service',
    organisation_id: 'org_default',
    workspace_id: expect.stringMatching(/^ws_/),
    status: 'active',
    creation_mode: 'api',
    defaults: { metadata: { team: 'x' }, config_id: null, allow_config_override: true },
  };
  const read = await client.apiKeys.retrieve({ id });
  expect(read).toMatchObject(shown);
  expect(new Date(String(read.created_at)).toISOString()).toBe(read.created_at);
  await client.apiKeys.update({ id, name: 'Renamed', rate_limits: [], expires_at: null });
  const changed = { ...shown, name: 'Renamed', rate_limits: [], expires_at: null };
  expect(await client.apiKeys.retrieve({ id })).toMatchObject(changed);
  const list = await client.apiKeys.list({ page_size: 1, current_page: 0 });
  expect(list).toMatchObject({ object: 'list', total: 2, data: [changed] });
  await client.apiKeys.delete({ id });
  expect(await httpStatus(key)).toBe(401);
  await expect(client.apiKeys.retrieve({ id })).rejects.toMatchObject({ status: 404 });
});

test.each([
  ['/api-keys/organisation/service', { scopes: undefined }, 400, 'scopes'],
  ['/api-keys/workspace/service', { scopes: undefined }, 400, 'scopes'],
  ['/api-keys/workspace/service', { scopes: [] }, 400, 'scopes'],
  ['/api-keys/workspace/service', { scopes: ['chat.write'] }, 200, 'workspace-service'],
  ['/api-keys/organisation/service', {}, 200, 'organisation-service'],
  ['/api-keys/workspace/service', { type: 'workspace', 'sub-type': 'service' }, 200, 'workspace-service'],
  ['/api-keys/workspace/service', { type: 'organisation' }, 400, 'type'],
  ['/api-keys/workspace/service', { 'sub-type': 'user' }, 400, 'sub-type'],
  ['/api-keys/organisation/user', {}, 400, 'sub_type'],
  ['/api-keys/team/service', {}, 400, 'type'],
  ['/api-keys/workspace/user', {}, 400, 'user_id'],
  ['/api-keys/workspace/user', { user_id: 'user_of_nobody' }, 404, 'user_id'],
  ['/api-keys/workspace/service', { user_id: 'user_of_nobody' }, 400, 'user_id'],
  ['/api-keys/workspace/service', { organisation_id: 'org_default' }, 200, 'workspace-service'],
  ['/api-keys/workspace/service', { organisation_id: 'org_other' }, 404, 'organisation_id'],
  ['/api-keys/workspace/service', { alert_emails: ['nobody'] }, 400, 'alert_emails[0]'],
  [
    '/api-keys/workspace/service',
    { rate_limits: [{ type: 'requests', unit: 'rpx', value: 1 }] },
    400,
    'rate_limits[0].unit',
  ],
])('POST %s with %j is answered with %i', async (path, fields, status, what) => {
  const answer = await call('POST', path, { name: 'typed', scopes: null, ...fields });
  expect(answer.status).toBe(status);
  const made = { type: what, workspace_id: expect.stringMatching(/^ws_/) };
  expect(answer.body).toMatchObject(status === 200 ? made : { error: { param: what } });
});

test('while a key is being replaced both values work in every process, and then only the new one', async () => {
  const first = await make({ scopes: ['models.read'] });
  const running = await startApiProcess(platform);
  expect(await httpStatus(first.key, running)).toBe(200);
  const rotated = await call('POST', `/api-keys/${first.id}/rotate`, { key_transition_period_ms: 30 * minute });
  expect(rotated).toMatchObject({ status: 200, body: { id: first.id } });
  expect(rotated.headers.get('cache-control')).toBe('no-store');
  const { key: second, key_transition_expires_at: endsAt } = rotated.body as Record<string, string>;
  expect((await call('GET', `/api-keys/${first.id}`)).body).toMatchObject({
    key: `********${second?.slice(-4)}`,
    key_transition_expires_at: endsAt,
  });
  // One that was not there when the key was replaced.
  const later = await startApiProcess(platform);
  for (const baseUrl of [platform.baseUrl, running, later]) {
    await eventually(
      () => httpStatus(second ?? '', baseUrl),
      (status) => status === 200,
    );
    expect(await httpStatus(first.key, baseUrl)).toBe(200);
  }
  await platform.passTime(31 * minute);
  for (const baseUrl of [platform.baseUrl, running, later]) {
    await eventually(
      () => httpStatus(first.key, baseUrl),
      (status) => status === 401,
    );
    expect(await httpStatus(second ?? '', baseUrl)).toBe(200);
  }
  expect((await call('GET', `/api-keys/${first.id}`)).body).toMatchObject({ key_transition_expires_at: null });
});

test('a rotation keeps the time that earlier ones promised, and 0 ends all earlier values at once', async () => {
  const { id, key: first } = await make();
  const rotate = async (body?: object) => (await call('POST', `/api-keys/${id}/rotate`, body)).body['key'] as string;
  const second = await rotate();
  const third = await rotate({ id });
  for (const key of [first, second, third]) expect(await httpStatus(key)).toBe(200);
  const fourth = await rotate({ key_transition_period_ms: 0 });
  for (const key of [first, second, third]) expect(await httpStatus(key)).toBe(401);
  expect(await httpStatus(fourth)).toBe(200);
  for (let times = 0; times < 10; times += 1) await rotate();
  expect(await call('POST', `/api-keys/${id}/rotate`)).toMatchObject({
    status: 409,
    body: { error: { code: 'too_many_rotations' } },
  });
});

test.each([
  [{ key_transition_period_ms: 1_799_999 }, 'key_transition_period_ms'],
  [{ id: 'key_other' }, 'id'],
  [{ unknown: 1 }, 'unknown'],
])('a rotation with %j is refused', async (body, param) => {
  const { id } = await make();
  expect(await call('POST', `/api-keys/${id}/rotate`, body)).toMatchObject({ status: 400, body: { error: { param } } });
});

test('a value that was replaced makes no key and no rotation that would outlive it', async () => {
  const { id, key } = await make({ scopes: ['api_keys.write'] });
  await call('POST', `/api-keys/${id}/rotate`);
  const refused = { status: 403, body: { error: { code: 'outlives_its_maker' } } };
  expect(await call('POST', '/api-keys', { name: 'x', scopes: ['api_keys.write'] }, key)).toMatchObject(refused);
  expect(await call('POST', `/api-keys/${id}/rotate`, undefined, key)).toMatchObject(refused);
});

test('a rotation that is due is recorded once for each date, and shown until the key is rotated', async () => {
  const policy = { rotation_period: 'weekly', key_transition_period_ms: 30 * minute };
  const { id } = await make({ rotation_policy: policy });
  const { db } = platform.api.platform;
  const record = () => recordDueRotations({ db, eventLog: createEventLog(db) });
  const read = async () => (await call('GET', `/api-keys/${id}`)).body;
  const count = async () => {
    const sql = "select from event where type = 'api_key.rotation_due' and stream_id = $1";
    return (await platform.api.platform.pool.query(sql, [id])).rowCount;
  };
  const { created_at: createdAt } = await read();
  const next = new Date(Date.parse(String(createdAt)) + 7 * 24 * 60 * minute).toISOString();
  expect(await read()).toMatchObject({ rotation_policy: { ...policy, next_rotation_at: next }, rotation_due_at: null });
  await record();
  expect(await count()).toBe(0);
  await platform.passTime(8 * 24 * 60 * minute);
  await Promise.all([record(), record(), record()]);
  expect(await count()).toBe(1);
  expect(await read()).toMatchObject({ rotation_due_at: expect.stringMatching(/^2/) });
  const rotated = await call('POST', `/api-keys/${id}/rotate`);
  expect(rotated.status).toBe(200);
  const after = (await read()) as { rotation_policy: { next_rotation_at: string }; rotation_due_at: null };
  expect(after.rotation_due_at).toBeNull();
  expect(Date.parse(after.rotation_policy.next_rotation_at)).toBeGreaterThan(Date.parse(next) + 7 * 24 * 60 * minute);
  await record();
  expect(await count()).toBe(1);
});

test('a rotation date in the past is refused, and one that has come stays when it is sent back', async () => {
  const past = { rotation_policy: { next_rotation_at: '2020-01-01T00:00:00.000Z' } };
  expect(await call('POST', '/api-keys', { name: 'k', ...past })).toMatchObject({
    status: 400,
    body: { error: { param: 'rotation_policy.next_rotation_at' } },
  });
  const { id } = await make({ rotation_policy: { rotation_period: 'monthly' } });
  await platform.passTime(40 * 24 * 60 * minute);
  const { rotation_policy: policy } = (await call('GET', `/api-keys/${id}`)).body as { rotation_policy: object };
  expect((await call('PUT', `/api-keys/${id}`, { rotation_policy: policy })).body).toMatchObject({
    rotation_policy: policy,
  });
  expect((await call('PUT', `/api-keys/${id}`, { rotation_policy: null })).body).toMatchObject({
    rotation_policy: null,
  });
});

test('what a change leaves out stays, in the defaults as well', async () => {
  const { id } = await make({
    defaults: { metadata: { a: 'b' }, allow_config_override: false },
    usage_limits: { credit_limit: 5, next_usage_reset_at: '2090-01-01T00:00:00.000Z' },
  });
  const { body } = await call('PUT', `/api-keys/${id}`, { defaults: { metadata: null }, reset_usage: true });
  expect(body).toMatchObject({
    name: 'k',
    defaults: { metadata: null, allow_config_override: false },
    // Computed, whatever a client sends: this budget is never reset.
    usage_limits: { credit_limit: 5, type: 'cost', next_usage_reset_at: null },
    usage_reset_at: expect.stringMatching(/Z$/),
  });
});

test('a change takes effect at once, also when it takes rights away', async () => {
  const { id, key } = await make({ scopes: ['models.read'] });
  expect(await httpStatus(key)).toBe(200);
  await call('PUT', `/api-keys/${id}`, { scopes: ['chat.write'] });
  expect(await httpStatus(key)).toBe(403);
  await call('PUT', `/api-keys/${id}`, { scopes: null });
  expect(await httpStatus(key)).toBe(200);
  await call('PUT', `/api-keys/${id}`, { expires_at: '2020-01-01T00:00:00Z' });
  expect(await httpStatus(key)).toBe(401);
  expect((await call('GET', `/api-keys/${id}`)).body).toMatchObject({ status: 'expired' });
});

test('a key changes and replaces no stronger one, and gives nobody rights that it lacks', async () => {
  const strong = await make();
  const weak = await make({ scopes: ['api_keys.write', 'api_keys.read'] });
  const forbidden = { status: 403, body: { error: { code: 'insufficient_scope' } } };
  for (const [method, path, body] of [
    ['PUT', `/api-keys/${strong.id}`, { name: 'mine' }],
    ['POST', `/api-keys/${strong.id}/rotate`, {}],
    ['DELETE', `/api-keys/${strong.id}`, undefined],
    ['PUT', `/api-keys/${weak.id}`, { scopes: ['files.write'] }],
    ['PUT', `/api-keys/${weak.id}`, { scopes: null }],
  ] as const) {
    expect(await call(method, path, body, weak.key)).toMatchObject(forbidden);
  }
  expect((await call('POST', `/api-keys/${weak.id}/rotate`, undefined, weak.key)).status).toBe(200);
});

test('a key with limits makes no other key and changes no limits, or it would have none', async () => {
  const scopes = ['api_keys.write', 'api_keys.read'];
  const limited = await make({ scopes, usage_limits: { credit_limit: 1 } });
  const forbidden = { status: 403, body: { error: { code: 'limited_key' } } };
  expect(await call('POST', '/api-keys', { name: 'x', scopes }, limited.key)).toMatchObject(forbidden);
  for (const change of [{ usage_limits: null }, { rate_limits: null }, { reset_usage: true }]) {
    expect(await call('PUT', `/api-keys/${limited.id}`, change, limited.key)).toMatchObject(forbidden);
  }
  expect((await call('PUT', `/api-keys/${limited.id}`, { name: 'y' }, limited.key)).status).toBe(200);
});

test('a key with limits replaces no other key, whose new value would have none, but may replace itself', async () => {
  const scopes = ['api_keys.write'];
  const limited = await make({ scopes, rate_limits: [{ type: 'requests', unit: 'rpm', value: 100 }] });
  const other = await make({ scopes });
  expect(await call('POST', `/api-keys/${other.id}/rotate`, {}, limited.key)).toMatchObject({
    status: 403,
    body: { error: { code: 'limited_key' } },
  });
  expect((await call('POST', `/api-keys/${limited.id}/rotate`, {}, limited.key)).status).toBe(200);
});

test('a key whose budget is spent says so until it is reset', async () => {
  const { id, key } = await make({ usage_limits: { credit_limit: 1, type: 'tokens' } });
  const messages = [{ role: 'user', content: 'hello' }];
  const say = () => call('POST', '/chat/completions', { model: '@simulator/sim-small', messages, max_tokens: 1 }, key);
  const read = async () => (await call('GET', `/api-keys/${id}`)).body['status'];
  expect(await read()).toBe('active');
  // Its estimate is above the budget, so nothing is used: a call that was larger than its estimate would have.
  await eventually(say, ({ status }) => status === 412);
  const { db } = platform.api.platform;
  await sql`update limit_counter set used = 1 where limit_id = ${`${id}/tokens`}`.execute(db);
  expect(await read()).toBe('exhausted');
  expect((await call('GET', '/api-keys?limit=1')).body['data']).toMatchObject([{ id, status: 'exhausted' }]);
  await call('PUT', `/api-keys/${id}`, { reset_usage: true });
  expect(await read()).toBe('active');
});

test('a replaced first key does not work again because the process starts with it again', async () => {
  const listed = (await call('GET', '/api-keys?limit=100')).body['data'] as { id: string; creation_mode: string }[];
  const id = listed.find(({ creation_mode: mode }) => mode === 'auto')?.id;
  const rotated = await call('POST', `/api-keys/${id}/rotate`, { key_transition_period_ms: 0 });
  const key = String(rotated.body['key']);
  const { db } = platform.api.platform;
  const old = platform.adminKey;
  await bootstrap({ db, eventLog: createEventLog(db) }, new Secret(old));
  await platform.api.platform.access.snapshot.refresh();
  expect(await httpStatus(old)).toBe(401);
  expect(await httpStatus(key)).toBe(200);
});

test('all of this is what the log says', async () => {
  expect((await checkInlineModels(platform.api.platform.pool, inlineModels)).difference).toBeNull();
});
