import Anthropic from '@anthropic-ai/sdk';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { eventually } from '#test/eventually.ts';
import type { TestPlatform } from '#test/platform.ts';
import type { Upstream } from '#test/upstream.ts';
import { chatLine, createBatch, ended, resultsOf } from './batch-kit.ts';
import { postJson, startScriptedPlatform, storeVirtualKey, type ScriptedPlatform } from './scripted-provider.ts';
import { getFailureCode, sdks, type Client, type Sdk } from './sdk.ts';
import { createWorkspace } from './second-workspace.ts';

// Public model names, as the SDKs of OpenAI and Anthropic use them: no header names a provider.

const sdk = sdks[0] as Sdk;
let scripted: ScriptedPlatform;
let platform: TestPlatform;
let upstream: Upstream;
let client: Client;
let claude: Anthropic;
/** A workspace without public models. */
let otherKey: string;
beforeAll(async () => {
  scripted = await startScriptedPlatform();
  ({ platform, upstream } = scripted);
  client = new sdk.OpenAI({ apiKey: platform.adminKey, baseURL: platform.baseUrl, maxRetries: 0 });
  claude = new Anthropic({ apiKey: platform.adminKey, baseURL: new URL(platform.baseUrl).origin, maxRetries: 0 });
  otherKey = await createWorkspace(platform);
  await storeVirtualKey(platform, 'first', platform.simulatorUrl);
  await storeVirtualKey(platform, 'claude', `${new URL(platform.simulatorUrl).origin}/v1`, 'anthropic');
  await platform.startWorker();
});
afterAll(() => scripted.stop());

type Answer = {
  status: number;
  body: Record<string, unknown> & { error?: { code: string; param: string; message: string } };
};

async function send(method: string, route: string, body?: object, key = platform.adminKey): Promise<Answer> {
  const response = await fetch(`${platform.baseUrl}${route}`, {
    method,
    headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
    ...(body === undefined ? {} : { body: JSON.stringify(body) }),
  });
  return { status: response.status, body: (await response.json()) as Answer['body'] };
}

async function make(model: object): Promise<string> {
  const { status, body } = await send('POST', '/public-models', model);
  if (status !== 200) throw new Error(JSON.stringify(body));
  return body['slug'] as string;
}

const question = { messages: [{ role: 'user' as const, content: 'Hi' }] };
const ask = (model: string, headers: Record<string, string> = {}, of: Client = client) =>
  of.chat.completions.create({ model, ...question }, { headers });

type Row = Record<string, unknown> & { public_model: string | null; model: string };
async function rowOf(traceId: string): Promise<Row> {
  const list = async () => (await send('GET', `/logs?trace_id=${traceId}`)).body as unknown as { data: Row[] };
  const [row] = (await eventually(list, ({ data }) => data.length > 0)).data;
  return row as Row;
}

/** A key that service programs use; it is not the one that owns the models. */
async function makeKey(): Promise<{ id: string; key: string; client: Client }> {
  const { body } = await send('POST', '/api-keys', { name: 'service' });
  const { id, key } = body as { id: string; key: string };
  return { id, key, client: new sdk.OpenAI({ apiKey: key, baseURL: platform.baseUrl, maxRetries: 0 }) };
}

describe('a call with a public name', () => {
  test('is served by the target of the model, and its record has both names', async () => {
    await make({ name: 'small', targets: [{ provider: '@first', model: 'sim-small' }] });
    const answer = await ask('small', { 'x-gateway-trace-id': 'public-small' });
    expect(answer.choices[0]?.message.content).toBeTypeOf('string');
    expect(await rowOf('public-small')).toMatchObject({ public_model: 'small', model: 'sim-small', status: 200 });
    const { body } = await send('GET', '/logs?public_model=small');
    expect(body['data']).toMatchObject([{ trace_id: 'public-small' }]);
  });

  test('tries the targets in order, and keeps the public name as the model by default', async () => {
    upstream.script((reply) => reply.json(500, { error: { message: 'no' } }));
    await make({
      name: 'sim-large',
      targets: [{ provider: '@scripted' }, { virtual_key: 'first', model: 'sim-small' }],
    });
    const before = upstream.requests.length;
    await ask('sim-large', { 'x-gateway-trace-id': 'public-order' });
    const asked = upstream.requests.slice(before).map(({ body }) => JSON.parse(body.toString()) as { model: string });
    expect(asked.map(({ model }) => model)).toEqual(['sim-large']);
    expect(await rowOf('public-order')).toMatchObject({ public_model: 'sim-large', model: 'sim-small', fallbacks: 1 });
  });

  test('works with the SDK of Anthropic, as a message and as a stream', async () => {
    await make({ name: 'claude-fast', targets: [{ provider: '@claude', model: 'sim-small' }] });
    const request = { model: 'claude-fast', max_tokens: 50, ...question };
    expect(await claude.messages.create(request)).toMatchObject({ type: 'message', role: 'assistant' });
    expect(await claude.messages.stream(request).finalMessage()).toMatchObject({ role: 'assistant' });
  });

  test('is priced with the price of the model', async () => {
    await make({
      name: 'priced',
      targets: [{ provider: '@first', model: 'sim-small' }],
      price: { input: '1000000', output: '0' },
    });
    await ask('priced', { 'x-gateway-trace-id': 'public-price' });
    const row = (await rowOf('public-price')) as Row & { usage: { input_tokens: number }; cost_usd: string };
    expect(Number(row.cost_usd)).toBe(row.usage.input_tokens);
    expect(row['price_version']).toMatch(/^own\./);
  });

  test('changes with the record, at once', async () => {
    const slug = await make({ name: 'moving', targets: [{ provider: '@first', model: 'sim-small' }] });
    await send('PUT', `/public-models/${slug}`, { targets: [{ provider: '@first', model: 'sim-large' }] });
    await ask('moving', { 'x-gateway-trace-id': 'public-moved' });
    expect(await rowOf('public-moved')).toMatchObject({ model: 'sim-large' });
    await send('DELETE', `/public-models/${slug}`);
    expect(await getFailureCode(ask('moving'))).toMatchObject({ status: 404, code: 'model_not_found', param: 'model' });
  });

  test('goes to the provider that the call itself names, not to the public model', async () => {
    await make({ name: 'sim-text', targets: [{ provider: '@first', model: 'never-used' }] });
    await ask('sim-text', { 'x-gateway-virtual-key': 'first', 'x-gateway-trace-id': 'public-own' });
    expect(await rowOf('public-own')).toMatchObject({ public_model: null, model: 'sim-text' });
  });

  test('can be passed through to its first target', async () => {
    upstream.script((reply) => reply.json(200, { id: 'modr_1', model: 'mod-1', results: [] }));
    await make({ name: 'moderator', targets: [{ provider: '@scripted', model: 'mod-1' }] });
    const before = upstream.requests.length;
    await client.moderations.create({ model: 'moderator', input: 'Hi' });
    const [asked] = upstream.requests.slice(before);
    expect(JSON.parse(asked?.body.toString() ?? '{}')).toMatchObject({ model: 'mod-1' });
  });
});

describe('a wildcard', () => {
  test('inserts the part that matched, and the longest literal part wins', async () => {
    await make({ name: 'any/*', targets: [{ provider: '@first', model: 'sim-*' }] });
    await make({ name: 'any/large-*', targets: [{ provider: '@first', model: 'wide-*' }] });
    await make({ name: 'any/exact', targets: [{ provider: '@first', model: 'sim-exact' }] });
    const asked = async (model: string) => {
      await ask(model, { 'x-gateway-trace-id': `wild-${model.slice(4)}` }).catch(() => {});
      return await rowOf(`wild-${model.slice(4)}`);
    };
    expect(await asked('any/small')).toMatchObject({ public_model: 'any/small', model: 'sim-small' });
    expect(await asked('any/large-one')).toMatchObject({ public_model: 'any/large-one', model: 'wide-one' });
    expect(await asked('any/exact')).toMatchObject({ public_model: 'any/exact', model: 'sim-exact' });
    expect(await getFailureCode(ask('any/'))).toMatchObject({ code: 'model_not_found' });
  });
});

describe('an unknown name', () => {
  test('is answered with 404 and the nearest names', async () => {
    await make({ name: 'nearest-one', targets: [{ provider: '@first' }] });
    const error = await getFailureCode(ask('nearst-one'));
    expect(error).toMatchObject({
      status: 404,
      code: 'model_not_found',
      param: 'model',
      type: 'invalid_request_error',
    });
    expect(error.message).toMatch(/'nearest-one'/);
  });

  test('explains how to name a provider in a workspace without public models', async () => {
    const { status, body } = await send('POST', '/chat/completions', { model: 'gpt-5', ...question }, otherKey);
    expect(status).toBe(404);
    expect(body.error).toMatchObject({
      code: 'model_not_found',
      message: expect.stringContaining('x-gateway-virtual-key'),
    });
  });
});

describe('a name that only some callers can use', () => {
  test('answers all others as unknown, and is not listed for them', async () => {
    const [allowed, other] = [await makeKey(), await makeKey()];
    await make({
      name: 'for-one-key',
      targets: [{ provider: '@first', model: 'sim-small' }],
      allowed: { keys: [allowed.id] },
    });
    await ask('for-one-key', {}, allowed.client);
    const error = await getFailureCode(ask('for-one-key', {}, other.client));
    expect(error).toMatchObject({ status: 404, code: 'model_not_found' });
    expect(error.message).not.toContain("Similar names: 'for-one-key'");
    const names = async (of: Client) => (await of.models.list()).data.map(({ id }) => id);
    expect(await names(allowed.client)).toContain('for-one-key');
    expect(await names(other.client)).not.toContain('for-one-key');
    // A config does not lead around it.
    const config = { targets: [{ override_params: { model: 'for-one-key' } }] };
    const headers = { 'x-gateway-config': JSON.stringify(config) };
    expect(await getFailureCode(ask('x', headers, other.client))).toMatchObject({ code: 'model_not_found' });
    await ask('x', headers, allowed.client);
  });

  test('can be limited to roles, which a service key does not have', async () => {
    await make({
      name: 'for-admins',
      targets: [{ provider: '@first', model: 'sim-small' }],
      allowed: { roles: ['admin'] },
    });
    const { client: service } = await makeKey();
    expect(await getFailureCode(ask('for-admins', {}, service))).toMatchObject({ code: 'model_not_found' });
  });
});

describe('a model of the organisation', () => {
  test('serves the workspaces that it lists, and a workspace can have its own model of that name', async () => {
    const { id } = (await send('POST', '/admin/workspaces', { name: 'listed' })).body as { id: string };
    const { key } = (await send('POST', '/api-keys', { name: 'admin', workspace_id: id })).body as { key: string };
    const host = { provider: 'openai-compatible', key: 'sk-1', custom_host: platform.simulatorUrl };
    await send('POST', '/virtual-keys', { name: 'own', slug: 'own', ...host }, key);
    const shared = { organisation_id: 'org_default', allowed: { workspaces: [id] } };
    await make({ name: 'shared', targets: [{ provider: '@own', model: 'sim-small' }], ...shared });
    const of = new sdk.OpenAI({ apiKey: key, baseURL: platform.baseUrl, maxRetries: 0 });
    expect(await ask('shared', {}, of)).toMatchObject({ model: 'sim-small' });
    expect((await of.models.list()).data).toMatchObject([{ id: 'shared', owned_by: 'org_default' }]);
    const seen = async (by: string) => (await send('GET', '/public-models', undefined, by)).body['data'];
    expect(await seen(key)).toMatchObject([{ name: 'shared', workspace_id: null }]);
    expect(await seen(otherKey)).toEqual([]);
    const change = await send('PUT', '/public-models/shared', { description: 'mine' }, key);
    expect(change.body.error).toMatchObject({ code: 'organisation_key_required' });
    const own = { name: 'shared', targets: [{ provider: '@own', model: 'sim-large' }] };
    expect((await send('POST', '/public-models', own, key)).status).toBe(200);
    expect(await ask('shared', {}, of)).toMatchObject({ model: 'sim-large' });
  });
});

describe('targets that name public models', () => {
  test('are replaced by the targets of these models, in configs and in models', async () => {
    await make({ name: 'inner', targets: [{ provider: '@first', model: 'sim-small' }] });
    await make({ name: 'outer', targets: [{ model: 'inner' }] });
    await ask('outer', { 'x-gateway-trace-id': 'public-nested' });
    expect(await rowOf('public-nested')).toMatchObject({ public_model: 'outer', model: 'sim-small' });
    const config = JSON.stringify({
      strategy: { mode: 'fallback' },
      targets: [{ override_params: { model: 'outer' } }, {}],
    });
    await ask('inner', { 'x-gateway-config': config, 'x-gateway-trace-id': 'public-config' });
    expect(await rowOf('public-config')).toMatchObject({
      public_model: 'outer',
      last_used_option: 'config.targets[0].targets[0].targets[0]',
    });
  });

  test('refuse a circle when it is called, and a model that names itself when it is made', async () => {
    const self = await send('POST', '/public-models', { name: 'self', targets: [{ weight: 1 }] });
    expect(self.body.error).toMatchObject({ param: 'targets[0]' });
    await make({ name: 'ring-a', targets: [{ model: 'ring-b' }] });
    await make({ name: 'ring-b', targets: [{ model: 'ring-a' }] });
    const error = await getFailureCode(ask('ring-a'));
    expect(error).toMatchObject({ status: 400, code: 'model_cycle' });
    expect(error.message).toContain("'ring-a' -> 'ring-b' -> 'ring-a'");
  });

  test('refuse more targets together than a config can have', async () => {
    await make({
      name: 'wide',
      targets: Array.from({ length: 10 }, () => ({ provider: '@first', model: 'sim-small' })),
    });
    await make({ name: 'wider', targets: Array.from({ length: 6 }, () => ({ model: 'wide' })) });
    expect(await getFailureCode(ask('wider'))).toMatchObject({ status: 400, code: 'model_too_large' });
  });
});

describe('a record that is wrong', () => {
  const good = { name: 'wrong', targets: [{ provider: '@first' }] };
  test.each<[object, string]>([
    [{ ...good, name: '@wrong' }, 'name'],
    [{ ...good, name: 'a*b*' }, 'name'],
    [{ ...good, name: 'two words' }, 'name'],
    [{ ...good, name: 'x'.repeat(201) }, 'name'],
    [{ ...good, targets: [] }, 'targets'],
    [{ ...good, targets: [{ provider: '@first', model: 7 }] }, 'targets[0].model'],
    [{ ...good, targets: [{ provider: '@first', model: 'a', override_params: { model: 'b' } }] }, 'targets[0].model'],
    [{ ...good, targets: [{ provider: '@first', weigth: 1 }] }, 'targets[0].weigth'],
    [{ ...good, targets: [{ provider: 'openai', api_key: 'sk-1' }] }, 'targets[0].api_key'],
    [{ ...good, strategy: { mode: 'fastest' } }, 'strategy.mode'],
    [{ ...good, retry: { attempts: 99 } }, 'retry.attempts'],
    [{ ...good, allowed: { roles: ['king'] } }, 'allowed.roles[0]'],
    [{ ...good, price: { input: 'much' } }, 'price.input'],
    [{ ...good, capabilities: { context_window: 0 } }, 'capabilities.context_window'],
  ])('%j is refused at its member', async (model, param) => {
    const { status, body } = await send('POST', '/public-models', model);
    expect({ status, param: body.error?.param }).toEqual({ status: 400, param });
    expect(body.error?.message).not.toMatch(/'model\.|undefined/);
  });

  test('has a name that another model already has', async () => {
    await make({ name: 'taken', targets: [{ provider: '@first' }] });
    const { status, body } = await send('POST', '/public-models', { name: 'taken', targets: [{ provider: '@first' }] });
    expect({ status, code: body.error?.code }).toEqual({ status: 409, code: 'model_name_taken' });
  });
});

describe('the list of models', () => {
  test('has exactly the exact names, in the form of OpenAI and of Anthropic', async () => {
    const ids = (await client.models.list()).data.map(({ id }) => id);
    expect(ids).toContain('small');
    expect(ids.filter((id) => id.includes('*'))).toEqual([]);
    expect(await client.models.retrieve('small')).toMatchObject({
      id: 'small',
      object: 'model',
      owned_by: expect.any(String),
    });
    expect(await client.models.retrieve('any/thing')).toMatchObject({ id: 'any/thing' });
    expect(await getFailureCode(client.models.retrieve('smal'))).toMatchObject({
      status: 404,
      code: 'model_not_found',
    });
    const page = await claude.models.list({ limit: 2 });
    expect(page.data.map(({ id }) => id)).toEqual(ids.slice(0, 2));
    expect(page.has_more).toBe(true);
    const listed: string[] = [];
    for await (const model of claude.models.list({ limit: 3 })) listed.push(model.id);
    expect(listed.toSorted()).toEqual(ids.toSorted());
    expect(await claude.models.retrieve('small')).toMatchObject({ type: 'model', id: 'small', display_name: 'small' });
  });

  test('has the models of a provider that the request names, as before', async () => {
    const headers = { 'x-gateway-virtual-key': 'first' };
    const ids = (await client.models.list({ headers })).data.map(({ id }) => id);
    expect(ids).toContain('sim-text');
  });
});

describe('a batch without a target', () => {
  test('calls lines with public names, and refuses lines with other names', async () => {
    await make({ name: 'batched', targets: [{ provider: '@first', model: 'sim-small' }] });
    await make({ name: 'batched/*', targets: [{ provider: '@first', model: 'sim-*' }] });
    const lines = [chatLine('one', { model: 'batched' }), chatLine('two', { model: 'batched/small' })];
    const batch = await ended(client, await createBatch(sdk, client, lines));
    expect(batch).toMatchObject({ status: 'completed', request_counts: { total: 2, completed: 2 } });
    const { output } = await resultsOf(client, batch);
    expect(output.map(({ response }) => response?.body['model'])).toEqual(['sim-small', 'sim-small']);
    const refused = await ended(client, await createBatch(sdk, client, [chatLine('one', { model: 'unknown' })]));
    expect(refused).toMatchObject({ status: 'failed', errors: { data: [{ code: 'model_not_found', line: 1 }] } });
  });

  test('can have a public name as the model of all lines, and its dry run prices it', async () => {
    await make({
      name: 'batch-priced',
      targets: [{ provider: '@first', model: 'sim-small' }],
      price: { input: '1', output: '1' },
    });
    const input = await createBatch(sdk, client, [chatLine('one', { model: 'batch-priced', max_tokens: 10 })]);
    const dry = await postJson(platform, '/batches/dry-run', {
      input_file_id: input.input_file_id,
      endpoint: '/v1/chat/completions',
      completion_window: '24h',
    });
    expect(await dry.json()).toMatchObject({
      valid: true,
      models: [
        {
          model: 'batch-priced',
          problem: null,
          target: [expect.stringContaining('sim-small')],
          cost_max_usd: expect.any(String),
        },
      ],
    });
    const whole = await createBatch(sdk, client, [chatLine('one', { model: 'ignored' })], {
      gateway_options: { provider_model: 'batch-priced' },
    } as object);
    expect(await ended(client, whole)).toMatchObject({ status: 'completed' });
  });
});

test('secrets of guardrails in a target are neither shown nor recorded, and stay when other members change', async () => {
  const secret = 'CANARY-of-a-webhook';
  const headers = { authorization: secret };
  const check = { 'default.webhook': { webhookURL: upstream.url.href, headers }, deny: true };
  const target = { provider: '@first', model: 'sim-small', input_guardrails: [check] };
  const slug = await make({ name: 'guarded', targets: [target] });
  await send('PUT', `/public-models/${slug}`, { description: 'With a check' });
  expect(JSON.stringify(await send('GET', `/public-models/${slug}`))).not.toContain(secret);
  expect(JSON.stringify(await send('GET', '/events?limit=100'))).not.toContain(secret);
  upstream.script((reply) => reply.json(200, { verdict: true }));
  const before = upstream.requests.length;
  await ask('guarded');
  expect(upstream.requests.slice(before)).toMatchObject([{ headers }]);
});
