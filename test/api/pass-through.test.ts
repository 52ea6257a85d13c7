import { createHash, randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { request as httpRequest, type IncomingMessage } from 'node:http';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { eventually } from '#test/eventually.ts';
import type { TestPlatform } from '#test/platform.ts';
import type { Upstream, UpstreamReply } from '#test/upstream.ts';
import { canary, postJson, startScriptedPlatform } from './scripted-provider.ts';
import { getFailureCode, sdks, type Client } from './sdk.ts';

// The areas that are forwarded whole: moderations, images, audio, stored responses, rerank, assistants, threads, vector
// stores. A response is created on the path of all calls, but providers that have the API get the client's bytes.

let scripted: Awaited<ReturnType<typeof startScriptedPlatform>>;
let platform: TestPlatform;
let upstream: Upstream;
beforeAll(async () => {
  scripted = await startScriptedPlatform();
  ({ platform, upstream } = scripted);
});
afterAll(() => scripted.stop());
beforeEach(() => {
  upstream.requests.length = 0;
});

const sha256 = (bytes: Uint8Array): string => createHash('sha256').update(bytes).digest('hex');
const scriptedKey = { 'x-gateway-virtual-key': 'scripted' };

describe.each(sdks)('$name', (sdk) => {
  let client: Client;
  beforeAll(() => {
    client = new sdk.OpenAI({
      apiKey: platform.adminKey,
      baseURL: platform.baseUrl,
      defaultHeaders: scriptedKey,
      maxRetries: 0,
    });
  });

  test('moderations: the body goes out as it is, but for the virtual key in its model', async () => {
    const answer = { id: 'modr-1', model: 'omni', results: [{ flagged: false, categories: {}, category_scores: {} }] };
    upstream.script((reply) => reply.json(200, answer, { 'x-request-id': 'req-provider' }));
    const plain = new sdk.OpenAI({ apiKey: platform.adminKey, baseURL: platform.baseUrl });
    expect(await plain.moderations.create({ model: '@scripted/omni', input: 'Hi' })).toEqual(answer);
    const [request] = upstream.requests;
    expect(request).toMatchObject({ method: 'POST', path: '/v1/moderations' });
    expect(JSON.parse(request?.body.toString() ?? '')).toEqual({ model: 'omni', input: 'Hi' });
    expect(request?.headers['authorization']).toBe(`Bearer ${canary}`);
    expect(request?.bytes.toString('latin1')).not.toContain(platform.adminKey);
  });

  test('speech: binary audio comes back byte by byte', async () => {
    const audio = randomBytes(3_000_000);
    upstream.script(async (reply) => {
      reply.head(200, { 'content-type': 'audio/mpeg' });
      for (let at = 0; at < audio.length; at += 50_000) await reply.write(audio.subarray(at, at + 50_000));
      reply.end();
    });
    const response = await client.audio.speech.create({ model: 'tts-1', voice: 'alloy', input: 'Hello.' });
    expect(response.headers.get('content-type')).toBe('audio/mpeg');
    expect(sha256(Buffer.from(await response.arrayBuffer()))).toBe(sha256(audio));
  });

  test('transcriptions: a form with a file goes out as it came in', async () => {
    const audio = randomBytes(2_000_000);
    upstream.script((reply) => reply.json(200, { text: 'Hello.' }));
    const file = await sdk.toFile(audio, 'speech.mp3', { type: 'audio/mpeg' });
    expect(await client.audio.transcriptions.create({ model: 'whisper-1', file })).toMatchObject({ text: 'Hello.' });
    const [request] = upstream.requests;
    expect(request?.headers['content-type']).toMatch(/^multipart\/form-data; boundary=/);
    expect(request?.body.includes(audio)).toBe(true);
    expect(request?.body.toString('latin1')).toContain('whisper-1');
  });

  test('responses: JSON, a stream of events, retrieval and deletion', async () => {
    upstream.script((reply) => reply.json(200, { id: 'resp_1', object: 'response', output: [] }));
    expect(await client.responses.create({ model: 'any', input: 'Hi' })).toMatchObject({ id: 'resp_1' });
    const events = [
      { type: 'response.created', response: { id: 'resp_1' } },
      { type: 'response.output_text.delta', delta: 'Hi' },
      {
        type: 'response.completed',
        response: { id: 'resp_1', model: 'any-1', usage: { input_tokens: 3, output_tokens: 4, total_tokens: 7 } },
      },
    ];
    upstream.script(async (reply) => {
      reply.head(200, { 'content-type': 'text/event-stream' });
      for (const event of events) await reply.write(`event: ${event.type}\ndata: ${JSON.stringify(event)}\n\n`);
      reply.end();
    });
    const seen = [];
    for await (const event of await client.responses.create({ model: 'any', input: 'Hi', stream: true })) {
      seen.push(event.type);
    }
    expect(seen).toEqual(events.map(({ type }) => type));
    upstream.script((reply) => reply.json(200, { id: 'resp_1', object: 'response', output: [] }));
    await client.responses.retrieve('resp_1', { include: ['message.input_image.image_url'] });
    await client.responses.delete('resp_1');
    expect(upstream.requests.slice(2).map(({ method, path }) => `${method} ${path.split('?')[0]}`)).toEqual([
      'GET /v1/responses/resp_1',
      'DELETE /v1/responses/resp_1',
    ]);
    expect(upstream.requests[2]?.path).toContain('?');
  });

  test('responses: tokens are counted and conversations compacted', async () => {
    upstream.script((reply) => reply.json(200, { id: 'x', object: 'response.input_tokens', input_tokens: 3 }));
    const counted = await client.post('/responses/input_tokens', { body: { model: 'any', input: 'Hi' } });
    expect(counted).toMatchObject({ input_tokens: 3 });
    await client.post('/responses/compact', { body: { model: '@scripted/any', input: 'Hi' } });
    expect(upstream.requests.map(({ method, path }) => `${method} ${path}`)).toEqual([
      'POST /v1/responses/input_tokens',
      'POST /v1/responses/compact',
    ]);
    expect(JSON.parse(upstream.requests[1]?.body.toString() ?? '')).toEqual({ model: 'any', input: 'Hi' });
  });

  test('conversations: every operation reaches its path', async () => {
    upstream.script((reply) => reply.json(200, { id: 'conv_1', object: 'conversation', data: [] }));
    await client.conversations.create({ metadata: { a: 'b' } });
    await client.conversations.update('conv_1', { metadata: { a: 'c' } });
    await client.conversations.items.create('conv_1', { items: [] });
    await client.conversations.items.list('conv_1', { limit: 2 });
    await client.conversations.items.retrieve('msg_1', { conversation_id: 'conv_1' });
    await client.conversations.items.delete('msg_1', { conversation_id: 'conv_1' });
    await client.conversations.delete('conv_1');
    expect(upstream.requests.map(({ method, path }) => `${method} ${path}`)).toEqual([
      'POST /v1/conversations',
      'POST /v1/conversations/conv_1',
      'POST /v1/conversations/conv_1/items',
      'GET /v1/conversations/conv_1/items?limit=2',
      'GET /v1/conversations/conv_1/items/msg_1',
      'DELETE /v1/conversations/conv_1/items/msg_1',
      'DELETE /v1/conversations/conv_1',
    ]);
  });

  test('assistants, threads and vector stores: paths and the beta header go on', async () => {
    upstream.script((reply) => reply.json(200, { id: 'x', object: 'thread', data: [] }));
    await client.beta.threads.create();
    await client.beta.threads.runs.retrieve('run_1', { thread_id: 'thread_1' });
    await client.vectorStores.files.list('vs_1', { limit: 2 });
    expect(upstream.requests.map(({ method, path, headers }) => [method, path, headers['openai-beta']])).toEqual([
      ['POST', '/v1/threads', 'assistants=v2'],
      ['GET', '/v1/threads/thread_1/runs/run_1', 'assistants=v2'],
      ['GET', '/v1/vector_stores/vs_1/files?limit=2', expect.anything()],
    ]);
  });

  test("a provider's error is an error of the SDK, without the credential that the provider repeats", async () => {
    upstream.script((reply) => reply.json(401, { error: { message: `Bad key ${canary}`, type: 't', code: 'c' } }));
    const error = await getFailureCode(client.moderations.create({ input: 'Hi' }));
    expect(error).toMatchObject({ status: 401, code: 'c' });
    expect(error.headers?.get('x-gateway-provider')).toBe('openai-compatible'); // it is not the gateway's own 401
    expect(JSON.stringify(error.error)).not.toContain('CANARY');
  });
});

const used = { input_tokens: 11, output_tokens: 22, input_tokens_details: { cached_tokens: 5 } };
const said = { id: 'resp_2', object: 'response', model: 'any-2026', output: [], usage: used };

/** What the request log has of a call. */
async function rowOf(response: Response): Promise<Record<string, unknown> | undefined> {
  const requestId = response.headers.get('x-request-id');
  return await eventually(
    async () => {
      const list = await fetch(`${platform.baseUrl}/logs?limit=20`, {
        headers: { authorization: `Bearer ${platform.adminKey}` },
      });
      const { data } = (await list.json()) as { data: Record<string, unknown>[] };
      return data.find((entry) => entry['request_id'] === requestId);
    },
    (entry) => entry !== undefined,
  );
}

test.each([
  ['JSON', false, (reply: UpstreamReply) => reply.json(200, said)],
  [
    'events',
    true,
    async (reply: UpstreamReply) => {
      reply.head(200, { 'content-type': 'text/event-stream' });
      await reply.write('data: {"type":"response.created","response":{"id":"resp_2"}}\n\n');
      await reply.write(`data: ${JSON.stringify({ type: 'response.completed', response: said })}\n\n`);
      reply.end();
    },
  ],
])('what a call used is in the request log, from %s', async (_name, stream, script) => {
  upstream.script(script);
  const response = await postJson(platform, '/responses', { model: '@scripted/any', input: 'Hi', stream });
  await response.text();
  const row = await rowOf(response);
  expect(row).toMatchObject({ operation: 'responses', model: 'any', response_model: 'any-2026', status: 200 });
  expect(row).toMatchObject({ usage: { input_tokens: 11, output_tokens: 22, cached_tokens: 5 } });
});

test('a call that goes out again, because the provider had closed its idle socket, is two attempts in the request log', async () => {
  const seen = new Set<number>();
  upstream.script((reply, { connection }) => {
    if (seen.has(connection)) return reply.reset();
    seen.add(connection);
    reply.json(200, { id: 'thread_1' });
  });
  const headers = { authorization: `Bearer ${platform.adminKey}`, ...scriptedKey };
  const read = async () => await rowOf(await fetch(`${platform.baseUrl}/threads/thread_1`, { headers }));
  // The first may meet a socket of the tests before.
  await read();
  expect(await read()).toMatchObject({ status: 200, attempts: 2 });
});

test.each(['..', '%2e%2e', '..%2ffiles', 'a%2fb', 'a%5cb', 'a%00b', 'x'.repeat(300)])(
  'an id that could lead elsewhere (%s) reaches no provider',
  async (id) => {
    const { hostname, port } = new URL(platform.baseUrl);
    // fetch would resolve the dots by itself.
    const call = httpRequest({
      hostname,
      port,
      path: `/v1/threads/${id}`,
      headers: { authorization: `Bearer ${platform.adminKey}`, ...scriptedKey },
    }).end();
    const [answer] = (await once(call, 'response')) as [IncomingMessage];
    answer.resume();
    const status = answer.statusCode;
    expect(status).toBe(404);
    expect(upstream.requests).toEqual([]);
  },
);

test('a provider without the area is refused before any call', async () => {
  const body = { name: 'groq', slug: 'groq', provider: 'groq', key: canary };
  await postJson(platform, '/virtual-keys', body);
  const response = await postJson(platform, '/moderations', { model: '@groq/any', input: 'Hi' });
  expect(response.status).toBe(400);
  expect(await response.json()).toMatchObject({ error: { code: 'unsupported_operation' } });
});

test('without a provider the answer says how to name one', async () => {
  const response = await postJson(platform, '/moderations', { input: 'Hi' });
  expect(response.status).toBe(400);
  expect(await response.json()).toMatchObject({ error: { code: 'missing_credentials' } });
});

test('a form that names no virtual key is refused with where it can stand', async () => {
  const form = new FormData();
  form.set('prompt', 'whisper-1');
  form.set('file', new Blob(['sound']), 'sound.wav');
  const response = await fetch(`${platform.baseUrl}/audio/transcriptions`, {
    method: 'POST',
    headers: { authorization: `Bearer ${platform.adminKey}` },
    body: form,
  });
  expect(response.status).toBe(400);
  expect(await response.json()).toMatchObject({
    error: {
      code: 'missing_credentials',
      param: 'x-gateway-virtual-key',
      message: expect.stringMatching(/^The first \d+ bytes of this body do not name a virtual key/),
    },
  });
});

test('a key with the scope of an area may call it, and no other', async () => {
  const made = await postJson(platform, '/api-keys', { name: 'speaker', scopes: ['audio.write'] });
  const { key } = (await made.json()) as { key: string };
  const call = async (path: string): Promise<number> =>
    (
      await fetch(`${platform.baseUrl}${path}`, {
        method: 'POST',
        headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json', ...scriptedKey },
        body: JSON.stringify({ model: 'any', input: 'Hi' }),
      })
    ).status;
  upstream.script((reply) => reply.json(200, {}));
  expect([await call('/audio/speech'), await call('/moderations')]).toEqual([200, 403]);
  expect(upstream.requests.map(({ path }) => path)).toEqual(['/v1/audio/speech']);
});

test('a client that leaves in the middle of an upload or of an answer cancels the call', async () => {
  upstream.script(async (reply) => {
    reply.head(200, { 'content-type': 'audio/mpeg' });
    while (!reply.isClosed()) await reply.write(Buffer.alloc(10_000));
  });
  const abort = new AbortController();
  const response = await fetch(`${platform.baseUrl}/audio/speech`, {
    method: 'POST',
    headers: { authorization: `Bearer ${platform.adminKey}`, 'content-type': 'application/json' },
    body: '{"model":"@scripted/tts","input":"Hi","voice":"alloy"}',
    signal: abort.signal,
  });
  const reader = response.body?.getReader();
  await reader?.read();
  abort.abort();
  await eventually(
    () => upstream.connections().open,
    (open) => open === 0,
    { timeoutMs: 1_000 },
  );
  upstream.script(() => {});
  const { hostname, port } = new URL(platform.baseUrl);
  const upload = httpRequest({
    hostname,
    port,
    path: '/v1/audio/transcriptions',
    method: 'POST',
    headers: {
      authorization: `Bearer ${platform.adminKey}`,
      'content-type': 'multipart/form-data; boundary=x',
      ...scriptedKey,
    },
  });
  upload.on('error', () => {}); // it is this side that hangs up
  upload.write(Buffer.alloc(500_000));
  await upstream.until(() => upstream.connections().open === 1);
  upload.destroy();
  await eventually(
    () => upstream.connections().open,
    (open) => open === 0,
    { timeoutMs: 1_000 },
  );
});

test('a provider that refuses in the middle of an upload is heard', async () => {
  upstream.script((reply) => reply.json(413, { error: { message: 'Too much.', type: 't', param: null, code: 'big' } }));
  const form = new FormData();
  form.set('model', 'whisper-1');
  form.set('file', new Blob([randomBytes(1_000_000)]), 'a.mp3');
  const response = await fetch(`${platform.baseUrl}/audio/transcriptions`, {
    method: 'POST',
    headers: { authorization: `Bearer ${platform.adminKey}`, ...scriptedKey },
    body: form,
  });
  expect(response.status).toBe(413);
  expect(await response.json()).toMatchObject({ error: { code: 'big' } });
});
