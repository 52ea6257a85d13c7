import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { inlineModels } from '#apps/platform/models.ts';
import { checkInlineModels } from '#libs/event-log/rebuild.ts';
import { createGatewayKey } from '#libs/identity/gateway-key.ts';
import { eventually } from '#test/eventually.ts';
import { startApp } from '../integration/start/app-process.ts';
import { chatLine, toJsonl } from './batch-kit.ts';
import { startScriptedPlatform, type ScriptedPlatform } from './scripted-provider.ts';

// What a key may do, and what it may let other keys do.

let scripted: ScriptedPlatform;
let fixedKey: string;
beforeAll(async () => {
  scripted = await startScriptedPlatform();
  const config = { input_guardrails: [{ contains: { operator: 'none', words: ['forbidden'] }, deny: true }] };
  await call('POST', '/configs', { body: { name: 'Guarded', slug: 'guarded', config } });
  await call('POST', '/configs', { body: { name: 'Open', slug: 'open', config: {} } });
  const defaults = { config_id: 'guarded', allow_config_override: false };
  const made = await call('POST', '/api-keys', { body: { name: 'fixed', defaults } });
  fixedKey = String(made.body['key']);
});
afterAll(() => scripted.stop());
beforeEach(() => {
  scripted.upstream.requests.length = 0;
  scripted.upstream.script((reply) => reply.json(200, { object: 'list', data: [], choices: [] }));
});

type Sent = { key?: string; body?: unknown; headers?: Record<string, string>; baseUrl?: string };
type Answer = { status: number; headers: Headers; body: Record<string, unknown> };

async function call(method: string, route: string, { key, body, headers, baseUrl }: Sent = {}): Promise<Answer> {
  const form = body instanceof FormData;
  const response = await fetch(`${baseUrl ?? scripted.platform.baseUrl}${route}`, {
    method,
    headers: {
      'x-gateway-api-key': key ?? scripted.platform.adminKey,
      ...(body === undefined || form ? {} : { 'content-type': 'application/json' }),
      ...headers,
    },
    ...(body === undefined ? {} : { body: form ? body : JSON.stringify(body) }),
  });
  return { status: response.status, headers: response.headers, body: (await response.json()) as Answer['body'] };
}

async function makeKey(fields: object, key?: string): Promise<Answer> {
  return await call('POST', '/api-keys', { ...(key === undefined ? {} : { key }), body: { name: 'k', ...fields } });
}

async function upload(purpose: string, text: string, key?: string): Promise<string> {
  const form = new FormData();
  form.set('purpose', purpose);
  form.set('file', new File([text], 'input.jsonl'));
  const { status, body } = await call('POST', '/files', { ...(key === undefined ? {} : { key }), body: form });
  expect(status).toBe(200);
  return String(body['id']);
}

const chat = (content: string, model = '@scripted/m') => ({ model, messages: [{ role: 'user', content }] });
const refused = { status: 403, body: { error: { type: 'permission_error', code: 'config_override_not_allowed' } } };
const toBatch = async () => ({
  input_file_id: await upload('batch', toJsonl([chatLine('a', chat('x'))])),
  endpoint: '/v1/chat/completions',
  completion_window: '24h',
});

type Header = [what: string, headers: Record<string, string>];
const configs: Header[] = [
  ['an inline config', { 'x-gateway-config': '{"virtual_key":"scripted"}' }],
  ['a config under its old name', { 'x-portkey-config': '{"virtual_key":"scripted"}' }],
  ['another stored config', { 'x-gateway-config': 'open' }],
  ['no guardrails', { 'x-gateway-config': '{"input_guardrails":[]}' }],
];
const options: Header[] = [
  ['a timeout', { 'x-gateway-request-timeout': '1000' }],
  ['a retry count', { 'x-portkey-retry-count': '5' }],
  ['a cache', { 'x-gateway-cache': 'simple' }],
];
const fixedWith = (headers: Record<string, string>) => ({
  key: fixedKey,
  headers: { 'x-gateway-virtual-key': 'scripted', ...headers },
});

type Scopes = { 'x-scope'?: string; 'x-optional-scopes'?: string[] };

test('a key can be given the scopes that routes have, and no others', async () => {
  const answer = await fetch(`${scripted.platform.baseUrl.replace(/\/v1$/, '')}/openapi.json`);
  const { paths } = (await answer.json()) as { paths: Record<string, Record<string, Scopes>> };
  const operations = Object.values(paths).flatMap((path) => Object.values(path));
  const scopesOf = (each: Scopes) => [each['x-scope'] ?? [], each['x-optional-scopes'] ?? []].flat();
  const known = [...new Set(operations.flatMap(scopesOf))].toSorted();
  expect(await makeKey({ scopes: known })).toMatchObject({ status: 200, body: { scopes: known } });
  for (const scope of ['chat.read', 'chat.execute', 'everything']) {
    const made = await makeKey({ scopes: ['chat.write', scope] });
    expect(made).toMatchObject({ status: 400, body: { error: { code: 'invalid_value', param: 'scopes[1]' } } });
    expect(made.body['error']).toMatchObject({
      message: expect.stringContaining(`Available scopes: ${known.join(', ')}.`),
    });
  }
});

test('a key says that its config is fixed', async () => {
  const defaults = { config_id: 'guarded', allow_config_override: false };
  const others = { metadata: null, locked_metadata: null, record_bodies: null };
  const shown = { config_id: expect.stringMatching(/^config_/), allow_config_override: false, ...others };
  expect((await makeKey({ defaults })).body['defaults']).toEqual(shown);
  expect((await makeKey({})).body['defaults']).toEqual({
    config_id: null,
    allow_config_override: true,
    ...others,
  });
});

test.each([...configs, ...options])('a live call with a fixed config may not bring %s', async (_what, headers) => {
  const sent = fixedWith(headers);
  expect(await call('POST', '/chat/completions', { ...sent, body: chat('forbidden') })).toMatchObject(refused);
  expect(await call('POST', '/embeddings', { ...sent, body: { model: 'm', input: 'x' } })).toMatchObject(refused);
  expect(scripted.upstream.requests).toHaveLength(0);
});

test.each(configs)('nothing else that a key with a fixed config asks for may bring %s', async (_what, headers) => {
  const sent = fixedWith(headers);
  expect(await call('POST', '/responses', { ...sent, body: { model: 'm', input: 'x' } })).toMatchObject(refused);
  expect(await call('GET', '/models', sent)).toMatchObject(refused);
  expect(await call('POST', '/batches', { ...sent, body: await toBatch() })).toMatchObject(refused);
  const job = { model: '@scripted/m', training_file: await upload('fine-tune', '{}\n') };
  expect(await call('POST', '/fine_tuning/jobs', { ...sent, body: job })).toMatchObject(refused);
  expect(scripted.upstream.requests).toHaveLength(0);
});

test.each(['gateway_options', 'portkey_options', 'provider_options'])(
  'a key whose config is fixed may not bring one in the %s of a batch',
  async (member) => {
    for (const config of ['open', { virtual_key: 'scripted' }]) {
      const body = { ...(await toBatch()), [member]: { config } };
      expect(await call('POST', '/batches', { key: fixedKey, body })).toMatchObject(refused);
    }
  },
);

test('the config of a key whose config is fixed judges every call, wherever its headers or its model lead', async () => {
  const key = fixedKey;
  const named = { 'x-gateway-provider': 'openai', 'x-gateway-custom-host': scripted.upstream.url.href };
  const headers = { ...named, authorization: 'Bearer sk-own' };
  for (const sent of [
    { key, body: chat('forbidden') },
    { key, body: chat('forbidden', 'm'), headers: { 'x-gateway-virtual-key': 'scripted' } },
    { key, body: chat('forbidden', 'm'), headers },
  ]) {
    expect((await call('POST', '/chat/completions', sent)).status).toBe(446);
  }
  expect(scripted.upstream.requests).toHaveLength(0);
  expect((await call('POST', '/chat/completions', { key, body: chat('fine') })).status).toBe(200);
});

test('a key whose config is fixed makes only keys that are bound as it is', async () => {
  const bound = { config_id: 'guarded', allow_config_override: false };
  for (const defaults of [undefined, { config_id: 'guarded' }, { allow_config_override: false }]) {
    const answer = await makeKey({ defaults }, fixedKey);
    expect(answer).toMatchObject({ status: 403, body: { error: { param: 'defaults' } } });
  }
  expect((await makeKey({ defaults: { ...bound, config_id: 'open' } }, fixedKey)).status).toBe(403);
  expect((await makeKey({ defaults: bound }, fixedKey)).status).toBe(200);
});

test('a batch needs the scope of the endpoint that it calls', async () => {
  const made = await makeKey({ scopes: ['batches.write', 'files.write', 'embeddings.write'] });
  const key = String(made.body['key']);
  const body = await toBatch();
  const answer = await call('POST', '/batches', { key, body });
  expect(answer).toMatchObject({ status: 403, body: { error: { code: 'missing_scope' } } });
  expect((answer.body['error'] as { message: string }).message).toContain("'chat.write'");
  const other = { ...body, endpoint: '/v1/embeddings' };
  expect(await call('POST', '/batches', { key, body: other })).toMatchObject({ status: 200 });
  const allowed = await makeKey({ scopes: ['batches.write', 'chat.write'] });
  expect(await call('POST', '/batches', { key: String(allowed.body['key']), body })).toMatchObject({ status: 200 });
});

test('a key revokes none that may do more than itself', async () => {
  const weak = await makeKey({ scopes: ['api_keys.write', 'chat.write'] });
  const key = String(weak.body['key']);
  const admin = await makeKey({});
  const stronger = await makeKey({ scopes: ['chat.write', 'files.read'] });
  for (const { body } of [admin, stronger]) {
    const answer = await call('DELETE', `/api-keys/${String(body['id'])}`, { key });
    expect(answer).toMatchObject({ status: 403, body: { error: { code: 'insufficient_scope', param: 'id' } } });
    expect((await call('GET', `/api-keys/${String(body['id'])}`)).body['status']).toBe('active');
  }
  const equal = await makeKey({ scopes: ['chat.write'] });
  expect((await call('DELETE', `/api-keys/${String(equal.body['id'])}`, { key })).status).toBe(200);
  expect((await call('DELETE', `/api-keys/${String(weak.body['id'])}`, { key })).status).toBe(200);
  const unbound = await call('DELETE', `/api-keys/${String(stronger.body['id'])}`, { key: fixedKey });
  expect(unbound).toMatchObject({ status: 403 });
});

test('a key makes none that lives longer than itself', async () => {
  const end = Math.floor(Date.now() / 1_000) + 3_600;
  const { body } = await makeKey({ expires_at: end });
  const key = String(body['key']);
  for (const expires_at of [undefined, null, end + 1]) {
    expect(await makeKey({ expires_at }, key)).toMatchObject({
      status: 403,
      body: { error: { code: 'outlives_its_maker', param: 'expires_at' } },
    });
  }
  expect(await makeKey({ expires_at: end }, key)).toMatchObject({
    status: 200,
    body: { expires_at: new Date(end * 1_000).toISOString() },
  });
});

test('what a key was refused is in the log: who, from where, which route and why, and how often', async () => {
  const { body } = await makeKey({ scopes: ['files.read'] });
  const [key, keyId] = [String(body['key']), String(body['id'])];
  for (let made = 0; made < 5; made += 1) expect((await call('GET', '/logs', { key })).status).toBe(403);
  expect((await call('POST', '/chat/completions', { key, body: chat('x') })).status).toBe(403);
  expect((await call('GET', '/files', { key })).status).toBe(200);
  const { pool } = scripted.platform.database;
  const events = async () => {
    const sql = `select data, metadata from event where type = 'api_key.request_refused' and stream_id = $1 order by position`;
    return (await pool.query<{ data: Record<string, unknown>; metadata: object }>(sql, [keyId])).rows;
  };
  await scripted.platform.api.facts.flush();
  const rows = await events();
  expect(rows.reduce((sum, { data }) => sum + (data['route'] === '/v1/logs' ? Number(data['count']) : 0), 0)).toBe(5);
  expect(rows.at(-1)).toMatchObject({
    data: {
      method: 'POST',
      route: '/v1/chat/completions',
      code: 'missing_scope',
      message: expect.stringContaining('chat.write'),
      count: 1,
      addresses: ['127.0.0.1'],
    },
    metadata: { actor: { type: 'api_key', id: keyId }, request_id: expect.stringMatching(/^req_/) },
  });
  expect(JSON.stringify(rows)).not.toContain(key);
  expect((await checkInlineModels(pool, inlineModels)).difference).toBeNull();
});

test('wrong keys are slowed by address before anything is looked up, and right ones are not; the log has the address', async () => {
  const environment = { SLUICE_WRONG_KEYS_PER_MINUTE: '3', SLUICE_TRUSTED_PROXIES: '127.0.0.0/8' };
  const api = startApp('api', { ...scripted.platform.environment, ...environment });
  const [listening] = await eventually(
    () => api.said('listening'),
    (lines) => lines.length > 0,
  );
  const baseUrl = `${listening?.url}/v1`;
  const guess = (address: string, key = createGatewayKey().reveal()) =>
    call('GET', '/files', { baseUrl, key, headers: { 'x-forwarded-for': `198.51.100.1, ${address}` } });
  const statuses: number[] = [];
  for (let made = 0; made < 8; made += 1) statuses.push((await guess('192.0.2.1')).status);
  expect(statuses.slice(0, 3)).toEqual([401, 401, 401]);
  expect(statuses.slice(3)).toContain(429);
  const slowed = await eventually(
    () => guess('192.0.2.1'),
    ({ status }) => status === 429,
  );
  expect(slowed.body).toMatchObject({ error: { code: 'too_many_failed_attempts', type: 'rate_limit_error' } });
  expect(Number(slowed.headers.get('retry-after'))).toBeGreaterThan(0);
  expect((await guess('192.0.2.1', scripted.platform.adminKey)).status).toBe(200);
  expect((await guess('192.0.2.2')).status).toBe(401);
  const metrics = await (await fetch(new URL('/metrics', baseUrl))).text();
  expect(metrics).toMatch(/^sluice_authentication_failures_total\{reason="wrong_key"\} [4-9]/m);
  expect(metrics).toMatch(/^sluice_authentication_failures_total\{reason="slowed"\} [1-9]/m);
  const ofAddress = { client_address: '192.0.2.1' };
  expect(api.said('request ended')).toEqual(
    expect.arrayContaining([
      expect.objectContaining({ status: 401, ...ofAddress, refused_because: 'wrong_key' }),
      expect.objectContaining({ status: 429, ...ofAddress, refused_because: 'slowed' }),
      expect.not.objectContaining({ client_address: expect.anything() }),
    ]),
  );
});
