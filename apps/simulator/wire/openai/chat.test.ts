import type OpenAI from 'openai';
import { expect, test } from 'vitest';
import { countTokens } from '../../model/tokens.ts';
import { parsePayload } from '#test/fixtures/provider-payloads.ts';
import { dataOf, startTestSimulator, type Json } from '../../start-test-simulator.ts';

const { openai, chat, post } = await startTestSimulator();
type Completion = OpenAI.Chat.ChatCompletion;
type Chunk = OpenAI.Chat.ChatCompletionChunk;

const complete = async (fields: Json): Promise<Completion> => {
  const response = await chat(fields);
  expect(response.status).toBe(200);
  return (await response.json()) as Completion;
};
const stream = async (fields: Json): Promise<Chunk[]> => {
  const response = await chat({ ...fields, stream: true });
  expect(response.headers.get('content-type')).toBe('text/event-stream; charset=utf-8');
  const data = dataOf(await response.text());
  expect(data.pop()).toBe('[DONE]');
  return data.map((json) => JSON.parse(json) as Chunk);
};
const user = (content: unknown) => ({ messages: [{ role: 'user', content }] });
const weather = {
  type: 'function',
  function: {
    name: 'get_weather',
    parameters: {
      type: 'object',
      properties: { city: { type: 'string' }, days: { type: 'integer' } },
      required: ['city', 'days'],
    },
  },
};
const time = { type: 'function', function: { name: 'get_time' } };

test('equal requests have answers of equal bytes; model, message and seed change them', async () => {
  const text = async (fields: Json) => (await chat(fields)).text();
  const first = await text({});
  expect(await text({})).toBe(first);
  const content = async (fields: Json) => (await complete(fields)).choices[0]?.message.content;
  const texts = await Promise.all([{}, { model: 'other' }, { seed: 7 }, user('Bye')].map(content));
  expect(new Set(texts).size).toBe(4);
});

test('the answer has the members of a real one, with values of the same types', async () => {
  const keysOf = (value: unknown): unknown => {
    if (Array.isArray(value)) return value.map(keysOf);
    if (typeof value !== 'object' || value === null) return typeof value;
    return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, keysOf(inner)]));
  };
  expect(keysOf(await complete({}))).toEqual(keysOf(parsePayload('openai-text.json')));
});

test('usage counts the text that was sent and adds up', async () => {
  const { usage, choices } = await complete({ n: 3 });
  expect(choices.map(({ index }) => index)).toEqual([0, 1, 2]);
  expect(usage?.completion_tokens).toBe(
    choices.reduce((sum, { message }) => sum + countTokens(message.content ?? ''), 0),
  );
  expect(usage?.total_tokens).toBe((usage?.prompt_tokens ?? 0) + (usage?.completion_tokens ?? 0));
  const longer = await complete(user('Hello, and some more words that cost more tokens'));
  expect(longer.usage?.prompt_tokens).toBeGreaterThan(usage?.prompt_tokens ?? 0);
});

test('a stream says the same as the whole answer, choices taking turns', async () => {
  const whole = await complete({ n: 2 });
  const chunks = await stream({ n: 2, stream_options: { include_usage: true } });
  const usageChunk = chunks.pop();
  expect(usageChunk).toMatchObject({ choices: [], usage: whole.usage });
  for (const chunk of chunks) {
    expect(chunk).toMatchObject({ id: whole.id, created: whole.created, model: whole.model, usage: null });
    expect(chunk.choices).toHaveLength(1);
  }
  for (const { index, message, finish_reason } of whole.choices) {
    const mine = chunks.map((chunk) => chunk.choices[0]).filter((choice) => choice?.index === index);
    expect(mine[0]?.delta).toEqual({ role: 'assistant', content: '', refusal: null });
    expect(mine.map((choice) => choice?.delta.content ?? '').join('')).toBe(message.content);
    expect(mine.map((choice) => choice?.finish_reason).filter(Boolean)).toEqual([finish_reason]);
    expect(mine.at(-1)).toMatchObject({ delta: {}, finish_reason });
  }
  expect(chunks.slice(0, 6).map((chunk) => chunk.choices[0]?.index)).toEqual([0, 1, 0, 1, 0, 1]);
});

test('without include_usage no chunk mentions usage; obfuscation can be left out', async () => {
  for (const chunk of await stream({})) expect(chunk).not.toHaveProperty('usage');
  const [padded] = await stream({});
  expect(padded).toHaveProperty('obfuscation');
  const [plain] = await stream({ stream_options: { include_obfuscation: false } });
  expect(plain).not.toHaveProperty('obfuscation');
});

test('limits and stop sequences shorten whole and streamed answers alike', async () => {
  const { choices, usage } = await complete({ max_completion_tokens: 4, max_tokens: 100 });
  expect(choices[0]?.finish_reason).toBe('length');
  expect(usage?.completion_tokens).toBe(4);
  const chunks = await stream({ max_tokens: 4 });
  expect(chunks.map((chunk) => chunk.choices[0]?.delta.content ?? '').join('')).toBe(choices[0]?.message.content);
  const whole = (await complete({})).choices[0]?.message.content ?? '';
  const stopped = await complete({ stop: ['never there', whole.slice(10, 14)] });
  expect(stopped.choices[0]).toMatchObject({
    message: { content: whole.slice(0, whole.indexOf(whole.slice(10, 14))) },
    finish_reason: 'stop',
  });
});

test('two named tools make two parallel calls, whose streamed fragments make the same arguments', async () => {
  const fields = { ...user('Use get_weather and get_time'), tools: [weather, time] };
  const { choices } = await complete(fields);
  const calls = choices[0]?.message.tool_calls ?? [];
  expect(choices[0]).toMatchObject({ finish_reason: 'tool_calls', message: { content: null } });
  expect(calls.map((call) => call.type === 'function' && call.function.name)).toEqual(['get_weather', 'get_time']);
  const argumentsOf = (call: (typeof calls)[number] | undefined) =>
    JSON.parse(call?.type === 'function' ? call.function.arguments : '') as unknown;
  expect(argumentsOf(calls[0])).toEqual({ city: expect.any(String), days: expect.any(Number) });

  const deltas = (await stream(fields)).flatMap((chunk) => chunk.choices[0]?.delta.tool_calls ?? []);
  for (const [index, call] of calls.entries()) {
    const mine = deltas.filter((delta) => delta.index === index);
    expect(mine[0]).toMatchObject({ id: call.id, type: 'function', function: { arguments: '' } });
    expect(mine.filter((delta) => delta.id !== undefined || delta.function?.name !== undefined)).toHaveLength(1);
    expect(mine.map((delta) => delta.function?.arguments).join('')).toBe(
      call.type === 'function' && call.function.arguments,
    );
  }
  expect(deltas.filter((delta) => delta.index === 0).length).toBeGreaterThan(3);
});

test('tool_choice and deprecated functions are obeyed', async () => {
  const named = await complete({
    tools: [weather, time],
    tool_choice: { type: 'function', function: { name: 'get_time' } },
  });
  expect(named.choices[0]?.message.tool_calls).toHaveLength(1);
  expect((await complete({ ...user('get_time'), tools: [time], tool_choice: 'none' })).choices[0]?.finish_reason).toBe(
    'stop',
  );
  const allowed = { type: 'allowed_tools', allowed_tools: { mode: 'required', tools: [time] } };
  const picked = await complete({ tools: [weather, time], tool_choice: allowed });
  expect(picked.choices[0]?.message.tool_calls?.[0]).toMatchObject({ function: { name: 'get_time' } });
  const custom = await complete({ tools: [{ type: 'custom', custom: { name: 'run' } }], tool_choice: 'required' });
  expect(custom.choices[0]?.message.tool_calls?.[0]).toMatchObject({
    type: 'custom',
    custom: { name: 'run', input: expect.any(String) },
  });
  const legacy = { functions: [weather.function], function_call: { name: 'get_weather' } };
  const { choices } = await complete(legacy);
  expect(choices[0]).toMatchObject({
    finish_reason: 'function_call',
    message: { function_call: { name: 'get_weather' } },
  });
  expect(choices[0]?.message).not.toHaveProperty('tool_calls');
  const fragments = (await stream(legacy)).map((chunk) => chunk.choices[0]?.delta.function_call?.arguments ?? '');
  expect(fragments.join('')).toBe(choices[0]?.message.function_call?.arguments);
});

test('structured output is JSON of the asked shape', async () => {
  const schema = {
    type: 'object',
    properties: { answer: { enum: ['yes', 'no'] } },
    required: ['answer'],
    additionalProperties: false,
  };
  const format = { type: 'json_schema', json_schema: { name: 'verdict', schema } };
  const verdict = await complete({ response_format: format });
  expect(JSON.parse(verdict.choices[0]?.message.content ?? '')).toEqual({
    answer: expect.stringMatching(/^(yes|no)$/),
  });
  const any = await complete({ response_format: { type: 'json_object' } });
  expect(JSON.parse(any.choices[0]?.message.content ?? '')).toBeTypeOf('object');
});

test('log probabilities cover the text token by token, streamed or not', async () => {
  const { choices } = await complete({ logprobs: true, top_logprobs: 2 });
  const items = choices[0]?.logprobs?.content ?? [];
  expect(items.map(({ token }) => token).join('')).toBe(choices[0]?.message.content);
  for (const { token, bytes, logprob, top_logprobs } of items) {
    expect(Buffer.from(bytes ?? []).toString()).toBe(token);
    expect(top_logprobs).toHaveLength(2);
    expect(logprob).toBeLessThanOrEqual(0);
  }
  const streamed = (await stream({ logprobs: true, top_logprobs: 2 })).flatMap(
    (chunk) => chunk.choices[0]?.logprobs?.content ?? [],
  );
  expect(streamed).toEqual(items);
});

test('sim-echo answers the last user message, also of parts', async () => {
  const parts = [
    { type: 'text', text: 'naïve 🙂' },
    { type: 'image_url', image_url: { url: 'data:,' } },
  ];
  const { choices } = await complete({ model: 'sim-echo', ...user(parts) });
  expect(choices[0]?.message.content).toBe('naïve 🙂');
});

test('sim-reflect answers the very bytes of the request body and never the key', async () => {
  const body =
    '{ "model":"sim-reflect","messages":[{"role":"user","content":"x"}],\n\t"big":123456789012345678901234567890,"big":1.0,"e":1e400,"max_tokens":1,"stop":"o","text":"\\u00e9\\ud83d é 🙂" }';
  const response = await post('/v1/chat/completions', body, { 'x-custom': 'shown', 'x-gateway-api-key': 'canary-key' });
  const text = await response.text();
  const answer = JSON.parse(text) as Completion & { reflected: { path: string; headers: Json } };
  expect(answer.choices[0]?.message.content).toBe(body);
  expect(answer.reflected).toMatchObject({
    path: '/v1/chat/completions',
    headers: { 'x-custom': 'shown', 'x-gateway-api-key': '[present]', authorization: '[present]' },
  });
  expect(text).not.toMatch(/canary-key|sk-test/);
  const streamed = body.replace('"big"', '"stream":true,"big"');
  const data = dataOf(await (await post('/v1/chat/completions', streamed)).text());
  const chunks = data.slice(0, -1).map((json) => JSON.parse(json) as Chunk);
  expect(chunks.map((chunk) => chunk.choices[0]?.delta.content ?? '').join('')).toBe(streamed);
  expect(chunks[0]).toHaveProperty('reflected.path', '/v1/chat/completions');
});

test('a reflected body of megabytes streams back whole', async () => {
  const body = JSON.stringify({ model: 'sim-reflect', stream: true, ...user('é🙂'.repeat(1_000_000)) });
  const data = dataOf(await (await post('/v1/chat/completions', body)).text());
  const chunks = data.slice(0, -1).map((json) => JSON.parse(json) as Chunk);
  expect(chunks.map((chunk) => chunk.choices[0]?.delta.content ?? '').join('') === body).toBe(true);
});

test.for<[string, Json, { param: string | null; code: string | null }]>([
  ['no model', { model: undefined }, { param: 'model', code: 'missing_required_parameter' }],
  ['no messages', { messages: undefined }, { param: 'messages', code: 'missing_required_parameter' }],
  ['empty messages', { messages: [] }, { param: 'messages', code: 'empty_array' }],
  ['messages of a wrong type', { messages: 'hi' }, { param: 'messages', code: 'invalid_type' }],
  [
    'a message without a role',
    { messages: [{ content: 'x' }] },
    { param: 'messages[0].role', code: 'missing_required_parameter' },
  ],
  [
    'an unknown role',
    { messages: [{ role: 'king', content: 'x' }] },
    { param: 'messages[0].role', code: 'invalid_value' },
  ],
  [
    'a user without content',
    { messages: [{ role: 'user' }] },
    { param: 'messages[0].content', code: 'missing_required_parameter' },
  ],
  ['temperature 3', { temperature: 3 }, { param: 'temperature', code: 'decimal_above_max_value' }],
  ['n 0', { n: 0 }, { param: 'n', code: 'integer_below_min_value' }],
  ['n 1.5', { n: 1.5 }, { param: 'n', code: 'invalid_type' }],
  ['five stops', { stop: ['a', 'b', 'c', 'd', 'e'] }, { param: 'stop', code: 'array_above_max_length' }],
  [
    'stream_options without stream',
    { stream_options: { include_usage: true } },
    { param: 'stream_options', code: null },
  ],
  ['top_logprobs without logprobs', { top_logprobs: 1 }, { param: 'top_logprobs', code: null }],
  [
    'a tool without a name',
    { tools: [{ type: 'function', function: {} }] },
    { param: 'tools[0].function.name', code: 'missing_required_parameter' },
  ],
  [
    'a choice of no tool',
    { tools: [time], tool_choice: { type: 'function', function: { name: 'x' } } },
    { param: 'tool_choice', code: null },
  ],
  ['an unknown format', { response_format: { type: 'xml' } }, { param: 'response_format.type', code: 'invalid_value' }],
])('%s is refused as OpenAI does', async ([, fields, expected]) => {
  const response = await chat(fields);
  expect(response.status).toBe(400);
  expect(response.headers.get('x-request-id')).toMatch(/^req_/);
  expect(await response.json()).toEqual({
    error: { message: expect.any(String), type: 'invalid_request_error', ...expected },
  });
});

test('the official SDK completes, streams, and assembles tool calls', async () => {
  const messages = [{ role: 'user' as const, content: 'get_weather please' }];
  const whole = await openai.chat.completions.create({ model: 'gpt-4o', messages });
  expect(whole._request_id).toMatch(/^req_/);
  let text = '';
  for await (const chunk of await openai.chat.completions.create({ model: 'gpt-4o', messages, stream: true })) {
    text += chunk.choices[0]?.delta.content ?? '';
  }
  expect(text).toBe(whole.choices[0]?.message.content);
  const final = await openai.chat.completions
    .stream({ model: 'gpt-4o', messages, tools: [weather as never] })
    .finalChatCompletion();
  expect(final.choices[0]?.message.tool_calls?.[0]).toMatchObject({
    function: { name: 'get_weather', arguments: expect.stringContaining('city') },
  });
});

test('a paced stream gives every event by itself', async () => {
  const response = await chat({ stream: true, max_tokens: 5, model: 'sim-text+40tps' });
  let pieces = 0;
  for await (const piece of response.body ?? []) pieces += piece.length > 0 ? 1 : 0;
  expect(pieces).toBeGreaterThan(4);
});
