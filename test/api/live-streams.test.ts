import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { eventually } from '#test/eventually.ts';
import type { TestPlatform } from '#test/platform.ts';
import type { Upstream } from '#test/upstream.ts';
import { postJson, startScriptedPlatform } from './scripted-provider.ts';
import { getFailureCode, sdks, type Client } from './sdk.ts';

// SSE-1 to SSE-9.

let scripted: Awaited<ReturnType<typeof startScriptedPlatform>>;
let platform: TestPlatform;
let upstream: Upstream;
beforeAll(async () => {
  scripted = await startScriptedPlatform({ SLUICE_IDLE_TIMEOUT: '300ms' });
  ({ platform, upstream } = scripted);
});
afterAll(() => scripted.stop());

type Delta = {
  role?: string;
  content?: string | null;
  tool_calls?: { index: number; id?: string; type?: string; function?: { name?: string; arguments?: string } }[];
};
type Chunk = {
  id: string;
  object: string;
  created: number;
  model: string;
  choices: { index: number; delta: Delta; finish_reason: string | null }[];
  usage?: Record<string, unknown> | null;
};

const messages = [{ role: 'user' as const, content: 'Say hello.' }];

/** The `data` payloads of a whole stream as the wire has them. */
async function payloadsOf(body: Record<string, unknown>): Promise<string[]> {
  const response = await postJson(platform, '/chat/completions', { messages, stream: true, ...body });
  expect(response.status).toBe(200);
  expect(response.headers.get('content-type')).toBe('text/event-stream; charset=utf-8');
  const frames = (await response.text()).split('\n\n').slice(0, -1);
  expect(frames.filter((frame) => !frame.startsWith('data: '))).toEqual([]);
  return frames.map((frame) => frame.slice('data: '.length));
}

async function chunksOf(body: Record<string, unknown>): Promise<Chunk[]> {
  const payloads = await payloadsOf(body);
  expect(payloads.at(-1)).toBe('[DONE]');
  return payloads.slice(0, -1).map((payload) => JSON.parse(payload) as Chunk);
}

/** What the simulator streams, without the gateway. */
async function directPayloads(body: Record<string, unknown>): Promise<string[]> {
  const response = await fetch(`${platform.simulatorUrl}/chat/completions`, {
    method: 'POST',
    headers: { authorization: 'Bearer x', 'content-type': 'application/json' },
    body: JSON.stringify({ messages, stream: true, ...body }),
  });
  return (await response.text()).split('\n\n').flatMap((frame) => (frame === '' ? [] : [frame.slice('data: '.length)]));
}

const asText = (chunks: readonly Pick<Chunk, 'choices'>[], index = 0): string =>
  chunks
    .flatMap(({ choices }) => choices.filter((choice) => choice.index === index))
    .map(({ delta }) => delta.content ?? '')
    .join('');

const chunk = (delta: Delta, finish: string | null = null): string =>
  JSON.stringify({
    id: 'chatcmpl-1',
    object: 'chat.completion.chunk',
    created: 1,
    model: 'any-2026',
    choices: [{ index: 0, delta, finish_reason: finish }],
  });

test('one id, time and model; the role first; one finish reason for each choice; [DONE] last', async () => {
  const chunks = await chunksOf({ model: '@simulator/sim-small' });
  expect(chunks.length).toBeGreaterThan(4);
  for (const member of ['id', 'created', 'model', 'object'] as const) {
    expect(new Set(chunks.map((each) => each[member])).size).toBe(1);
  }
  expect(chunks[0]).toMatchObject({ object: 'chat.completion.chunk', model: 'sim-small' });
  expect(chunks[0]?.choices[0]?.delta.role).toBe('assistant');
  expect(chunks.filter(({ choices }) => choices[0]?.delta.role !== undefined)).toHaveLength(1);
  expect(chunks.flatMap(({ choices }) => choices[0]?.finish_reason ?? [])).toEqual(['stop']);
  expect(chunks.at(-1)?.choices[0]?.finish_reason).toBe('stop');
});

test('after [DONE] the response ends at once, also when the provider holds its own open', async () => {
  const before = platform.simulator.stats().aborted_requests;
  const payloads = await payloadsOf({ model: '@simulator/sim-fault-hold-open' });
  expect(payloads.at(-1)).toBe('[DONE]');
  // The call that would have hung for ever is given up.
  await eventually(
    () => platform.simulator.stats(),
    ({ aborted_requests, open_requests }) => aborted_requests === before + 1 && open_requests === 0,
  );
});

test('without include_usage there is no usage in the stream, although the provider is asked for it', async () => {
  const payloads = await payloadsOf({ model: '@simulator/sim-small' });
  expect(payloads.filter((payload) => payload.includes('"choices":[]'))).toEqual([]);
  const chunks = payloads.slice(0, -1).map((payload) => JSON.parse(payload) as Chunk);
  expect(chunks.filter(({ usage }) => usage !== undefined && usage !== null)).toEqual([]);
  upstream.requests.length = 0;
  upstream.script(async (reply) => {
    reply.head(200, { 'content-type': 'text/event-stream' });
    await reply.write(`data: ${chunk({ role: 'assistant', content: 'Hi' }, 'stop')}\n\ndata: [DONE]\n\n`);
    reply.end();
  });
  await chunksOf({ model: '@scripted/any' });
  expect(JSON.parse(upstream.requests[0]?.body.toString() ?? '')).toMatchObject({
    stream_options: { include_usage: true },
  });
});

test("with include_usage every payload is the provider's own: usage null, and then once with no choice", async () => {
  const options = { stream_options: { include_usage: true } };
  const payloads = await payloadsOf({ model: '@simulator/sim-small', ...options });
  expect(payloads).toEqual(await directPayloads({ model: 'sim-small', ...options }));
  const chunks = payloads.slice(0, -1).map((payload) => JSON.parse(payload) as Chunk);
  expect(chunks.slice(0, -1).map(({ usage }) => usage)).toEqual(chunks.slice(0, -1).map(() => null));
  expect(chunks.at(-1)).toMatchObject({
    choices: [],
    usage: {
      prompt_tokens: expect.any(Number),
      completion_tokens: expect.any(Number),
      total_tokens: expect.any(Number),
    },
  });
});

test('a stream that is made here from a whole answer has usage in the same place', async () => {
  const model = '@simulator/sim-fault-json-to-stream';
  const payloads = await payloadsOf({ model, stream_options: { include_usage: true } });
  const chunks = payloads.slice(0, -1).map((payload) => JSON.parse(payload) as Chunk);
  expect(chunks.length).toBeGreaterThan(1);
  expect(chunks.slice(0, -1).map(({ usage }) => usage)).toEqual(chunks.slice(0, -1).map(() => null));
  expect(chunks.at(-1)).toMatchObject({ choices: [], usage: { total_tokens: expect.any(Number) } });
});

test('two choices keep their indexes while they take turns', async () => {
  const chunks = await chunksOf({ model: '@simulator/sim-small', n: 2 });
  const indexes = chunks.map(({ choices }) => choices[0]?.index);
  expect(indexes.slice(0, 4)).toEqual([0, 1, 0, 1]);
  const finished = chunks.filter(({ choices }) => choices[0]?.finish_reason === 'stop');
  expect(new Set(finished.map(({ choices }) => choices[0]?.index))).toEqual(new Set([0, 1]));
  expect(finished).toHaveLength(2);
  expect(asText(chunks, 0)).not.toBe(asText(chunks, 1));
});

test.each(['truncated-stream', 'cut', 'reset', 'error-in-stream-late', 'error-event', 'stall', 'invalid-json'])(
  'a provider that fails in the middle (%s) is told by one error payload, and no [DONE]',
  async (fault) => {
    const payloads = await payloadsOf({ model: `@simulator/sim-fault-${fault}` });
    expect(payloads.length).toBeGreaterThan(1);
    expect(payloads).not.toContain('[DONE]');
    expect(JSON.parse(payloads.at(-1) ?? '')).toEqual({
      error: {
        message: expect.stringMatching(/\w/),
        type: 'server_error',
        param: null,
        code: expect.stringMatching(/^(upstream_\w+|server_error)$/),
      },
    });
    for (const payload of payloads.slice(0, -1)) expect(JSON.parse(payload)).toHaveProperty('choices');
  },
);

test("the payload has the provider's own type and code", async () => {
  const payloads = await payloadsOf({ model: '@simulator/sim-fault-error-in-stream-late-429' });
  expect(JSON.parse(payloads.at(-1) ?? '')).toMatchObject({
    error: { type: 'requests', param: null, code: 'rate_limit_exceeded' },
  });
});

test('a stream that lacks only its [DONE] is complete', async () => {
  const chunks = await chunksOf({ model: '@simulator/sim-fault-no-done' });
  expect(chunks.at(-1)?.choices[0]?.finish_reason).toBe('stop');
});

test('each event is passed on before the next one comes', async () => {
  const words = ['one ', 'two ', 'three ', 'four'];
  let read = -1;
  // The provider says the next word only when the client has read the last one: nothing may be held back.
  upstream.script(async (reply) => {
    reply.head(200, { 'content-type': 'text/event-stream' });
    for (const [index, content] of words.entries()) {
      await reply.write(`data: ${chunk({ role: 'assistant', content }, index === 3 ? 'stop' : null)}\n\n`);
      await upstream.until(() => read >= index);
    }
    await reply.write('data: [DONE]\n\n');
    reply.end();
  });
  for (const { OpenAI } of sdks) {
    read = -1;
    const client = new OpenAI({ apiKey: platform.adminKey, baseURL: platform.baseUrl });
    const seen: string[] = [];
    for await (const { choices } of await client.chat.completions.create({
      model: '@scripted/any',
      messages,
      stream: true,
    })) {
      seen.push(choices[0]?.delta.content ?? '');
      read += 1;
    }
    expect(seen).toEqual(words);
  }
});

test('a character that is cut between two pieces arrives whole', async () => {
  const content = 'é東🙂👩‍🚀';
  const bytes = Buffer.from(`data: ${chunk({ role: 'assistant', content }, 'stop')}\n\ndata: [DONE]\n\n`);
  upstream.script(async (reply) => {
    reply.head(200, { 'content-type': 'text/event-stream' });
    for (const byte of bytes) await reply.write(Buffer.from([byte]));
    reply.end();
  });
  expect(asText(await chunksOf({ model: '@scripted/any' }))).toBe(content);
  const options = { stream_options: { include_usage: true } };
  expect(await payloadsOf({ model: '@simulator/sim-fault-split-utf8', ...options })).toEqual(
    await directPayloads({ model: 'sim-fault-split-utf8', ...options }),
  );
});

test.each(['comments', 'crlf'])('keep-alive comments and line ends of the provider do no harm (%s)', async (fault) => {
  const model = `@simulator/sim-fault-${fault}`;
  const chunks = await chunksOf({ model });
  const whole = (await (await postJson(platform, '/chat/completions', { model, messages })).json()) as {
    choices: { message: { content: string } }[];
  };
  expect(asText(chunks)).toBe(whole.choices[0]?.message.content);
  expect(chunks.at(-1)?.choices[0]?.finish_reason).toBe('stop');
});

describe.each(sdks)('$name', (sdk) => {
  let client: Client;
  beforeAll(() => {
    client = new sdk.OpenAI({ apiKey: platform.adminKey, baseURL: platform.baseUrl });
  });
  const stream = (model: string, rest: Record<string, unknown> = {}) =>
    client.chat.completions.create({ model, messages, ...rest, stream: true });

  test('the chunks of a stream make the answer that the same call gives without streaming', async () => {
    const chunks = [];
    for await (const each of await stream('@simulator/sim-small')) chunks.push(each);
    const whole = await client.chat.completions.create({ model: '@simulator/sim-small', messages });
    expect(asText(chunks as Chunk[])).toBe(whole.choices[0]?.message.content);
  });

  test('a stream ends for the SDK although the provider holds its connection open', async () => {
    let count = 0;
    for await (const _chunk of await stream('@simulator/sim-fault-hold-open')) count += 1;
    expect(count).toBeGreaterThan(3);
  });

  test("two tool calls at once stream as fragments, which the SDK's own helper puts together", async () => {
    const tools = ['weather', 'time'].map((name) => ({
      type: 'function' as const,
      function: { name, parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] } },
    }));
    const ask = { messages: [{ role: 'user' as const, content: 'Ask weather and time.' }], tools };
    const fragments: NonNullable<Delta['tool_calls']> = [];
    for await (const { choices } of await stream('@simulator/sim-small', ask)) {
      fragments.push(...((choices[0]?.delta.tool_calls ?? []) as NonNullable<Delta['tool_calls']>));
    }
    // Of each call first its id and name, once, with no arguments; then the arguments in pieces.
    const heads = fragments.filter(({ id }) => id !== undefined);
    expect(heads).toEqual(
      ['weather', 'time'].map((name, index) => ({
        index,
        id: expect.stringMatching(/^call_/),
        type: 'function',
        function: { name, arguments: '' },
      })),
    );
    const pieces = fragments.filter(({ id }) => id === undefined);
    expect(pieces).toEqual(pieces.map(({ index }) => ({ index, function: { arguments: expect.stringMatching(/./) } })));
    const calls = heads.map(({ index, id, function: called }) => {
      const own = pieces.filter((piece) => piece.index === index);
      return { id, name: called?.name, arguments: own.map((piece) => piece.function?.arguments).join('') };
    });
    for (const call of calls) expect(JSON.parse(call.arguments)).toEqual({ city: expect.any(String) });

    const helper = client.chat.completions.stream({ model: '@simulator/sim-small', ...ask });
    const final = await helper.finalChatCompletion();
    expect(final.choices[0]?.finish_reason).toBe('tool_calls');
    expect(
      final.choices[0]?.message.tool_calls?.map((call) => ({
        id: call.id,
        ...('function' in call ? call.function : {}),
      })),
    ).toMatchObject(calls);
  });

  test.each(['truncated-stream', 'cut', 'reset', 'error-in-stream-late', 'error-event', 'stall'])(
    'a provider that dies in the middle of a stream (%s) is an APIError, after what came before',
    async (fault) => {
      const seen: string[] = [];
      const error = await getFailureCode(
        (async () => {
          for await (const { choices } of await stream(`@simulator/sim-fault-${fault}`)) {
            seen.push(choices[0]?.delta.content ?? '');
          }
        })(),
      );
      expect(error).toBeInstanceOf(sdk.OpenAI.APIError);
      expect(error).toMatchObject({ type: 'server_error', code: expect.any(String) });
      expect(seen.length).toBeGreaterThan(0);
    },
  );

  test('a 429 before the first byte is a real 429, with its headers', async () => {
    platform.simulator.resetStats();
    const error = await getFailureCode(stream('@simulator/sim-fault-429-ms'));
    expect(error).toBeInstanceOf(sdk.OpenAI.RateLimitError);
    expect(error).toMatchObject({ status: 429, code: 'rate_limit_exceeded', type: 'requests', param: null });
    expect(error.headers?.get('retry-after-ms')).toBe('50');
    expect(error.headers?.get('content-type')).toBe('application/json');
    // One provider call for each call of the SDK, which came back twice as it was told.
    expect(platform.simulator.stats().statuses).toEqual({ 'POST /v1/chat/completions': { 429: 3 } });
    // A model of its own for each SDK: after such an answer the provider is not asked again before that time.
    const seconds = sdk.name === 'openai 7' ? '7' : '8';
    const body = { model: `@simulator/sim-fault-429-after-${seconds}`, messages, stream: true };
    const response = await postJson(platform, '/chat/completions', body);
    expect(response.headers.get('retry-after')).toBe(seconds);
  });

  test('an error as the first event is an HTTP error', async () => {
    const error = await getFailureCode(
      client.chat.completions.create(
        { model: '@simulator/sim-fault-error-in-stream', messages, stream: true },
        { maxRetries: 0 },
      ),
    );
    expect(error).toBeInstanceOf(sdk.OpenAI.InternalServerError);
    expect(error).toMatchObject({ status: 502, type: 'server_error', code: 'server_error' });
  });

  test('a provider that answers a stream request with JSON is turned into a stream', async () => {
    const chunks = [];
    for await (const each of await stream('@simulator/sim-fault-json-to-stream', {
      stream_options: { include_usage: true },
    })) {
      chunks.push(each);
    }
    expect(asText(chunks as Chunk[])).toMatch(/\w/);
    expect(chunks[0]?.choices[0]?.delta.role).toBe('assistant');
    expect(chunks.flatMap(({ choices }) => choices[0]?.finish_reason ?? [])).toEqual(['stop']);
    expect(chunks.at(-1)).toMatchObject({ choices: [], usage: { total_tokens: expect.any(Number) } });
  });

  test.each(['html', 'empty', 'null'])(
    'a provider that answers a stream request with nothing usable (%s) is 502',
    async (fault) => {
      const error = await getFailureCode(
        client.chat.completions.create(
          { model: `@simulator/sim-fault-${fault}`, messages, stream: true },
          { maxRetries: 0 },
        ),
      );
      expect(error).toMatchObject({ status: 502, code: 'upstream_invalid_response' });
      expect(error.message).toContain('simulator');
    },
  );

  test('a client that leaves cancels the call to the provider within a second', async () => {
    const before = platform.simulator.stats().aborted_requests;
    const abort = new AbortController();
    const chunks = await client.chat.completions.create(
      { model: '@simulator/sim-small+20tps+2000tok', messages, stream: true },
      { signal: abort.signal },
    );
    for await (const _chunk of chunks) {
      abort.abort();
      break;
    }
    await eventually(
      () => platform.simulator.stats(),
      ({ aborted_requests, open_requests }) => aborted_requests === before + 1 && open_requests === 0,
      { timeoutMs: 1_000 },
    );
  });

  test('a client that leaves before the first byte cancels the call, too', async () => {
    const before = platform.simulator.stats().aborted_requests;
    const abort = new AbortController();
    const call = client.chat.completions.create(
      { model: '@simulator/sim-small+60s', messages },
      { signal: abort.signal },
    );
    await eventually(
      () => platform.simulator.stats().open_requests,
      (open) => open === 1,
    );
    abort.abort();
    expect(await getFailureCode(call)).toBeInstanceOf(sdk.OpenAI.APIUserAbortError);
    await eventually(
      () => platform.simulator.stats(),
      ({ aborted_requests, open_requests }) => aborted_requests === before + 1 && open_requests === 0,
      { timeoutMs: 1_000 },
    );
  });
});
