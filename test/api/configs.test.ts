/* oxlint-disable unicorn/no-thenable -- the member's name is the interface's */
import { sql } from 'kysely';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { inlineModels } from '#apps/platform/models.ts';
import { checkInlineModels } from '#libs/event-log/rebuild.ts';
import { eventually } from '#test/eventually.ts';
import type { TestPlatform } from '#test/platform.ts';
import type { Upstream } from '#test/upstream.ts';
import { postJson, startScriptedPlatform, storeVirtualKey } from './scripted-provider.ts';
import { createWorkspace } from './second-workspace.ts';

const secret = 'sk-CANARY-in-a-config-0123';

let scripted: Awaited<ReturnType<typeof startScriptedPlatform>>;
let platform: TestPlatform;
let upstream: Upstream;
beforeAll(async () => {
  scripted = await startScriptedPlatform();
  ({ platform, upstream } = scripted);
  for (const slug of ['first', 'second']) await storeVirtualKey(platform, slug, platform.simulatorUrl);
});
afterAll(() => scripted.stop());

type Json = Record<string, unknown>;
const call = async (method: string, route: string, body?: unknown, key = platform.adminKey) => {
  const response = await fetch(`${platform.baseUrl}${route}`, {
    method,
    headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
    ...(body === undefined ? {} : { body: JSON.stringify(body) }),
  });
  return { status: response.status, body: (await response.json()) as Json };
};
const store = async (slug: string, config: object) => {
  const { status, body } = await call('POST', '/configs', { name: slug, slug, config });
  expect({ status, body }).toMatchObject({ status: 200 });
  return body;
};
const chat = (headers: Record<string, string>, body: Json = {}) =>
  postJson(
    platform,
    '/chat/completions',
    { model: 'sim-small', messages: [{ role: 'user', content: 'Hi' }], ...body },
    headers,
  );
const byConfig = (config: string | object, headers: Record<string, string> = {}, body: Json = {}) =>
  chat({ 'x-gateway-config': typeof config === 'string' ? config : JSON.stringify(config), ...headers }, body);
const option = (response: Response) => response.headers.get('x-gateway-last-used-option-index');
const getFailureCode = async (response: Response) => ((await response.json()) as { error: Json }).error;

const broken = (virtual_key: string, status = 503) => ({
  virtual_key,
  override_params: { model: `sim-fault-${status}` },
});
const fallback = { strategy: { mode: 'fallback' }, targets: [broken('first'), { virtual_key: 'second' }] };

test('a config is stored, changed in versions that stay, and deleted', async () => {
  const created = await store('life', { virtual_key: 'first' });
  expect(created).toMatchObject({
    id: expect.stringMatching(/^config_/),
    object: 'config',
    slug: 'life',
    name: 'life',
    organisation_id: 'org_default',
    workspace_id: expect.stringMatching(/^ws_/),
    is_default: 0,
    version: 1,
    version_id: `${String(created['id'])}@1`,
    status: 'active',
    config: { virtual_key: 'first' },
    owner_id: expect.stringMatching(/^key_/),
    updated_by: null,
    created_at: expect.stringMatching(/^20.*Z$/),
    last_updated_at: created['created_at'],
    success: true,
    data: { slug: 'life', version_id: `${String(created['id'])}@1`, config: { virtual_key: 'first' } },
  });
  expect((await call('POST', '/configs', { name: 'x', slug: 'life', config: {} })).body).toMatchObject({
    error: { code: 'slug_taken', param: 'slug' },
  });
  const text = JSON.stringify(fallback);
  expect((await call('PUT', '/configs/life', { config: text })).body).toMatchObject({ version: 2, config: fallback });
  expect((await call('PUT', '/configs/life', { config: fallback, name: 'Life' })).body).toMatchObject({
    version: 2,
    name: 'Life',
    updated_by: created['owner_id'],
  });
  expect((await call('GET', `/configs/${String(created['id'])}`)).body).toMatchObject({ slug: 'life', version: 2 });
  const page = (await call('GET', '/configs/life/versions?limit=1')).body;
  expect(page).toMatchObject({ has_more: true, data: [{ version: 2, config: fallback }] });
  expect((await call('GET', `/configs/life/versions?after=${String(page['last_id'])}`)).body).toMatchObject({
    has_more: false,
    data: [{ version: 1, config: { virtual_key: 'first' }, slug: 'life' }],
  });
  const ofHead = {
    name: 'Life',
    organisation_id: 'org_default',
    workspace_id: created['workspace_id'],
    is_default: 0,
    owner_id: created['owner_id'],
    format: 'json',
    type: 'config',
    last_updated_at: expect.stringMatching(/Z$/),
  };
  expect((await call('GET', '/configs/life/versions')).body['data']).toMatchObject([
    { ...ofHead, version_id: `${String(created['id'])}@2`, status: 'active' },
    { ...ofHead, version_id: `${String(created['id'])}@1`, status: 'archived' },
  ]);
  expect((await call('GET', '/configs/life/versions/1')).body).toMatchObject({ config: { virtual_key: 'first' } });
  for (const version of ['3', '2147483648', '99999999999', '9'.repeat(400)]) {
    expect(await call('GET', `/configs/life/versions/${version}`)).toMatchObject({
      status: 404,
      body: { error: { code: 'config_version_not_found' } },
    });
  }
  expect(await call('GET', `/configs/life/versions?after=${String(created['id'])}@99999999999`)).toMatchObject({
    status: 400,
    body: { error: { code: 'invalid_value', param: 'after' } },
  });
  const other = await createWorkspace(platform);
  expect((await call('GET', '/configs/life', undefined, other)).status).toBe(404);
  expect((await call('GET', '/configs', undefined, other)).body).toMatchObject({ data: [] });
  expect(await call('DELETE', '/configs/life')).toMatchObject({ status: 200, body: { slug: 'life', deleted: true } });
  expect((await call('GET', '/configs/life')).status).toBe(404);
  expect(((await call('GET', '/configs')).body['data'] as Json[]).map(({ slug }) => slug)).not.toContain('life');
});

test.each<[string, object, string]>([
  ['a misspelt member', { retry: { attempts: 1, on_status: [500] } }, 'config.retry.on_status'],
  ['an unknown provider', { targets: [{ provider: 'opennai' }] }, 'config.targets[0].provider'],
  ['a forbidden host', { provider: 'openai', custom_host: 'http://169.254.169.254/v1' }, 'config.custom_host'],
  ['a key', { targets: [{ provider: 'openai', api_key: secret }] }, 'config.targets[0].api_key'],
  ['a secret setting', { provider: 'openai', aws_secret_access_key: secret }, 'config.aws_secret_access_key'],
  [
    'what is shown in the place of a secret',
    { input_guardrails: [{ webhook: { webhookURL: 'https://a.example', headers: { 'X-Api-Key': '[redacted]' } } }] },
    'config.input_guardrails[0].webhook.headers.X-Api-Key',
  ],
  ['a character that no log can hold', { override_params: { user: 'a\0b' } }, 'config'],
])('%s is not stored, and the answer says where it is', async (_what, config, param) => {
  const { status, body } = await call('POST', '/configs', { name: 'bad', config });
  expect({ status, body }).toMatchObject({ status: 400, body: { error: { param } } });
  expect(JSON.stringify(body)).not.toContain('CANARY');
});

test('a call falls back from one virtual key to another, says so, and is recorded with every attempt', async () => {
  await store('twice', fallback);
  const response = await byConfig('twice');
  expect(response.status).toBe(200);
  expect(option(response)).toBe('config.targets[1]');
  expect(response.headers.get('x-gateway-provider')).toBe('openai-compatible');
  expect(response.headers.get('x-gateway-retry-attempt-count')).toBe('0');
  const trace = response.headers.get('x-gateway-trace-id') ?? '';
  const { body } = await eventually(
    () => call('GET', `/logs?trace_id=${trace}`),
    ({ body: list }) => (list['data'] as Json[]).length > 0,
  );
  expect(body['data']).toMatchObject([
    { virtual_key: 'second', model: 'sim-small', attempts: 2, status: 200, last_used_option: 'config.targets[1]' },
  ]);
  const [record] = body['data'] as Json[];
  const { body: details } = await call('GET', `/logs/${String(record?.['id'])}`);
  expect(details['steps']).toMatchObject([
    { kind: 'attempt', target: 'first', model: 'sim-fault-503', status: 503, at_ms: expect.any(Number) },
    { kind: 'attempt', target: 'second', model: 'sim-small', status: 200, duration_ms: expect.any(Number) },
  ]);
  const plain = await chat({ 'x-gateway-virtual-key': 'first' });
  expect(option(plain)).toBeNull();
});

test('a stream falls back before its first event, with its headers before its body', async () => {
  const response = await byConfig(fallback, {}, { stream: true });
  expect(option(response)).toBe('config.targets[1]');
  expect(await response.text()).toMatch(/data: \[DONE\]\s*$/);
});

test('the last answer is passed on when every target failed', async () => {
  const both = { strategy: { mode: 'fallback' }, targets: [broken('first'), broken('second', 500)] };
  const response = await byConfig(both);
  expect(response.status).toBe(500);
  expect(option(response)).toBe('config.targets[1]');
});

test('a refusal of the gateway ends the call, and an answer says which target it was', async () => {
  const targets = [{ virtual_key: 'nobody' }, { virtual_key: 'second' }];
  const response = await byConfig({ strategy: { mode: 'fallback' }, targets });
  expect(response.status).toBe(400);
  expect(option(response)).toBe('config.targets[0]');
  expect(await getFailureCode(response)).toMatchObject({
    code: 'virtual_key_not_found',
    param: 'x-gateway-config.targets[0].virtual_key',
  });
});

test('a change of a stored config counts from the next call on', async () => {
  await store('moving', { virtual_key: 'first', override_params: { model: 'sim-fault-503' } });
  expect((await byConfig('moving')).status).toBe(503);
  await call('PUT', '/configs/moving', { config: { virtual_key: 'first' } });
  expect((await byConfig('moving')).status).toBe(200);
});

test("a key's default config is used, a config of the call wins, and a deleted one is reported", async () => {
  const { id } = await store('default', { virtual_key: 'second' });
  const created = await call('POST', '/api-keys', { name: 'k', defaults: { config_id: 'default' } });
  expect(created.body).toMatchObject({ defaults: { config_id: id } });
  const key = { authorization: `Bearer ${String(created.body['key'])}` };
  const byDefault = await chat(key);
  expect([byDefault.status, option(byDefault)]).toEqual([200, 'config']);
  expect((await byConfig(broken('first'), key)).status).toBe(503);
  await call('DELETE', '/configs/default');
  const after = await chat(key);
  expect(after.status).toBe(400);
  expect(await getFailureCode(after)).toMatchObject({
    code: 'config_not_found',
    message: expect.stringMatching(/default config/),
  });
  expect((await byConfig({ virtual_key: 'first' }, key)).status).toBe(200);
  expect((await call('POST', '/api-keys', { name: 'k', defaults: { config_id: 'default' } })).body).toMatchObject({
    error: { code: 'config_not_found', param: 'defaults.config_id' },
  });
});

test('conditions look at metadata and parameters, and a sticky caller stays', async () => {
  const conditional = {
    strategy: {
      mode: 'conditional',
      conditions: [{ query: { 'metadata.plan': 'pro', 'params.messages[0].role': 'user' }, then: 'paid' }],
      default: 'free',
    },
    targets: [
      { name: 'free', virtual_key: 'first' },
      { name: 'paid', virtual_key: 'second' },
    ],
  };
  const metadata = (tags: object) => ({ 'x-gateway-metadata': JSON.stringify(tags) });
  expect(option(await byConfig(conditional, metadata({ plan: 'pro' })))).toBe('config.targets[1]');
  expect(option(await byConfig(conditional, metadata({ plan: 'free' })))).toBe('config.targets[0]');
  expect(option(await byConfig(conditional))).toBe('config.targets[0]');
  const sticky = {
    strategy: { mode: 'loadbalance', sticky: { hash_fields: ['metadata.user'] } },
    targets: [{ virtual_key: 'first' }, { virtual_key: 'second' }],
  };
  const used = new Set<string | null>();
  for (let index = 0; index < 6; index += 1) used.add(option(await byConfig(sticky, metadata({ user: 'ada' }))));
  expect(used.size).toBe(1);
});

test('a conversation stays on one target of a loadbalance, and others are spread', async () => {
  const balanced = {
    strategy: { mode: 'loadbalance' },
    targets: [{ virtual_key: 'first' }, { virtual_key: 'second' }],
  };
  const free = { ...balanced, strategy: { mode: 'loadbalance', sticky: { enabled: false } } };
  const targetsOf = async (calls: (() => Promise<Response>)[]): Promise<number> => {
    const used = new Set<string | null>();
    for (const made of calls) used.add(option(await made()));
    expect([...used].every((path) => path?.startsWith('config.targets['))).toBe(true);
    return used.size;
  };
  const times = (count: number, make: (index: number) => () => Promise<Response>) =>
    Array.from({ length: count }, (_, index) => make(index));
  const session = { 'x-claude-code-session-id': 'session-1' };
  expect(await targetsOf(times(8, () => () => byConfig(balanced, session)))).toBe(1);
  expect(await targetsOf(times(40, () => () => byConfig(free, session)))).toBe(2);
  const bySession = (index: number) => () => byConfig(balanced, { 'x-gateway-session-id': `session ${index}` });
  expect(await targetsOf(times(20, bySession))).toBe(2);
  expect(await targetsOf(times(8, () => () => byConfig(balanced, {}, { prompt_cache_key: 'key-1' })))).toBe(1);
  const turns = (index: number) => [
    { role: 'user', content: 'Hi' },
    ...Array.from({ length: index + 1 }, () => [
      { role: 'assistant', content: 'Hello' },
      { role: 'user', content: 'And now?' },
    ]).flat(),
  ];
  expect(await targetsOf(times(8, (index) => () => byConfig(balanced, {}, { messages: turns(index) })))).toBe(1);
  expect(await targetsOf(times(40, () => () => byConfig(balanced)))).toBe(2);
});

test('a conversation leaves a target that waits for a rate limit, and returns to it', async () => {
  for (const slug of ['limited-1', 'limited-2']) await storeVirtualKey(platform, slug, `${upstream.url.href}${slug}`);
  const config = {
    strategy: { mode: 'loadbalance' },
    targets: [{ virtual_key: 'limited-1' }, { virtual_key: 'limited-2' }],
  };
  const ask = () => byConfig(config, { 'x-gateway-session-id': 'limited' }, { model: 'm' });
  const answer = { id: 'c', object: 'chat.completion', created: 1, model: 'm', choices: [] };
  upstream.script((reply) => reply.json(200, answer));
  const usual = option(await ask());
  upstream.script([
    (reply) => reply.json(429, { error: { message: 'slow' } }, { 'retry-after': '2' }),
    (reply) => reply.json(200, answer),
  ]);
  expect((await ask()).status).toBe(429);
  const next = await ask();
  expect(next.status).toBe(200);
  expect(option(next)).not.toBe(usual);
  expect(option(await ask())).toBe(option(next));
  await eventually(ask, (response) => option(response) === usual);
});

test('headers alone bound the time of a call and retry it, and win over the config', async () => {
  const hung = { 'x-gateway-virtual-key': 'first' };
  const timedOut = await chat({ ...hung, 'x-gateway-request-timeout': '100' }, { model: 'sim-fault-hang' });
  expect(timedOut.status).toBe(504);
  expect(await getFailureCode(timedOut)).toMatchObject({ code: 'upstream_answer_timeout' });
  const retried = await chat(
    { ...hung, 'x-gateway-retry-count': '1' },
    { model: 'sim-fault-500-then-ok-1', messages: [{ role: 'user', content: 'retried' }] },
  );
  expect([retried.status, retried.headers.get('x-gateway-retry-attempt-count')]).toEqual([200, '1']);
  const config = { virtual_key: 'first', request_timeout: 60_000, override_params: { model: 'sim-fault-hang' } };
  expect((await byConfig(config, { 'x-gateway-request-timeout': '100' })).status).toBe(504);
  const wrong = await chat({ ...hung, 'x-gateway-request-timeout': 'soon' });
  expect([wrong.status, (await getFailureCode(wrong))['param']]).toEqual([400, 'x-gateway-request-timeout']);
});

test('a key in the config of a call reaches its provider, and neither the log nor the request log', async () => {
  upstream.script((reply) => reply.json(200, { choices: [], object: 'chat.completion' }));
  const config = {
    provider: 'openai-compatible',
    custom_host: upstream.url.href,
    api_key: secret,
    forward_headers: ['x-team'],
    override_params: { seed: 7 },
    drop_params: ['messages[*].name'],
  };
  const messages = [{ role: 'user', content: 'Hi', name: 'ada' }];
  const response = await byConfig(config, { 'x-team': 'red' }, { messages });
  expect(response.status).toBe(200);
  const sent = upstream.requests.at(-1);
  expect(sent?.headers).toMatchObject({ authorization: `Bearer ${secret}`, 'x-team': 'red' });
  expect(JSON.parse(sent?.body.toString() ?? '')).toEqual({
    model: 'sim-small',
    messages: [{ role: 'user', content: 'Hi' }],
    seed: 7,
  });
  const { rows } = await sql<{ text: string }>`
    select data::text || metadata::text as text from event
    union all select row_to_json(request_log)::text from request_log`.execute(platform.database.db);
  expect(rows.filter(({ text }) => text.includes('CANARY'))).toEqual([]);
});

test('heads and versions are what the log says', async () => {
  const report = await checkInlineModels(platform.database.pool, inlineModels);
  expect(report.difference).toBeNull();
  expect(report.rows['resource_version']).toBeGreaterThan(1);
  await sql`insert into resource_version
    select (jsonb_populate_record(head, jsonb_build_object('id', resource_id || '@99', 'number', 99))).*
    from resource_version as head limit 1`.execute(platform.database.db);
  expect((await checkInlineModels(platform.database.pool, inlineModels)).difference).toMatchObject({
    model: 'resource_version',
    id: expect.stringMatching(/@99$/),
    folded: null,
  });
  await sql`delete from resource_version where number = 99`.execute(platform.database.db);
  await sql`update resource_version set data = '{}' where number = 1`.execute(platform.database.db);
  expect((await checkInlineModels(platform.database.pool, inlineModels)).difference).toMatchObject({
    model: 'resource_version',
  });
});
