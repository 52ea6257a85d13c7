import type OpenAI from 'openai';
import { expect, test } from 'vitest';
import { parsePayload } from '#test/fixtures/provider-payloads.ts';
import { dataOf, startTestSimulator, type Json } from '#test/test-simulator.ts';

const { chat, post } = await startTestSimulator();
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

test('without include_usage no chunk mentions usage; obfuscation can be left out', async () => {
  for (const chunk of await stream({})) expect(chunk).not.toHaveProperty('usage');
  const [padded] = await stream({});
  expect(padded).toHaveProperty('obfuscation');
  const [plain] = await stream({ stream_options: { include_obfuscation: false } });
  expect(plain).not.toHaveProperty('obfuscation');
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

test('a paced stream gives every event by itself', async () => {
  const response = await chat({ stream: true, max_tokens: 5, model: 'sim-text+40tps' });
  let pieces = 0;
  for await (const piece of response.body ?? []) pieces += piece.length > 0 ? 1 : 0;
  expect(pieces).toBeGreaterThan(4);
});
