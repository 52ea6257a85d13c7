import { streamOf } from '#test/upstream.ts';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { sql } from 'kysely';
import { inlineModels } from '#apps/platform/models.ts';
import { announceAccessChange } from '#libs/identity/access-change.ts';
import { checkInlineModels } from '#libs/event-log/rebuild.ts';
import { ended, resultsOf, toJsonl, uploadInput } from './batch-kit.ts';
import { startScriptedPlatform, type ScriptedPlatform } from './scripted-provider.ts';
import { sdks, type Sdk } from './sdk.ts';
import { createWorkspace } from './second-workspace.ts';

// Guardrails of a workspace: no call of it is made without them, whatever it says.

const sdk = sdks[0] as Sdk;
const none = (word: string) => ({ contains: { operator: 'none', words: [word] }, deny: true });
const guardrails = {
  input_guardrails: [{ ...none('Apple'), id: 'ours' }],
  output_guardrails: [{ ...none('Pear'), id: 'ours-too' }],
};

let scripted: ScriptedPlatform;
beforeAll(async () => {
  scripted = await startScriptedPlatform();
});
afterAll(() => scripted.stop());
beforeEach(async () => {
  scripted.upstream.requests.length = 0;
  answer('Plum');
  await set({});
});

function answer(content: string): void {
  const choices = [{ index: 0, message: { role: 'assistant', content }, finish_reason: 'stop' }];
  scripted.upstream.script((reply) => reply.json(200, { object: 'chat.completion', model: 'm', choices }));
}

type Sent = { body?: unknown; headers?: Record<string, string>; key?: string };

async function call(method: string, route: string, { body, headers, key }: Sent = {}) {
  const response = await fetch(`${scripted.platform.baseUrl}${route}`, {
    method,
    headers: {
      'x-gateway-api-key': key ?? scripted.platform.adminKey,
      'content-type': 'application/json',
      ...headers,
    },
    ...(body === undefined ? {} : { body: JSON.stringify(body) }),
  });
  const text = await response.text();
  const json = (text.startsWith('{') ? JSON.parse(text) : { text }) as Record<string, unknown>;
  return { status: response.status, body: json };
}

const set = (body: object, key?: string) => call('PUT', '/admin/guardrails', { body, ...(key ? { key } : {}) });
const chat = (content: string, more: object = {}) => ({
  model: '@scripted/m',
  messages: [{ role: 'user', content }],
  ...more,
});
const ask = (content: string, sent: Sent = {}, more: object = {}) =>
  call('POST', '/chat/completions', { ...sent, body: chat(content, more) });
const inline = (config: object): Sent => ({ headers: { 'x-gateway-config': JSON.stringify(config) } });

test('they are set, shown and ended, and each change is an event', async () => {
  const object = 'workspace.guardrails';
  expect(await set(guardrails)).toEqual({ status: 200, body: { object, ...guardrails } });
  expect(await call('GET', '/admin/guardrails')).toEqual({ status: 200, body: { object, ...guardrails } });
  expect((await ask('Apple')).status).toBe(446);
  expect((await set({})).body).toEqual({ object, input_guardrails: [], output_guardrails: [] });
  expect((await ask('Apple')).status).toBe(200);
  const { pool } = scripted.platform.database;
  const { rows } = await pool.query(`select data from event where type = 'workspace.guardrails_set' order by position`);
  expect(rows.at(-2)).toEqual({ data: guardrails });
  expect((await checkInlineModels(pool, inlineModels)).difference).toBeNull();
});

test.each<[string, Sent, object]>([
  ['a plain call', {}, {}],
  ['a stream', {}, { stream: true }],
  ['a config without guardrails', inline({ input_guardrails: [], output_guardrails: [] }), {}],
  [
    'a fallback that lists 446',
    inline({ strategy: { mode: 'fallback', on_status_codes: [446] }, targets: [{}, {}] }),
    {},
  ],
  ['a load balance', inline({ strategy: { mode: 'loadbalance' }, targets: [{ weight: 1 }] }), {}],
  ['a cache', inline({ cache: { mode: 'simple' } }), {}],
  ['a timeout by header', { headers: { 'x-gateway-request-timeout': '5000' } }, {}],
])('%s is judged by them', async (_what, sent, more) => {
  expect((await ask('A fig', sent, more)).status).toBe(200);
  await set(guardrails);
  scripted.upstream.requests.length = 0;
  expect(await ask('An Apple', sent, more)).toMatchObject({
    status: 446,
    body: { hook_results: { before_request_hooks: [{ id: 'ours', verdict: false }] } },
  });
  expect(scripted.upstream.requests).toHaveLength(0);
  expect((await ask('A fig', sent, more)).status).toBe(200);
});

test('answers are judged as well, also those that were kept before', async () => {
  answer('Pear');
  const cached = inline({ cache: { mode: 'simple' } });
  expect((await ask('kept', cached)).status).toBe(200);
  await set(guardrails);
  for (const sent of [{}, cached]) {
    const denied = await ask('kept', sent);
    expect(denied).toMatchObject({
      status: 446,
      body: { hook_results: { after_request_hooks: [{ id: 'ours-too' }] } },
    });
  }
});

test('a stream does not get around those of answers: it is held until it is judged', async () => {
  await set(guardrails);
  const chunks = (text: string): string[] => [
    JSON.stringify({ id: 'c', choices: [{ index: 0, delta: { content: 'A ' } }] }),
    JSON.stringify({ id: 'c', choices: [{ index: 0, delta: { content: text }, finish_reason: 'stop' }] }),
  ];
  scripted.upstream.script(streamOf(chunks('Pear')));
  const denied = await ask('x', {}, { stream: true });
  expect(denied).toMatchObject({ status: 446, body: { hook_results: { after_request_hooks: [{ id: 'ours-too' }] } } });
  scripted.upstream.script(streamOf(chunks('Plum')));
  const { status, body } = await ask('x', {}, { stream: true });
  const text = String(body['text']);
  expect([status, text]).toEqual([200, [...chunks('Plum'), '[DONE]'].map((data) => `data: ${data}\n\n`).join('')]);
});

test('they come before those of a config, which stay', async () => {
  await set(guardrails);
  const { body } = await ask('Apple and Quince', inline({ input_guardrails: [{ ...none('Quince'), id: 'theirs' }] }));
  expect(body['hook_results']).toMatchObject({
    before_request_hooks: [
      { id: 'ours', verdict: false },
      { id: 'theirs', verdict: false },
    ],
  });
});

test('embeddings, completions, default configs and keys of any scope are judged by them', async () => {
  await call('POST', '/configs', { body: { name: 'Plain', slug: 'plain', config: {} } });
  const body = { name: 'k', scopes: ['chat.write'], defaults: { config_id: 'plain' } };
  const key = String((await call('POST', '/api-keys', { body })).body['key']);
  await set(guardrails);
  expect((await ask('Apple', { key })).status).toBe(446);
  expect((await call('POST', '/embeddings', { body: { model: '@scripted/m', input: 'Apple' } })).status).toBe(446);
  expect((await call('POST', '/completions', { body: { model: '@scripted/m', prompt: 'Apple' } })).status).toBe(446);
  expect(scripted.upstream.requests).toHaveLength(0);
  expect((await set({}, key)).status).toBe(403);
  expect((await call('GET', '/admin/guardrails', { key })).status).toBe(403);
});

test('what is forwarded whole and cannot be judged is refused', async () => {
  const speech = { body: { model: '@scripted/tts', input: 'Plum', voice: 'alloy' } };
  const judged = { ...speech, ...inline({ virtual_key: 'scripted', ...guardrails }) };
  expect((await call('POST', '/audio/speech', speech)).status).toBe(200);
  expect(await call('POST', '/audio/speech', judged)).toMatchObject({
    status: 400,
    body: { error: { code: 'guardrails_not_applicable' } },
  });
  await set(guardrails);
  scripted.upstream.requests.length = 0;
  expect((await call('POST', '/audio/speech', speech)).status).toBe(400);
  const headers = { 'x-gateway-virtual-key': 'scripted' };
  expect((await call('POST', '/threads', { headers })).status).toBe(400);
  expect((await call('GET', '/threads/thread_1', { headers })).status).toBe(400);
  expect(scripted.upstream.requests).toHaveLength(0);
});

test('another workspace is not judged by them', async () => {
  const key = await createWorkspace(scripted.platform);
  await set(guardrails);
  const headers = { 'x-gateway-provider': 'openai', 'x-gateway-custom-host': scripted.upstream.url.href };
  const sent = { key, headers: { ...headers, authorization: 'Bearer sk-own' } };
  expect((await ask('Apple', sent, { model: 'm' })).status).toBe(200);
  expect((await call('GET', '/admin/guardrails', { key })).body['input_guardrails']).toEqual([]);
});

test('lines of every batch are judged by those that are there when they are called', async () => {
  const { platform } = scripted;
  const client = new sdk.OpenAI({ apiKey: platform.adminKey, baseURL: platform.baseUrl });
  const texts = ['Apple', 'Plum'];
  const create = async (model: string, headers: Record<string, string>) => {
    const lines = texts.map((content) => ({
      custom_id: content,
      method: 'POST',
      url: '/v1/chat/completions',
      body: chat(content, { model }),
    }));
    const input_file_id = await uploadInput(sdk, client, toJsonl(lines));
    const endpoint = '/v1/chat/completions' as const;
    return await client.batches.create({ input_file_id, endpoint, completion_window: '24h' }, { headers });
  };
  const batches = [
    await create('@scripted/m', {}),
    await create('m', { 'x-gateway-virtual-key': 'scripted' }),
    await create('m', { 'x-gateway-config': '{"virtual_key":"scripted"}' }),
  ];
  await set(guardrails);
  batches.push(await create('m', { 'x-gateway-virtual-key': 'scripted' }));
  const worker = await platform.startWorker();
  for (const batch of batches) {
    const { output, errors } = await resultsOf(client, await ended(client, batch));
    expect(output.map((line) => line.custom_id)).toEqual(['Plum']);
    expect(errors).toMatchObject([{ custom_id: 'Apple', response: { status_code: 446 } }]);
  }
  await worker.stop();
});

test('a webhook of theirs is asked with its secret headers, which nobody sees', async () => {
  const { platform, upstream } = scripted;
  upstream.script((reply, { path }) => reply.json(200, path.startsWith('/hook') ? { verdict: true } : { choices: [] }));
  const headers = { 'x-token': 'CANARY-of-a-workspace' };
  const webhook = { webhookURL: `${upstream.url.origin}/hook?key=CANARY-in-a-query`, headers, failOnError: true };
  const answers = [await set({ input_guardrails: [{ webhook, deny: true }] }), await call('GET', '/admin/guardrails')];
  for (const { body } of answers) {
    expect(JSON.stringify(body)).not.toContain('CANARY');
    expect(JSON.stringify(body)).toContain('/[redacted]');
  }
  expect((await ask('Hello')).status).toBe(200);
  expect(upstream.requests[0]).toMatchObject({ path: '/hook?key=CANARY-in-a-query', headers });
  const { rows } = await sql<{ text: string }>`
    select data::text as text from event union all select data::text from resource`.execute(platform.database.db);
  expect(rows.filter(({ text }) => text?.includes('CANARY'))).toEqual([]);
  await set({});
  const left = await sql`select id from secret where owner_id like 'ws_%'`.execute(platform.database.db);
  expect(left.rows).toEqual([]);
});

test.each([
  ['an expression that RE2 does not know', { input_guardrails: [{ regexMatch: { rule: '(?=x)' } }] }],
  ['a webhook at a forbidden address', { output_guardrails: [{ webhook: { webhookURL: 'http://169.254.169.254/' } }] }],
  ['a guardrail without a check', { input_guardrails: [{ deny: true }] }],
  ['another member', { targets: [] }],
  ['too many', { input_guardrails: Array(21).fill(none('x')) }],
])('%s is refused', async (_what, body) => {
  expect((await set(body)).status).toBe(400);
});

test('calls are refused while a process cannot read them', async () => {
  const { platform } = scripted;
  await set(guardrails);
  const { db } = platform.database;
  await db.transaction().execute(async (tx) => {
    const guardrails = { input_guardrails: [{ 'default.checkOfTomorrow': {} }], output_guardrails: [] };
    await sql`
      update resource set data = data || ${JSON.stringify({ guardrails })}::jsonb, version = version + 1
      where kind = 'workspace'`.execute(tx);
    await announceAccessChange({ tx });
  });
  await platform.api.platform.access.snapshot.refresh();
  expect(await ask('Plum')).toMatchObject({ status: 503, body: { error: { code: 'guardrails_unreadable' } } });
  expect(scripted.upstream.requests).toHaveLength(0);
});
