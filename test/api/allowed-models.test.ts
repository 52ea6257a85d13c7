import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { toAreaTag } from '#apps/api/calls/relay-call.ts';
import { relayAreas } from '#libs/providers/provider.ts';
import { eventually } from '#test/eventually.ts';
import { startPlatform, type TestPlatform } from '#test/platform.ts';
import { startUpstream, type Upstream } from '#test/upstream.ts';
import { chatLine, toJsonl } from './batch-kit.ts';

// The models that an integration allows, on every way that a call can take.

let platform: TestPlatform;
let upstream: Upstream;
/** Paths of POST operations that go to a provider, as the document lists them. */
let paths: string[];

const forms = new Set(['/images/edits', '/images/variations', '/audio/transcriptions', '/audio/translations']);
const messages = [{ role: 'user', content: 'Hi' }];

type Answer = { status: number; body: { error?: { code: string; message: string } } & Record<string, unknown> };

async function send(method: string, path: string, body?: object, headers: object = {}): Promise<Answer> {
  const isForm = body instanceof FormData;
  const response = await fetch(`${platform.baseUrl}${path}`, {
    method,
    headers: {
      'x-gateway-api-key': platform.adminKey,
      ...(isForm || body === undefined ? {} : { 'content-type': 'application/json' }),
      ...headers,
    },
    ...(body === undefined ? {} : { body: isForm ? body : JSON.stringify(body) }),
  });
  return { status: response.status, body: (await response.json()) as Answer['body'] };
}

async function make(method: string, path: string, body: object): Promise<Record<string, unknown>> {
  const answer = await send(method, path, body);
  if (answer.status !== 200) throw new Error(`${method} ${path}: ${JSON.stringify(answer)}`);
  return answer.body;
}

beforeAll(async () => {
  upstream = await startUpstream();
  platform = await startPlatform({ environment: { SLUICE_EGRESS_ALLOW: '127.0.0.0/8' } });
  const configurations = { custom_host: upstream.url.href };
  await make('POST', '/integrations', {
    name: 'narrow',
    ai_provider_id: 'openai',
    key: 'sk-1',
    configurations,
    share_stored_objects: true,
  });
  await make('PUT', '/integrations/narrow/models', {
    models: [
      { slug: 'good', enabled: true },
      { slug: 'ft:mine', enabled: true, is_custom: true },
    ],
    allow_all_models: false,
  });
  await make('PUT', '/integrations/narrow/workspaces', { workspaces: [{ id: 'default', enabled: true }] });
  const document = (await (await fetch(new URL('/openapi.json', platform.baseUrl))).json()) as {
    paths: Record<string, { post?: { tags: string[] } }>;
  };
  const areas = new Set(relayAreas.map(toAreaTag));
  const relayed = Object.entries(document.paths).filter(([, { post }]) => areas.has(post?.tags[0] ?? ''));
  paths = relayed.map(([path]) => path.replace(/^\/v1/, '').replaceAll(/\{\w+\}/g, 'object-1'));
});
afterAll(async () => {
  await platform?.stop();
  await upstream?.stop();
});
beforeEach(() => {
  upstream.requests.length = 0;
  upstream.script((reply) => reply.json(200, { id: 'object-1', object: 'list', data: [], output: [] }));
});

const refusal = { status: 403, body: { error: { code: 'model_not_allowed' } } };

/** A body with a model for any of the routes. */
function bodyFor(path: string, model: string | null): object {
  if (!forms.has(path)) {
    return {
      ...(model === null ? {} : { model }),
      messages,
      input: 'Hi',
      prompt: 'Hi',
      query: 'Hi',
      documents: ['Hi'],
    };
  }
  const form = new FormData();
  if (model !== null) form.set('model', model);
  form.set('file', new File(['bytes'], 'file.mp3'));
  form.set('image', new File(['bytes'], 'file.png'));
  return form;
}

test('a model that is not listed is refused on every route that takes one, and nothing is sent', async () => {
  expect(paths.length).toBeGreaterThan(25);
  for (const path of [...paths, '/embeddings']) {
    expect([path, await send('POST', path, bodyFor(path, '@narrow/bad'))]).toMatchObject([path, refusal]);
    const byHeader = { 'x-gateway-virtual-key': 'narrow' };
    expect([path, await send('POST', path, bodyFor(path, 'bad'), byHeader)]).toMatchObject([path, refusal]);
  }
  for (const stream of [true, false]) {
    expect(await send('POST', '/chat/completions', { model: '@narrow/bad', messages, stream })).toMatchObject(refusal);
    expect(await send('POST', '/completions', { model: '@narrow/bad', prompt: 'Hi', stream })).toMatchObject(refusal);
  }
  expect(upstream.requests).toEqual([]);
});

test('a listed model passes on the same routes', async () => {
  // OpenAI has no reranking.
  const known = paths.filter((path) => path !== '/rerank');
  for (const path of known) {
    const { status, body } = await send('POST', path, bodyFor(path, '@narrow/good'));
    expect([path, status, body.error]).toEqual([path, 200, undefined]);
  }
  expect(upstream.requests).toHaveLength(known.length);
});

test('a call whose model the provider would choose is refused; one that has no model passes', async () => {
  const headers = { 'x-gateway-virtual-key': 'narrow' };
  for (const path of ['/moderations', '/images/generations', '/images/edits', '/responses', '/responses/compact']) {
    expect([path, await send('POST', path, bodyFor(path, null), headers)]).toMatchObject([path, refusal]);
  }
  expect(upstream.requests).toEqual([]);
  expect(await send('GET', '/responses/resp_1', undefined, headers)).toMatchObject({ status: 200 });
  expect(await send('POST', '/threads', {}, headers)).toMatchObject({ status: 200 });
  expect(await send('POST', '/responses/resp_1/cancel', {}, headers)).toMatchObject({ status: 200 });
});

test('the refusal names the models that are allowed', async () => {
  const { body } = await send('POST', '/chat/completions', { model: '@narrow/bad', messages });
  expect(body.error?.message).toBe("The model 'bad' is not allowed with 'narrow'. Allowed: good, ft:mine.");
});

test('a config is no way around it, in the turn of a fallback either', async () => {
  upstream.script((reply) => reply.json(500, { error: { message: 'down' } }));
  const config = {
    strategy: { mode: 'fallback' },
    targets: [
      { virtual_key: 'narrow', override_params: { model: 'good' } },
      { virtual_key: 'narrow', override_params: { model: 'bad' } },
    ],
  };
  const headers = { 'x-gateway-config': JSON.stringify(config) };
  expect(await send('POST', '/chat/completions', { model: 'good', messages }, headers)).toMatchObject(refusal);
  expect(upstream.requests).toHaveLength(1);
});

test('a prompt is no way around it', async () => {
  const parameters = { model: 'bad' };
  const prompt = { name: 'p', collection_id: 'default', string: 'Hi', parameters, virtual_key: 'narrow' };
  const { slug } = await make('POST', '/prompts', prompt);
  expect(await send('POST', `/prompts/${String(slug)}/completions`, {})).toMatchObject(refusal);
  expect(upstream.requests).toEqual([]);
});

test('a fine-tuning job is no way around it', async () => {
  const job = { model: '@narrow/bad', training_file: 'file-none' };
  expect(await send('POST', '/fine_tuning/jobs', job)).toMatchObject(refusal);
});

test('a line of a batch becomes an error line', async () => {
  const form = new FormData();
  form.set('purpose', 'batch');
  form.set('file', new File([toJsonl([chatLine('a', { model: '@narrow/bad' })])], 'lines.jsonl'));
  const { id: input_file_id } = await make('POST', '/files', form);
  const batch = { input_file_id, endpoint: '/v1/chat/completions', completion_window: '24h' };
  const { id } = await make('POST', '/batches', batch);
  const ended = await eventually(
    () => send('GET', `/batches/${String(id)}`),
    ({ body }) => body['status'] === 'completed',
    { timeoutMs: 20_000 },
  );
  expect(ended.body).toMatchObject({ request_counts: { total: 1, completed: 0, failed: 1 } });
  const response = await fetch(`${platform.baseUrl}/files/${String(ended.body['error_file_id'])}/content`, {
    headers: { 'x-gateway-api-key': platform.adminKey },
  });
  expect(await response.text()).toContain('model_not_allowed');
  expect(upstream.requests).toEqual([]);
});

test('the list of models has those that are allowed', async () => {
  const data = ['good', 'bad'].map((id) => ({ id, object: 'model', created: 1, owned_by: 'x' }));
  upstream.script((reply) => reply.json(200, { object: 'list', data }));
  const { body } = await send('GET', '/models', undefined, { 'x-gateway-virtual-key': 'narrow' });
  expect((body['data'] as { id: string }[]).map(({ id }) => id)).toEqual(['good', 'ft:mine']);
});

test('what is excluded is refused where all others are allowed', async () => {
  const models = [{ slug: 'bad', enabled: false }];
  await make('PUT', '/integrations/narrow/models', { models, allow_all_models: true });
  expect(await send('POST', '/embeddings', { model: '@narrow/bad', input: 'Hi' })).toMatchObject(refusal);
  expect(await send('POST', '/moderations', { model: '@narrow/other', input: 'Hi' })).toMatchObject({ status: 200 });
});
