import { AzureOpenAI } from 'openai';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { eventually } from '#test/eventually.ts';
import type { TestPlatform } from '#test/platform.ts';
import type { Upstream, UpstreamScript } from '#test/upstream.ts';
import { startApiProcess } from './api-process.ts';
import { chatLine, resultsOf, runBatch } from './batch-kit.ts';
import { canary, postJson, startScriptedPlatform } from './scripted-provider.ts';
import { createWorkspace } from './second-workspace.ts';
import { getFailureCode, sdks, watchCalls } from './sdk.ts';

// AUTH-1, end to end.

let scripted: Awaited<ReturnType<typeof startScriptedPlatform>>;
let platform: TestPlatform;
let upstream: Upstream;
beforeAll(async () => {
  scripted = await startScriptedPlatform();
  ({ platform, upstream } = scripted);
  await platform.startWorker();
});
afterAll(() => scripted.stop());

const messages = [{ role: 'user' as const, content: 'Hello' }];
const answer = {
  id: 'chatcmpl-1',
  object: 'chat.completion',
  created: 1,
  model: 'any',
  choices: [{ index: 0, message: { role: 'assistant', content: 'Hi' }, finish_reason: 'stop' }],
  usage: { prompt_tokens: 1, completion_tokens: 1, total_tokens: 2 },
};
const answers: UpstreamScript = (reply) => reply.json(200, answer);

/** The credentials that the provider was called with since the last look. */
function credentialsSeen(): (string | undefined)[] {
  return upstream.requests.splice(0).map(({ headers }) => headers['authorization']);
}

async function call(
  method: string,
  route: string,
  {
    key = platform.adminKey,
    body,
    headers = {},
  }: { key?: string; body?: unknown; headers?: Record<string, string> } = {},
): Promise<{ status: number; body: Record<string, unknown> }> {
  const response = await fetch(`${platform.baseUrl}${route}`, {
    method,
    headers: {
      'x-gateway-api-key': key,
      ...(body === undefined ? {} : { 'content-type': 'application/json' }),
      ...headers,
    },
    ...(body === undefined ? {} : { body: JSON.stringify(body) }),
  });
  return { status: response.status, body: (await response.json()) as Record<string, unknown> };
}

test.each(['api-key', 'x-api-key'])('the header %s brings the gateway key, and no provider sees it', async (name) => {
  upstream.script(answers);
  const headers = { [name]: platform.adminKey, 'content-type': 'application/json' };
  const body = JSON.stringify({ model: '@scripted/any', messages });
  const response = await fetch(`${platform.baseUrl}/chat/completions`, { method: 'POST', headers, body });
  expect(response.status).toBe(200);
  const [request] = upstream.requests.splice(0);
  expect(request?.headers['authorization']).toBe(`Bearer ${canary}`);
  expect(request?.bytes.toString('latin1')).not.toContain(platform.adminKey);
  const wrong = await fetch(`${platform.baseUrl}/models`, { headers: { [name]: 'nobody' } });
  expect(wrong.status).toBe(401);
});

test("Azure's client of the SDK works with the gateway's key", async () => {
  const azure = new AzureOpenAI({ apiKey: platform.adminKey, baseURL: platform.baseUrl, apiVersion: '2024-10-21' });
  expect((await azure.files.list()).data).toEqual([]);
  expect((await azure.models.list()).data.length).toBeGreaterThan(0);
});

test('a call that uses x-portkey- headers gets those of its answer by these names', async () => {
  upstream.script(answers);
  const headers = {
    'x-portkey-api-key': platform.adminKey,
    'x-portkey-config': JSON.stringify({ virtual_key: 'scripted' }),
    'content-type': 'application/json',
  };
  const body = JSON.stringify({ model: 'any', messages });
  const response = await fetch(`${platform.baseUrl}/chat/completions`, { method: 'POST', headers, body });
  upstream.requests.length = 0;
  const seen = Object.fromEntries([...response.headers].filter(([name]) => name.startsWith('x-portkey-')));
  expect(seen).toEqual({
    'x-portkey-trace-id': response.headers.get('x-gateway-trace-id'),
    'x-portkey-provider': 'openai-compatible',
    'x-portkey-cache-status': 'DISABLED',
    'x-portkey-last-used-option-index': 'config',
    'x-portkey-retry-attempt-count': '0',
  });
});

describe.each(sdks)('$name', (sdk) => {
  type Headers = () => Record<string, string>;
  const own = 'Bearer sk-own-provider-key';
  const stored = `Bearer ${canary}`;
  const host = (): string => upstream.url.href;

  // With the gateway key in its own header the SDK's key is the provider's (AUTH-1).
  test.each<[string, { apiKey?: string; model: string; headers: Headers; seen: string | undefined }]>([
    [
      'a virtual key by header',
      { model: 'any', headers: () => ({ 'x-gateway-virtual-key': 'scripted' }), seen: stored },
    ],
    ['a virtual key in the model', { model: '@scripted/any', headers: () => ({}), seen: stored }],
    [
      'the virtual key in the model, which wins over the header',
      { model: '@scripted/any', headers: () => ({ 'x-gateway-virtual-key': 'simulator' }), seen: stored },
    ],
    [
      'a virtual key as the provider',
      { model: 'any', headers: () => ({ 'x-gateway-provider': '@scripted' }), seen: stored },
    ],
    [
      'provider, key and custom host',
      {
        apiKey: 'sk-own-provider-key',
        model: 'any',
        headers: () => ({
          'x-gateway-api-key': platform.adminKey,
          'x-gateway-provider': 'openai',
          'x-gateway-custom-host': host(),
        }),
        seen: own,
      },
    ],
    [
      'a config with a virtual key',
      { model: 'any', headers: () => ({ 'x-gateway-config': '{"virtual_key":"scripted"}' }), seen: stored },
    ],
    [
      'a config with provider, key and custom host',
      {
        model: 'any',
        headers: () => ({
          'x-gateway-config': JSON.stringify({
            provider: 'openai',
            api_key: 'sk-own-provider-key',
            custom_host: host(),
          }),
        }),
        seen: own,
      },
    ],
    [
      'the names of the interface we descend from',
      { model: 'any', headers: () => ({ 'x-portkey-virtual-key': 'scripted' }), seen: stored },
    ],
  ])(
    'a call with %s reaches the provider with that credential only',
    async (_what, { apiKey, model, headers, seen }) => {
      upstream.script(answers);
      const client = new sdk.OpenAI({
        apiKey: apiKey ?? platform.adminKey,
        baseURL: platform.baseUrl,
        defaultHeaders: headers(),
      });
      expect(await client.chat.completions.create({ model, messages })).toEqual(answer);
      const [request] = upstream.requests;
      expect(request?.headers['authorization']).toBe(seen);
      expect(JSON.parse(request?.body.toString() ?? '')).toEqual({ model: 'any', messages });
      expect(request?.bytes.toString('latin1')).not.toContain(platform.adminKey);
      upstream.requests.length = 0;
    },
  );

  test.each<[string, Headers, string | null, string]>([
    [
      'an unknown virtual key',
      () => ({ 'x-gateway-virtual-key': 'nobody' }),
      'x-gateway-virtual-key',
      'virtual_key_not_found',
    ],
    ['an unknown provider', () => ({ 'x-gateway-provider': 'nobody' }), 'x-gateway-provider', 'invalid_value'],
    [
      'a hosted provider without its key',
      () => ({ 'x-gateway-provider': 'openai' }),
      'authorization',
      'missing_credentials',
    ],
    [
      'a provider that has no default address',
      () => ({ 'x-gateway-provider': 'openai-compatible' }),
      'x-gateway-custom-host',
      'missing_custom_host',
    ],
    [
      'a virtual key and the host of somebody else',
      () => ({ 'x-gateway-virtual-key': 'scripted', 'x-gateway-custom-host': 'http://127.0.0.1:9/v1' }),
      'x-gateway-custom-host',
      'custom_host_mismatch',
    ],
    [
      'a config that is no JSON',
      () => ({ 'x-gateway-config': '{"virtual_key":' }),
      'x-gateway-config',
      'invalid_value',
    ],
  ])('a call with %s is 400, and reaches nobody', async (_what, headers, param, code) => {
    const client = new sdk.OpenAI({ apiKey: platform.adminKey, baseURL: platform.baseUrl, defaultHeaders: headers() });
    const error = await getFailureCode(client.chat.completions.create({ model: 'any', messages }));
    expect(error).toBeInstanceOf(sdk.OpenAI.BadRequestError);
    expect(error).toMatchObject({ status: 400, type: 'invalid_request_error', param, code });
    expect(credentialsSeen()).toEqual([]);
  });

  test('a batch keeps the credentials that it was created with, in each of the four ways', async () => {
    upstream.script(answers);
    const lines = [chatLine('a', { model: 'any' })];
    const run = async (headers: Record<string, string>, apiKey = platform.adminKey, params = {}) => {
      const client = new sdk.OpenAI({ apiKey, baseURL: platform.baseUrl, defaultHeaders: headers });
      const batch = await runBatch(sdk, client, lines, params);
      expect(batch).toMatchObject({ status: 'completed', request_counts: { completed: 1, failed: 0 } });
      expect((await resultsOf(client, batch)).output[0]?.response?.body).toEqual(answer);
      return credentialsSeen();
    };
    expect(await run({ 'x-gateway-virtual-key': 'scripted' })).toEqual([stored]);
    expect(await run({}, platform.adminKey, { gateway_options: { virtual_key: 'scripted' } })).toEqual([stored]);
    expect(await run({ 'x-gateway-config': '{"virtual_key":"scripted"}' })).toEqual([stored]);
    const ownKey = 'sk-own-provider-key';
    const named = { 'x-gateway-provider': 'openai', 'x-gateway-custom-host': host() };
    expect(await run({ 'x-gateway-api-key': platform.adminKey, ...named }, ownKey)).toEqual([own]);
    const { rows } = await platform.database.pool.query<{ text: string }>(
      'select data::text as text from event union all select target::text || gateway_options::text || headers::text from batch',
    );
    expect(rows.filter(({ text }) => text.includes(ownKey) || text.includes(canary))).toEqual([]);
  });

  test('a revoked key is refused within a second', async () => {
    const created = await call('POST', '/api-keys', { body: { name: 'short-lived' } });
    expect(created).toMatchObject({
      status: 200,
      body: {
        id: expect.stringMatching(/^key_/),
        object: 'api-key',
        name: 'short-lived',
        scopes: null,
        last_four: String(created.body['key']).slice(-4),
        status: 'active',
        defaults: { config_id: null, metadata: null, allow_config_override: true },
        created_at: expect.stringMatching(/^20\d\d-.*Z$/),
        expires_at: null,
        key: expect.stringMatching(/^\S{20,}$/),
      },
    });
    const { id, key } = created.body as { id: string; key: string };
    const client = new sdk.OpenAI({ apiKey: key, baseURL: platform.baseUrl });
    expect((await client.batches.list()).data).toBeDefined();
    const gone = await call('DELETE', `/api-keys/${id}`);
    expect(gone.body).toEqual({ id, object: 'api-key', deleted: true });
    const status = async (): Promise<number> => (await call('GET', '/batches', { key })).status;
    await eventually(status, (code) => code === 401, { timeoutMs: 1_000 });
    const sent = watchCalls(platform.baseUrl);
    const error = await getFailureCode(client.batches.list());
    expect(error).toBeInstanceOf(sdk.OpenAI.AuthenticationError);
    expect(error.code).toBe('invalid_api_key');
    expect(sent.calls).toHaveLength(1);
    expect((await call('GET', `/api-keys/${id}`)).status).toBe(404);
  });

  test('a key does what its scopes say and nothing else', async () => {
    const { body } = await call('POST', '/api-keys', {
      body: { name: 'reader', scopes: ['batches.read', 'files.read'] },
    });
    const client = new sdk.OpenAI({ apiKey: String(body['key']), baseURL: platform.baseUrl });
    expect((await client.batches.list()).data).toBeDefined();
    expect((await client.files.list()).data).toBeDefined();
    const upload = async (): Promise<unknown> =>
      await client.files.create({ file: await sdk.toFile(Buffer.from('{}'), 'a.jsonl'), purpose: 'batch' });
    const refused: [() => PromiseLike<unknown>, string][] = [
      [() => client.batches.cancel('batch_x'), 'batches.write'],
      [upload, 'files.write'],
      [() => client.chat.completions.create({ model: '@scripted/any', messages }), 'chat.write'],
      [() => client.models.list(), 'models.read'],
      [() => client.get('/api-keys'), 'api_keys.read'],
      [() => client.get('/logs'), 'logs.read'],
    ];
    for (const [attempt, scope] of refused) {
      const error = await getFailureCode(attempt());
      expect(error).toBeInstanceOf(sdk.OpenAI.PermissionDeniedError);
      expect(error).toMatchObject({ status: 403, type: 'permission_error', param: null, code: 'missing_scope' });
      expect(error.message).toContain(`'${scope}'`);
    }
    expect(credentialsSeen()).toEqual([]);
  });

  test('a key that has expired is refused', async () => {
    const expires_at = new Date(Date.now() + 500).toISOString();
    const { body } = await call('POST', '/api-keys', { body: { name: 'old', expires_at } });
    const client = new sdk.OpenAI({ apiKey: String(body['key']), baseURL: platform.baseUrl });
    const refusal = await eventually(
      async () =>
        await client.batches.list().then(
          () => null,
          (error: unknown) => error,
        ),
      (error) => error !== null,
    );
    expect(refusal).toMatchObject({ status: 401, code: 'invalid_api_key' });
  });

  test('another workspace sees neither virtual keys nor API keys, and cannot call through them', async () => {
    const key = await createWorkspace(platform);
    const admin = await call('GET', '/api-keys');
    const [{ id }] = (admin.body as { data: [{ id: string }] }).data;
    expect((await call('GET', '/virtual-keys', { key })).body).toMatchObject({ data: [{ slug: 'simulator' }] });
    for (const [method, route] of [
      ['GET', '/virtual-keys/scripted'],
      ['DELETE', '/virtual-keys/scripted'],
      ['GET', `/api-keys/${id}`],
      ['DELETE', `/api-keys/${id}`],
    ] as const) {
      expect(await call(method, route, { key })).toMatchObject({ status: 404 });
    }
    const client = new sdk.OpenAI({ apiKey: key, baseURL: platform.baseUrl });
    const error = await getFailureCode(client.chat.completions.create({ model: '@scripted/any', messages }));
    expect(error).toMatchObject({ status: 400, param: 'model', code: 'virtual_key_not_found' });
    expect(credentialsSeen()).toEqual([]);
    expect((await call('GET', '/virtual-keys/scripted')).status).toBe(200);
  });
});

test('a virtual key never shows its credential, and a rotated one takes effect at once', async () => {
  upstream.script(answers);
  const slug = 'rotating';
  const created = await call('POST', '/virtual-keys', {
    body: {
      name: 'Rotating',
      slug,
      provider: 'openai-compatible',
      key: 'sk-first-aaaa',
      custom_host: upstream.url.href,
    },
  });
  const record = {
    id: expect.stringMatching(/^vk_/),
    object: 'virtual-key',
    slug,
    name: 'Rotating',
    workspace_id: expect.stringMatching(/^ws_/),
    provider: 'openai-compatible',
    ai_provider_name: 'openai-compatible',
    last_four: 'aaaa',
    custom_host: upstream.url.href,
    note: null,
    status: 'active',
    usage_limits: null,
    usage_reset_at: null,
    secret_mappings: [],
    rate_limits: null,
    settings: {},
    model_config: { custom_host: upstream.url.href },
    created_at: expect.any(String),
    last_updated_at: expect.any(String),
    updated_at: expect.any(String),
    expires_at: null,
  };
  const enveloped = { ...record, success: true, data: { id: record.id, slug } };
  expect(created).toEqual({ status: 200, body: enveloped });
  const ask = async (): Promise<number> =>
    (await postJson(platform, '/chat/completions', { model: `@${slug}/any`, messages })).status;
  expect(await ask()).toBe(200);
  const updated = await call('PUT', `/virtual-keys/${slug}`, { body: { key: 'sk-second-bbbb', note: 'new' } });
  expect(updated.body).toEqual({ ...enveloped, last_four: 'bbbb', note: 'new' });
  expect(await ask()).toBe(200);
  expect(credentialsSeen()).toEqual(['Bearer sk-first-aaaa', 'Bearer sk-second-bbbb']);
  const list = await call('GET', '/virtual-keys');
  expect(list.body).toMatchObject({ object: 'list', has_more: false });
  const retrieved = await call('GET', `/virtual-keys/${slug}`);
  for (const { body } of [created, updated, list, retrieved]) {
    expect(JSON.stringify(body)).not.toMatch(/sk-first|sk-second|CANARY/);
  }
  expect(
    await call('POST', '/virtual-keys', { body: { name: 'x', slug, provider: 'openai', key: 'k' } }),
  ).toMatchObject({
    status: 409,
    body: { error: { code: 'slug_taken', param: 'slug' } },
  });
  expect((await call('DELETE', `/virtual-keys/${slug}`)).status).toBe(200);
  expect((await call('GET', `/virtual-keys/${slug}`)).status).toBe(404);
  expect(await ask()).toBe(400);
});

test('a key cannot give away more than it has', async () => {
  const { body } = await call('POST', '/api-keys', {
    body: { name: 'maker', scopes: ['api_keys.write', 'chat.write'] },
  });
  const key = String(body['key']);
  for (const scopes of [undefined, ['chat.write', 'files.read']]) {
    expect(await call('POST', '/api-keys', { key, body: { name: 'more', scopes } })).toMatchObject({
      status: 403,
      body: { error: { code: 'insufficient_scope', param: 'scopes' } },
    });
  }
  const less = await call('POST', '/api-keys', { key, body: { name: 'less', scopes: ['chat.write'] } });
  expect(less).toMatchObject({ status: 200, body: { scopes: ['chat.write'] } });
});

test('a key that is revoked at one process is refused by another within a second', async () => {
  const elsewhere = await startApiProcess(platform);
  const { body } = await call('POST', '/api-keys', { body: { name: 'two processes' } });
  const status = async (): Promise<number> =>
    (await fetch(`${elsewhere}/batches`, { headers: { 'x-gateway-api-key': String(body['key']) } })).status;
  expect(await status()).toBe(200);
  await call('DELETE', `/api-keys/${String(body['id'])}`);
  await eventually(status, (code) => code === 401, { timeoutMs: 1_000 });
});
