import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { TestPlatform } from '#test/platform.ts';
import type { Upstream } from '#test/upstream.ts';
import { canary, postJson, startScriptedPlatform } from './scripted-provider.ts';
import { getFailureCode, sdks, watchCalls, type Client } from './sdk.ts';

// CALL-1, CALL-6 to CALL-8, and calls without streaming in general.

let scripted: Awaited<ReturnType<typeof startScriptedPlatform>>;
let platform: TestPlatform;
let upstream: Upstream;
beforeAll(async () => {
  scripted = await startScriptedPlatform();
  ({ platform, upstream } = scripted);
});
afterAll(() => scripted.stop());

const messages = [{ role: 'user' as const, content: 'Say hello.' }];

/** What the simulator itself answers, without the gateway. */
async function askSimulator(route: string, body: unknown): Promise<string> {
  const response = await fetch(`${platform.simulatorUrl}${route}`, {
    method: 'POST',
    headers: { authorization: 'Bearer x', 'content-type': 'application/json' },
    body: JSON.stringify(body),
  });
  return await response.text();
}

const tool = (name: string) => ({
  type: 'function' as const,
  function: {
    name,
    description: `Tells the ${name}`,
    parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] },
  },
});

describe.each(sdks)('$name', (sdk) => {
  let client: Client;
  beforeAll(() => {
    client = new sdk.OpenAI({ apiKey: platform.adminKey, baseURL: platform.baseUrl });
  });

  test("a chat completion is the provider's own, from one call, and carries the request id", async () => {
    platform.simulator.resetStats();
    const sent = watchCalls(platform.baseUrl);
    const body = { messages, temperature: 0.5, seed: 7 };
    const { data, response } = await client.chat.completions
      .create({ model: '@simulator/sim-small', ...body })
      .withResponse();
    expect(data).toEqual(JSON.parse(await askSimulator('/chat/completions', { model: 'sim-small', ...body })));
    expect(data).toMatchObject({
      object: 'chat.completion',
      choices: [{ index: 0, finish_reason: 'stop', message: { role: 'assistant', content: expect.any(String) } }],
      usage: { total_tokens: (data.usage?.prompt_tokens ?? 0) + (data.usage?.completion_tokens ?? 0) },
    });
    expect(response.headers.get('x-request-id')).toMatch(/^req_[0-9a-f]{32}$/);
    expect((data as { _request_id?: string })._request_id).toBe(response.headers.get('x-request-id'));
    expect(response.headers.get('x-gateway-trace-id')).toMatch(/^[0-9a-f]{32}$/);
    expect(response.headers.get('content-type')).toBe('application/json');
    expect(response.headers.get('x-gateway-provider')).toBe('simulator');
    expect(response.headers.get('x-gateway-retry-attempt-count')).toBe('0');
    expect(response.headers.get('x-gateway-cache-status')).toBe('DISABLED');
    expect(sent.calls).toHaveLength(1);
    // One by the gateway, one by this test.
    expect(platform.simulator.stats().requests).toEqual({ 'POST /v1/chat/completions': 2 });
  });

  test('unknown request fields reach the provider unchanged, null as null and absent as absent', async () => {
    const body = {
      messages: [{ role: 'user' as const, content: 'Hi', name: 'zoë', x_note: { deep: [1, { a: null }] } }],
      temperature: null,
      tools: null,
      tool_choice: null,
      parallel_tool_calls: null,
      response_format: null,
      functions: null,
      function_call: null,
      user: null,
      service_tier: 'flex',
      reasoning_effort: 'low',
      x_unknown: { list: [1.5, 'two', null, { three: [] }], empty: {}, text: '东京 🙂' },
      a_null: null,
    };
    const { choices } = await client.chat.completions.create({ model: '@simulator/sim-reflect', ...body } as never);
    expect(JSON.parse(choices[0]?.message.content ?? '')).toEqual({ model: 'sim-reflect', ...body });
  });

  test('unknown response fields reach the client', async () => {
    const answer = {
      id: 'chatcmpl-1',
      object: 'chat.completion',
      created: 1,
      model: 'any-2026',
      choices: [
        {
          index: 0,
          message: { role: 'assistant', content: 'Hi', refusal: null, reasoning_content: 'hm' },
          finish_reason: 'stop',
          logprobs: null,
          x_choice: [null],
        },
      ],
      usage: { prompt_tokens: 1, completion_tokens: 1, total_tokens: 2, x_cost: 0.25 },
      x_unknown: { deep: [1, { a: null }] },
      x_null: null,
    };
    upstream.script((reply) => reply.json(200, answer));
    const completion = await client.chat.completions.create({ model: '@scripted/any', messages });
    expect(completion).toEqual(answer);
  });

  test('tools: two calls at once, their results go back, and the model answers in words', async () => {
    const tools = [tool('weather'), tool('time'), tool('news')];
    const ask = { role: 'user' as const, content: 'Ask weather and time for Paris.' };
    const first = await client.chat.completions.create({ model: '@simulator/sim-small', messages: [ask], tools });
    const message = first.choices[0]?.message;
    expect(first.choices[0]?.finish_reason).toBe('tool_calls');
    const calls = message?.tool_calls ?? [];
    expect(calls).toEqual(
      ['weather', 'time'].map((name) => ({
        id: expect.stringMatching(/^call_/),
        type: 'function',
        function: { name, arguments: expect.toSatisfy((text: string) => 'city' in JSON.parse(text)) },
      })),
    );
    if (!message) throw new Error('no message');
    const results = calls.map(({ id }) => ({ role: 'tool' as const, tool_call_id: id, content: 'fine' }));
    const second = await client.chat.completions.create({
      model: '@simulator/sim-small',
      messages: [ask, message, ...results],
      tools,
    });
    expect(second.choices[0]).toMatchObject({
      finish_reason: 'stop',
      message: { content: expect.stringMatching(/\w/) },
    });
    const forced = await client.chat.completions.create({
      model: '@simulator/sim-small',
      messages,
      tools,
      tool_choice: { type: 'function', function: { name: 'news' } },
    });
    expect(forced.choices[0]?.message.tool_calls).toMatchObject([{ function: { name: 'news' } }]);
  });

  test('a JSON schema as response format gives an answer of that schema', async () => {
    const schema = {
      type: 'object',
      properties: { city: { type: 'string' }, people: { type: 'integer', minimum: 1 } },
      required: ['city', 'people'],
      additionalProperties: false,
    };
    const { choices } = await client.chat.completions.create({
      model: '@simulator/sim-small',
      messages,
      response_format: { type: 'json_schema', json_schema: { name: 'place', schema, strict: true } },
    });
    expect(JSON.parse(choices[0]?.message.content ?? '')).toEqual({
      city: expect.any(String),
      people: expect.toSatisfy((value: unknown) => Number.isInteger(value)),
    });
  });

  test('a text completion is a text_completion, streamed too', async () => {
    const ask = { model: '@simulator/sim-small', prompt: 'Say hello', max_tokens: 12 } as const;
    const whole = await client.completions.create(ask);
    expect(whole).toEqual(JSON.parse(await askSimulator('/completions', { ...ask, model: 'sim-small' })));
    expect(whole).toMatchObject({ object: 'text_completion', choices: [{ index: 0, text: expect.any(String) }] });
    const chunks = [];
    for await (const chunk of await client.completions.create({ ...ask, stream: true })) chunks.push(chunk);
    expect(chunks.length).toBeGreaterThan(2);
    expect(new Set(chunks.map(({ object }) => object))).toEqual(new Set(['text_completion']));
    expect(chunks.map(({ choices }) => choices[0]?.text ?? '').join('')).toBe(whole.choices[0]?.text);
    expect(chunks.flatMap(({ choices }) => choices[0]?.finish_reason ?? [])).toEqual([whole.choices[0]?.finish_reason]);
  });

  test('embeddings come as the SDK asks for them by itself, as numbers, and as base64', async () => {
    const ask = { model: '@simulator/text-embedding-3-small', input: ['one', 'two'], dimensions: 8 };
    const direct = JSON.parse(
      await askSimulator('/embeddings', { ...ask, model: 'text-embedding-3-small' }),
    ) as Awaited<ReturnType<Client['embeddings']['create']>>;
    const vectors = direct.data.map(({ embedding }) => embedding.map((value) => Math.fround(value)));
    expect(vectors.map((vector) => vector.length)).toEqual([8, 8]);
    const plain = await client.embeddings.create(ask);
    expect(plain.data.map(({ embedding }) => [...embedding])).toEqual(vectors);
    expect(plain).toMatchObject({ object: 'list', usage: direct.usage });
    const numbers = await client.embeddings.create({ ...ask, encoding_format: 'float' });
    expect(numbers).toEqual(direct);
    const encoded = await client.embeddings.create({ ...ask, encoding_format: 'base64' });
    const decode = (text: string): number[] => {
      const bytes = Buffer.from(text, 'base64');
      return Array.from({ length: bytes.length / 4 }, (_v, index) => bytes.readFloatLE(4 * index));
    };
    expect(encoded.data.map(({ embedding }) => decode(embedding))).toEqual(vectors);
  });

  test('base64 that was asked for is given, also when the provider answers with numbers', async () => {
    const vector = [0.5, -1.25, 3];
    upstream.script((reply) =>
      reply.json(200, {
        object: 'list',
        data: [{ object: 'embedding', index: 0, embedding: vector }],
        model: 'any',
        usage: { prompt_tokens: 1, total_tokens: 1 },
      }),
    );
    const ask = { model: '@scripted/any', input: 'one' };
    expect([...((await client.embeddings.create(ask)).data[0]?.embedding ?? [])]).toEqual(vector);
    const encoded = await client.embeddings.create({ ...ask, encoding_format: 'base64' });
    expect(encoded.data[0]?.embedding).toBe(Buffer.from(Float32Array.from(vector).buffer).toString('base64'));
    const numbers = await client.embeddings.create({ ...ask, encoding_format: 'float' });
    expect(numbers.data[0]?.embedding).toEqual(vector);
  });

  test('models are listed as @virtual-key/model, and one is retrieved by that name', async () => {
    upstream.script((reply) =>
      reply.json(200, { object: 'list', data: [{ id: 'own', object: 'model', created: 7, owned_by: 'me' }] }),
    );
    const ids: string[] = [];
    for await (const model of client.models.list()) ids.push(model.id);
    expect(ids).toEqual(expect.arrayContaining(['@scripted/own', '@simulator/sim-echo', '@simulator/gpt-4o']));
    expect(await client.models.retrieve('@scripted/own')).toEqual({
      id: '@scripted/own',
      object: 'model',
      created: 7,
      owned_by: 'me',
    });
    const error = await getFailureCode(client.models.retrieve('@scripted/other'));
    expect(error).toBeInstanceOf(sdk.OpenAI.NotFoundError);
    expect(error).toMatchObject({ status: 404, code: 'model_not_found', param: 'model' });
  });

  test('a base URL that ends in a slash works as well', async () => {
    const slashed = new sdk.OpenAI({ apiKey: platform.adminKey, baseURL: `${platform.baseUrl}/` });
    const { choices } = await slashed.chat.completions.create({ model: '@simulator/sim-echo', messages });
    expect(choices[0]?.message.content).toBe('Say hello.');
  });

  test('no surprise retries: a refused call reaches the provider once, a failed one as often as the SDK repeats it', async () => {
    const cases = [
      [400, 1],
      [401, 1],
      [403, 1],
      [404, 1],
      [422, 1],
      [500, 3],
      [503, 3],
    ] as const;
    for (const [status, calls] of cases) {
      upstream.requests.length = 0;
      // As quick as a provider can ask for it, so that the SDK's own waits do not make the test slow.
      upstream.script((reply) =>
        reply.json(status, { error: { message: 'No.', type: 't', param: null, code: 'c' } }, { 'retry-after-ms': '1' }),
      );
      const error = await getFailureCode(client.chat.completions.create({ model: '@scripted/any', messages }));
      expect(error).toMatchObject({ status, code: 'c', type: 't', message: expect.stringContaining('No.') });
      expect(upstream.requests).toHaveLength(calls);
    }
  });
});

test('a provider that hangs does not hide the models of the others, nor hold them up for long', async () => {
  upstream.script(() => {});
  const response = await fetch(`${platform.baseUrl}/models`, {
    headers: { authorization: `Bearer ${platform.adminKey}` },
    // Well below the ten seconds that a single provider is given.
    signal: AbortSignal.timeout(8_000),
  });
  const { data } = (await response.json()) as { data: { id: string }[] };
  expect(data.map(({ id }) => id)).toContain('@simulator/sim-echo');
  expect(data.filter(({ id }) => id.startsWith('@scripted/'))).toEqual([]);
});

test('doubled slashes in the path are forgiven', async () => {
  const { origin } = new URL(platform.baseUrl);
  const post = async (path: string): Promise<number> =>
    (
      await fetch(origin + path, {
        method: 'POST',
        headers: { authorization: `Bearer ${platform.adminKey}`, 'content-type': 'application/json' },
        body: JSON.stringify({ model: '@simulator/sim-echo', messages }),
      })
    ).status;
  expect(await post('/v1/chat/completions')).toBe(200);
  expect(await post('/v1//chat/completions')).toBe(200);
  expect(await post('//v1/chat/completions')).toBe(200);
});

// No SDK can write these bytes.
const odd =
  '{ "z":1, "messages":[{"role":"user","content":"\\u00e9\\ud83d\\ude42 / \\/"}],"seed" : 9223372036854775807,' +
  '"x_big":123456789012345678901234567890, "x_float":1.0, "x_exp":1E+2,\n"temperature":null';

test('through a virtual key header the very bytes of the body go out', async () => {
  upstream.requests.length = 0;
  upstream.script((reply) => reply.json(200, { choices: [] }));
  const text = `${odd}, "model":"any" }`;
  const response = await postJson(platform, '/chat/completions', text, { 'x-gateway-virtual-key': 'scripted' });
  expect(response.status).toBe(200);
  expect(upstream.requests.map(({ body }) => body.toString())).toEqual([text]);
});

test('with the virtual key in the model, only the model changes', async () => {
  upstream.requests.length = 0;
  upstream.script((reply) => reply.json(200, { choices: [] }));
  await postJson(platform, '/chat/completions', `${odd}, "model":"@scripted/any" }`);
  expect(upstream.requests.map(({ body }) => body.toString())).toEqual([`${odd}, "model":"any" }`]);
});

test('the very bytes of the answer come back', async () => {
  const text =
    '{ "id":"x","x_big":123456789012345678901234567890,"x_twice":1,"x_twice":2,"choices":[ {"index":0,"message":{"role":"assistant","content":"\\u00e9"}} ] , "n":1.0}';
  upstream.script((reply) => reply.respond(200, text, { 'content-type': 'application/json' }));
  const response = await postJson(platform, '/chat/completions', { model: '@scripted/any', messages });
  expect(await response.text()).toBe(text);
});

test("the provider gets its own credential and none of the caller's headers", async () => {
  upstream.requests.length = 0;
  upstream.script((reply) => reply.json(200, { choices: [] }));
  await postJson(
    platform,
    '/chat/completions',
    { model: '@scripted/any', messages },
    {
      'x-gateway-trace-id': 'trace-1',
      'x-gateway-metadata': '{"a":"b"}',
      cookie: 'c=d',
      'x-forwarded-for': '10.0.0.1',
    },
  );
  const [request] = upstream.requests;
  expect(request?.headers['authorization']).toBe(`Bearer ${canary}`);
  expect(Object.keys(request?.headers ?? {}).toSorted()).toEqual([
    'accept',
    'accept-encoding',
    'authorization',
    'connection',
    'content-length',
    'content-type',
    'host',
    'user-agent',
  ]);
  expect(request?.bytes.toString('latin1')).not.toContain(platform.adminKey);
});
