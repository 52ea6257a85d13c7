import { expect, test } from 'vitest';
import { eventsOf, startTestSimulator, type Json } from '../../start-test-simulator.ts';
import { membersOf, parsePayload } from '#test/fixtures/provider-payloads.ts';

type Call = { id: string; type: string; function: { name: string; arguments: string } };
type Answer = {
  message: { content?: Json[]; tool_calls?: Call[]; tool_plan?: string };
  finish_reason: string;
  usage: { tokens: Record<string, number>; billed_units: Record<string, number>; cached_tokens: number };
};

const { url, post } = await startTestSimulator();
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

function assemble(events: Awaited<ReturnType<typeof stream>>) {
  const message: Answer['message'] = {};
  let end: Json = {};
  for (const { event, data } of events) {
    expect(data['type']).toBe(event);
    const delta = (data['delta'] ?? {}) as { message?: { content?: Json; tool_plan?: string; tool_calls?: Call } };
    const { content, tool_plan: plan, tool_calls: call } = delta.message ?? {};
    const index = data['index'] as number;
    if (event === 'content-start') (message.content ??= [])[index] = { ...content };
    if (event === 'content-delta') {
      const part = message.content?.[index] ?? {};
      for (const [name, piece] of Object.entries(content ?? {})) part[name] = String(part[name]) + String(piece);
    }
    if (event === 'tool-plan-delta') message.tool_plan = (message.tool_plan ?? '') + (plan ?? '');
    if (event === 'tool-call-start' && call !== undefined) (message.tool_calls ??= [])[index] = structuredClone(call);
    const begun = message.tool_calls?.[index];
    if (event === 'tool-call-delta' && begun !== undefined) begun.function.arguments += call?.function.arguments ?? '';
    if (event === 'message-end') end = delta;
  }
  return { message: { role: 'assistant', ...message }, ...end };
}

test.for<[string, Json]>([
  ['text', {}],
  ['thoughts', { thinking: { type: 'enabled' } }],
  ['parallel tools after their plan', { messages: both, tools }],
  ['a limit', { max_tokens: 3 }],
  ['cached tokens', { model: 'm+cached' }],
])('a stream adds up to the whole answer: %s', async ([, fields]) => {
  const { message, finish_reason, usage } = await complete(fields);
  expect(assemble(await stream(fields))).toEqual({ message, finish_reason, usage });
});

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

test('structured output, log probabilities and a filtered answer', async () => {
  const schema = { type: 'object', properties: { ok: { type: 'boolean' } }, required: ['ok'] };
  const { message } = await complete({ response_format: { type: 'json_object', json_schema: schema } });
  expect(JSON.parse(String(message.content?.[0]?.['text']))).toEqual({ ok: expect.any(Boolean) });
  expect(await complete({ logprobs: true, max_tokens: 2 })).toMatchObject({
    finish_reason: 'MAX_TOKENS',
    logprobs: [{ text: expect.any(String), logprobs: [expect.any(Number)] }, {}],
  });
  expect((await complete({ model: 'sim-fault-content-filter' })).finish_reason).toBe('ERROR');
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

test('texts are embedded in every type, models listed when Cohere’s list is meant', async () => {
  const body = {
    model: 'embed-v4.0',
    input_type: 'search_query',
    texts: ['a', 'b'],
    output_dimension: 256,
    embedding_types: ['float', 'int8', 'ubinary', 'base64'],
  };
  const { embeddings } = (await (await post('/v2/embed', body)).json()) as { embeddings: Record<string, unknown[][]> };
  expect(Object.entries(embeddings).map(([kind, [first, second]]) => [kind, typeof second, first?.length])).toEqual([
    ['float', 'object', 256],
    ['int8', 'object', 256],
    ['ubinary', 'object', 32],
    ['base64', 'string', expect.any(Number)],
  ]);
  expect((await post('/v2/embed', { ...body, input_type: undefined })).status).toBe(400);
  const list = async (query: string, headers = {}) =>
    (await fetch(`${url}/v1/models${query}`, { headers: { authorization: 'Bearer k', ...headers } })).json();
  expect(await list('?page_size=2')).toMatchObject({
    models: [{ name: 'command-a-03-2025' }, {}],
    next_page_token: expect.any(String),
  });
  expect(await list('', { 'x-client-name': 'test' })).toHaveProperty('models');
  expect(await list('')).toHaveProperty('object', 'list');
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
