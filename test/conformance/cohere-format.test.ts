import { expect, test } from 'vitest';
import { eventsOf, startTestSimulator, type Json } from '#test/test-simulator.ts';
import { membersOf, parsePayload } from '#test/fixtures/provider-payloads.ts';

type Call = { id: string; type: string; function: { name: string; arguments: string } };
type Answer = {
  message: { content?: Json[]; tool_calls?: Call[]; tool_plan?: string };
  finish_reason: string;
  usage: { tokens: Record<string, number>; billed_units: Record<string, number>; cached_tokens: number };
};

const { post } = await startTestSimulator();
const user = (content: unknown) => ({ role: 'user', content });
const ask = (fields: Json = {}) =>
  post('/v2/chat', { model: 'command-a-03-2025', messages: [user('Hello')], ...fields });
const complete = async (fields: Json = {}) => (await (await ask(fields)).json()) as Answer;
const stream = async (fields: Json = {}) => eventsOf(await (await ask({ ...fields, stream: true })).text());
const tool = (name: string) => ({
  type: 'function',
  function: { name, parameters: { type: 'object', properties: { city: { type: 'string' } } } },
});
const tools = [tool('get_weather'), tool('get_time')];
const both = [user('get_weather and get_time')];

test('tools are called and their results answered, by id', async () => {
  const { message, finish_reason } = await complete({ messages: both, tools });
  expect([finish_reason, message.tool_calls?.map((call) => call.function.name)]).toEqual([
    'TOOL_CALL',
    ['get_weather', 'get_time'],
  ]);
  const turn = { role: 'assistant', tool_calls: message.tool_calls, tool_plan: message.tool_plan };
  const results = (message.tool_calls ?? []).map(({ id }) => ({
    role: 'tool',
    tool_call_id: id,
    content: [{ type: 'document', document: { data: 'fine' } }],
  }));
  expect((await complete({ messages: [...both, turn, ...results], tools })).finish_reason).toBe('COMPLETE');
  for (const wrong of [
    results.slice(1),
    [...results, results[0]],
    [{ role: 'tool', tool_call_id: 'x', content: 'y' }],
  ]) {
    expect((await ask({ messages: [...both, turn, ...wrong], tools })).status).toBe(400);
  }
  expect((await complete({ messages: both, tools, tool_choice: 'NONE' })).finish_reason).toBe('COMPLETE');
});

test.for<[string, Json]>([
  ["parameter 'top_p' is not a valid field", { top_p: 1 }],
  ["parameter 'messages.0.name' is not a valid field", { messages: [{ ...user('x'), name: 'y' }] }],
  ['model is required', { model: undefined }],
  ['stop_sequences', { stop_sequences: 'x' }],
  ['messages.0.role', { messages: [{ role: 'developer', content: 'x' }] }],
  ['tool_choice', { tools, tool_choice: 'AUTO' }],
  ['not supported with tools', { tools, response_format: { type: 'json_object' } }],
])('a request is refused: %s', async ([message, fields]) => {
  const response = await ask(fields);
  expect([response.status, await response.json()]).toEqual([
    400,
    { id: expect.any(String), message: expect.stringContaining(message) },
  ]);
});

test('faults and keys in this provider’s shape', async () => {
  const limited = await ask({ model: 'sim-fault-429' });
  expect([limited.status, limited.headers.get('retry-after'), Object.keys((await limited.json()) as Json)]).toEqual([
    429,
    '1',
    ['id', 'message'],
  ]);
  expect((await stream({ model: 'sim-fault-error-in-stream-late' })).at(-1)).toMatchObject({
    event: 'message-end',
    data: { delta: { finish_reason: 'ERROR' } },
  });
  const anonymous = await post('/v2/chat', {}, { authorization: '' });
  expect([anonymous.status, await anonymous.json()]).toMatchObject([401, { message: 'no api key supplied' }]);
});

test('answers have the members of real ones', async () => {
  const cases: [string, Json][] = [
    ['cohere-text', {}],
    ['cohere-reasoning', { thinking: { type: 'enabled' } }],
    ['cohere-tool-call', { messages: both, tools }],
  ];
  for (const [name, fields] of cases) {
    expect(membersOf(await complete(fields))).toEqual(membersOf(parsePayload(`${name}.json`)));
    const events = (await stream(fields)).map(({ data }) => data);
    expect(membersOf(events)).toEqual(membersOf(parsePayload(`${name}.chunks.txt`)));
  }
  const body = { model: 'embed-v4.0', input_type: 'search_query', texts: ['a'] };
  expect(membersOf(await (await post('/v2/embed', body)).json())).toEqual(
    membersOf(parsePayload('cohere-embedding.json')),
  );
});
