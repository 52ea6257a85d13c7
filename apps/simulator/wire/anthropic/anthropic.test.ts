import { expect, test } from 'vitest';
import { eventsOf, startTestSimulator, type Json } from '#test/test-simulator.ts';
import { membersOf, parsePayload } from '#test/fixtures/provider-payloads.ts';

type Block = {
  type: string;
  text?: string;
  thinking?: string;
  signature?: string;
  id?: string;
  name?: string;
  input?: Json;
};
type Message = { content: Block[]; stop_reason: string; stop_sequence: string | null; usage: Record<string, number> };

const { post } = await startTestSimulator();
const headers = { 'x-api-key': 'sk-ant-test', 'anthropic-version': '2023-06-01' };
const ask = (fields: Json, own: Record<string, string> = headers) =>
  post('/v1/messages', { model: 'claude-sonnet-4-5', max_tokens: 1000, messages: [user('Hello')], ...fields }, own);
const complete = async (fields: Json) => (await (await ask(fields)).json()) as Message & Json;
const stream = async (fields: Json) => eventsOf(await (await ask({ ...fields, stream: true })).text());
const user = (content: unknown) => ({ role: 'user', content });
const weather = {
  name: 'get_weather',
  input_schema: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] },
};
const now = { name: 'get_time', input_schema: { type: 'object' } };
const thinking = { type: 'enabled', budget_tokens: 1024 };

test('usage counts the cache apart and thoughts as output', async () => {
  const plain = await complete({});
  const { usage } = await complete({ model: 'claude-sonnet-4-5+cached' });
  const { input_tokens = 0, cache_read_input_tokens = 0, cache_creation_input_tokens = 0 } = usage;
  expect(cache_read_input_tokens).toBeGreaterThan(0);
  expect(input_tokens + cache_read_input_tokens + cache_creation_input_tokens).toBe(plain.usage['input_tokens']);
  const thought = await complete({ thinking, max_tokens: 2000 });
  expect(thought.usage['output_tokens']).toBeGreaterThan(plain.usage['output_tokens'] ?? 0);
});

test('thoughts must come back as they were given', async () => {
  const fields = { thinking, max_tokens: 2000, tools: [weather], messages: [user('get_weather')] };
  const { content } = await complete(fields);
  expect(content.map(({ type }) => type)).toEqual(['thinking', 'tool_use']);
  const result = user([{ type: 'tool_result', tool_use_id: content[1]?.id }]);
  const next = (blocks: unknown) =>
    ask({ ...fields, messages: [...fields.messages, { role: 'assistant', content: blocks }, result] });
  expect((await next(content)).status).toBe(200);
  expect((await next(content.slice(1))).status).toBe(400);
  expect((await next([{ ...content[0], thinking: 'other' }, content[1]])).status).toBe(400);
});

test.for<[string, Json]>([
  ['max_tokens: Field required', { max_tokens: undefined }],
  ['frequency_penalty: Extra inputs are not permitted', { frequency_penalty: 1 }],
  ['stop_sequences: ', { stop_sequences: 'x' }],
  ['temperature: ', { temperature: 1.5 }],
  ["messages.0.role: Input should be 'user' or 'assistant'", { messages: [{ role: 'system', content: 'x' }] }],
  ['messages.0.content.0.foo: Extra inputs', { messages: [user([{ type: 'text', text: 'x', foo: 1 }])] }],
  ['messages.0: all messages must have non-empty content', { messages: [user('')] }],
  ['messages: first message must use the "user" role', { messages: [{ role: 'assistant', content: 'x' }] }],
  ['`max_tokens` must be greater', { thinking: { type: 'enabled', budget_tokens: 5000 } }],
  ['`temperature` may only be set to 1', { thinking, max_tokens: 2000, temperature: 0 }],
  ['tool_choice may only be specified', { tool_choice: { type: 'auto' } }],
  ['unexpected `tool_use_id`', { messages: [user([{ type: 'tool_result', tool_use_id: 'x' }])] }],
  [
    '`tool_use` ids were found without `tool_result` blocks immediately after: b.',
    {
      messages: [
        user('x'),
        { role: 'assistant', content: ['a', 'b'].map((id) => ({ type: 'tool_use', id, name: 'n', input: {} })) },
        user([{ type: 'tool_result', tool_use_id: 'a' }]),
      ],
    },
  ],
])('a request is refused: %s', async ([message, fields]) => {
  const response = await ask(fields);
  expect(response.status).toBe(400);
  expect(await response.json()).toEqual({
    type: 'error',
    error: { type: 'invalid_request_error', message: expect.stringContaining(message) },
    request_id: response.headers.get('request-id'),
  });
});

test('key and version are required', async () => {
  expect((await ask({}, { authorization: '', 'anthropic-version': '2023-06-01' })).status).toBe(401);
  expect((await ask({}, { 'x-api-key': 'invalid', 'anthropic-version': '2023-06-01' })).status).toBe(401);
  const response = await ask({}, { 'x-api-key': 'k' });
  expect([response.status, ((await response.json()) as { error: Json }).error['message']]).toEqual([
    400,
    'anthropic-version: header is required',
  ]);
});

test('faults come in this provider’s form', async () => {
  const overloaded = await ask({ model: 'sim-fault-529' });
  expect([overloaded.status, (await overloaded.json()) as Json]).toEqual([
    529,
    expect.objectContaining({ type: 'error', error: { type: 'overloaded_error', message: expect.any(String) } }),
  ]);
  const limited = await ask({ model: 'sim-fault-429' });
  expect([limited.status, limited.headers.get('retry-after')]).toEqual([429, '1']);
  const late = await stream({ model: 'sim-fault-error-in-stream-late' });
  expect(late.at(-1)).toEqual({
    event: 'error',
    data: { type: 'error', error: { type: 'overloaded_error', message: 'Overloaded' } },
  });
  expect((await stream({ model: 'sim-fault-truncated-stream' })).at(-1)?.event).toBe('content_block_delta');
  expect((await stream({ model: 'sim-fault-no-done' })).at(-1)?.event).toBe('message_delta');
  expect(
    (await stream({ model: 'sim-fault-comments' })).filter(({ event }) => event === 'ping').length,
  ).toBeGreaterThan(5);
  const filtered = await complete({ model: 'sim-fault-content-filter' });
  expect(filtered.stop_reason).toBe('refusal');
});

test('answers have the members of real ones', async () => {
  const whole: [string, Json][] = [
    ['anthropic-text.json', {}],
    ['anthropic-refusal.json', { model: 'm+refuse' }],
    ['anthropic-clear-thinking.1.json', { thinking, max_tokens: 2000 }],
    ['anthropic-tool-no-args.json', { model: 'm+preamble', messages: [user('get_time')], tools: [now] }],
  ];
  for (const [name, fields] of whole) {
    const beyond = new Set(['.usage.inference_geo', '.context_management', '.context_management.applied_edits']);
    const known = (value: unknown) => membersOf(value).filter((member) => !beyond.has(member));
    expect(known(await complete(fields))).toEqual(known(parsePayload(name)));
    const events = (await stream(fields)).map(({ data }) => data);
    const chunks = parsePayload(name.replace('.json', '.chunks.txt'));
    const inStream = (value: unknown) =>
      membersOf(value).filter((member) => !/inference_geo|context_management/.test(member));
    expect(inStream(events)).toEqual(inStream(chunks));
  }
});
