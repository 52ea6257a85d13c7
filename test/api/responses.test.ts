import OpenAI from 'openai';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { eventually } from '#test/eventually.ts';
import { streamOf } from '#test/upstream.ts';
import { postJson, startScriptedPlatform, type ScriptedPlatform } from './scripted-provider.ts';
import { storeWireKeys, wireKeys } from './wire-keys.ts';

// The Responses API on every provider: translated for each wire format, and unchanged for providers that have it.

type Item = OpenAI.Responses.ResponseInputItem;
type Params = OpenAI.Responses.ResponseCreateParamsNonStreaming;

let scripted: ScriptedPlatform;
let client: OpenAI;

/** An OpenAI-compatible provider that has only chat completions. */
const chatKey = {
  provider: 'deepseek',
  model: 'sim-small',
  key: (origin: string, key: string) => ({ key, custom_host: `${origin}/v1` }),
};
const wires = [...wireKeys.map(({ provider, model, key }) => ({ provider, model, key })), chatKey];

beforeAll(async () => {
  scripted = await startScriptedPlatform();
  const { platform } = scripted;
  await storeWireKeys(platform, [chatKey]);
  const claude = {
    name: 'a',
    slug: 'claude',
    provider: 'anthropic',
    key: 'sk-0123456789',
    custom_host: scripted.upstream.url.href,
  };
  await postJson(platform, '/virtual-keys', claude);
  client = new OpenAI({ apiKey: platform.adminKey, baseURL: platform.baseUrl, maxRetries: 0 });
});
afterAll(() => scripted.stop());

const toolNamed = (name: string): OpenAI.Responses.FunctionTool => ({
  type: 'function',
  name,
  description: `Tells the ${name}`,
  parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] },
  strict: false,
});

async function rowOf(traceId: string): Promise<Record<string, unknown> | undefined> {
  const { baseUrl, adminKey } = scripted.platform;
  const list = async (): Promise<{ data: Record<string, unknown>[] }> => {
    const headers = { authorization: `Bearer ${adminKey}` };
    return (await (await fetch(`${baseUrl}/logs?trace_id=${traceId}`, { headers })).json()) as {
      data: Record<string, unknown>[];
    };
  };
  return (await eventually(list, ({ data }) => data.length > 0)).data[0];
}

/** Parts of a response that stay the same whether it is streamed. IDs and times are new each time. */
const lasting = ({ status, output, usage }: OpenAI.Responses.Response): object => ({
  status,
  usage,
  output: output.map(({ id: _id, ...item }) => ('call_id' in item ? { ...item, call_id: 'call' } : item)),
});

async function streamed(params: Params): Promise<{ types: string[]; last: OpenAI.Responses.Response }> {
  const types: string[] = [];
  let last: OpenAI.Responses.Response | null = null;
  let numbers = 0;
  for await (const event of await client.responses.create({ ...params, stream: true })) {
    types.push(event.type);
    expect(event.sequence_number).toBe(numbers++);
    if (event.type === 'response.completed' || event.type === 'response.incomplete') last = event.response;
  }
  if (last === null) throw new Error(`the stream did not end: ${types.join()}`);
  return { types, last };
}

describe.each(wires)('$provider', ({ provider, model }) => {
  const name = `@wire-${provider}/${model}`;

  test('a response has text and usage, and is recorded with them', async () => {
    const traceId = `responses-${provider}`;
    const response = await client.responses.create(
      { model: name, instructions: 'Answer briefly.', input: 'Say hello.', metadata: { topic: 'greeting' } },
      { headers: { 'x-gateway-trace-id': traceId } },
    );
    expect(response).toMatchObject({
      id: expect.stringMatching(/^resp_/),
      object: 'response',
      status: 'completed',
      instructions: 'Answer briefly.',
      metadata: { topic: 'greeting' },
      output: [{ type: 'message', role: 'assistant', content: [{ type: 'output_text' }] }],
    });
    expect(response.output_text).not.toBe('');
    expect(await rowOf(traceId)).toMatchObject({
      operation: 'responses',
      status: 200,
      finish_reason: 'completed',
      usage: { input_tokens: response.usage?.input_tokens, output_tokens: response.usage?.output_tokens },
    });
  });

  test('a stream assembles to the response that the call has without streaming', async () => {
    const params = { model: name, input: 'Say hello.' };
    const [whole, { types, last }] = await Promise.all([client.responses.create(params), streamed(params)]);
    expect(lasting(last)).toEqual(lasting(whole));
    expect(types.slice(0, 4)).toEqual([
      'response.created',
      'response.in_progress',
      'response.output_item.added',
      'response.content_part.added',
    ]);
    expect(types.slice(-4)).toEqual([
      'response.output_text.done',
      'response.content_part.done',
      'response.output_item.done',
      'response.completed',
    ]);
  });

  test('an answer that is cut off is incomplete', async () => {
    const response = await client.responses.create({ model: name, input: 'Tell a story.', max_output_tokens: 3 });
    expect(response).toMatchObject({ status: 'incomplete', incomplete_details: { reason: 'max_output_tokens' } });
  });

  test('parallel calls of tools are answered over three turns', async () => {
    const tools = [toolNamed('weather'), toolNamed('time')];
    const input: Item[] = [{ role: 'user', content: 'weather and time, please' }];
    const first = await client.responses.create({ model: name, tools, input });
    const calls = first.output.filter((item) => item.type === 'function_call');
    expect(calls.map((call) => call.name)).toEqual(['weather', 'time']);
    input.push(...(first.output as Item[]));
    for (const { call_id } of calls)
      input.push({ type: 'function_call_output', call_id, output: `result of ${call_id}` });
    const second = await client.responses.create({ model: name, tools, input });
    expect(second.output_text).not.toBe('');
    input.push(...(second.output as Item[]), { role: 'user', content: 'And the time?' });
    const third = await streamed({ model: name, tools, input });
    expect(third.last.output).toMatchObject([{ type: 'function_call', name: 'time', status: 'completed' }]);
    expect(third.types).toContain('response.function_call_arguments.delta');
  });

  test('structured output is in the requested shape', async () => {
    const schema = {
      type: 'object',
      properties: { city: { type: 'string' }, population: { type: 'integer' } },
      required: ['city', 'population'],
      additionalProperties: false,
    };
    const format = { type: 'json_schema' as const, name: 'city', schema, strict: true };
    const response = await client.responses.create({ model: name, input: 'A city.', text: { format } });
    expect(JSON.parse(response.output_text)).toEqual({ city: expect.any(String), population: expect.any(Number) });
  });
});

const translated = wires.filter(({ provider }) => provider !== 'openai');

describe.each(translated)('$provider, which lacks the API', ({ provider, model }) => {
  const name = `@wire-${provider}/${model}`;

  test('a custom tool is called with its text, and takes its result', async () => {
    const tools: OpenAI.Responses.Tool[] = [{ type: 'custom', name: 'patch', description: 'Applies a patch' }];
    const input: Item[] = [{ role: 'user', content: 'patch it' }];
    const { last, types } = await streamed({ model: name, tools, input });
    const call = last.output.find((item) => item.type === 'custom_tool_call');
    expect(call).toMatchObject({ name: 'patch', input: expect.stringMatching(/^[^{]/) });
    expect(types).toContain('response.custom_tool_call_input.done');
    const { call_id = '' } = call ?? {};
    input.push(...(last.output as Item[]), { type: 'custom_tool_call_output', call_id, output: 'done' });
    expect((await client.responses.create({ model: name, tools, input })).output_text).not.toBe('');
  });

  test('tools in a namespace, and those that Codex adds to the input, are called by their own names', async () => {
    const added = { type: 'namespace' as const, name: 'crm', description: 'CRM', tools: [toolNamed('lookup')] };
    const items: Item[] = [
      { type: 'additional_tools', role: 'developer', tools: [added] },
      { role: 'user', content: 'crm__lookup, please' },
    ];
    const response = await client.responses.create({ model: name, input: items });
    expect(response.output).toMatchObject([{ type: 'function_call', name: 'lookup', namespace: 'crm' }]);
  });

  test.each<[string, Partial<Params>]>([
    ['previous_response_id', { previous_response_id: 'resp_1' }],
    ['conversation', { conversation: 'conv_1' }],
    ['background', { background: true }],
    ['store', { store: true }],
    ['prompt', { prompt: { id: 'pmpt_1' } }],
    ['tools[0].type', { tools: [{ type: 'file_search', vector_store_ids: ['vs_1'] }] }],
    ['input[0]', { input: [{ type: 'item_reference', id: 'msg_1' }] }],
    [
      'input[0].content[0].file_id',
      { input: [{ role: 'user', content: [{ type: 'input_file', file_id: 'file-1' }] }] },
    ],
  ])('what only the API itself can do is refused: %s', async (param, more) => {
    const refused = client.responses.create({ model: name, input: 'Hi', ...more });
    await expect(refused).rejects.toMatchObject({ status: 400, code: 'unsupported_parameter', param });
  });
});

describe('a provider that has the API', () => {
  const json = { 'content-type': 'application/json' };

  test('gets the client’s bytes, and the client its answer', async () => {
    const seen = scripted.upstream.requests.length;
    const request =
      '{ "model": "@scripted/m", "store": true, "input": [ {"type":"new_item","x":[1.0]} ], "tools": [{"type":"web_search"}]}';
    const answer =
      '{ "id":"resp_9", "object":"response", "model":"m", "status":"completed", "output":[ ], "new":[1.0] }';
    scripted.upstream.script((reply) => reply.respond(200, answer, json));
    const response = await postJson(scripted.platform, '/responses', request);
    expect(await response.text()).toBe(answer);
    expect(scripted.upstream.requests[seen]?.body.toString()).toBe(request.replace('@scripted/m', 'm'));
  });

  test('never gets reasoning that another provider has signed', async () => {
    const seen = scripted.upstream.requests.length;
    scripted.upstream.script((reply) => reply.json(200, { id: 'resp_1', model: 'm', status: 'completed', output: [] }));
    const own = { type: 'reasoning', id: 'rs_1', summary: [], encrypted_content: 'gAAAA' };
    const items = [
      own,
      { ...own, id: 'rs_2', encrypted_content: 'sluice.claude.c2ln' },
      { role: 'user', content: 'Hi' },
    ];
    // An escape does not hide it.
    const body = JSON.stringify({ model: '@scripted/m', input: items }).replace('"sluice.', String.raw`"\u0073luice.`);
    const response = await postJson(scripted.platform, '/responses', body);
    expect(response.headers.get('x-gateway-dropped-params')).toBe('reasoning');
    const { input } = JSON.parse(scripted.upstream.requests[seen]?.body.toString() ?? '') as { input: unknown };
    expect(input).toEqual([own, items[2]]);
  });

  test.each([
    ['response.failed', { response: { error: { code: 'rate_limit_exceeded', message: 'Slow down' } } }],
    ['error', { code: 'rate_limit_exceeded', message: 'Slow down' }],
  ])('a stream that it ends with %s fails for the client with its code', async (type, members) => {
    const begun = { type: 'response.created', response: { id: 'resp_1', object: 'response', model: 'm' } };
    const events = [begun, { type: 'response.output_text.delta', delta: 'Hel' }, { type, ...members }];
    scripted.upstream.script(streamOf(events.map((event) => JSON.stringify(event))));
    const body = { model: '@scripted/m', input: 'Hi', stream: true };
    const text = await (await postJson(scripted.platform, '/responses', body)).text();
    const last = text.trim().split('\n\n').at(-1) ?? '';
    expect(last).toMatch(/^event: response\.failed\n/);
    expect(JSON.parse(last.split('data: ')[1] ?? '')).toMatchObject({
      sequence_number: 2,
      response: {
        id: 'resp_1',
        status: 'failed',
        error: { code: 'rate_limit_exceeded', message: expect.stringContaining('Slow down') },
      },
    });
  });

  test('a stream that breaks off never looks complete', async () => {
    const traceId = 'responses-broken';
    scripted.upstream.script(async (reply) => {
      reply.head(200, { 'content-type': 'text/event-stream' });
      await reply.write('data: {"type":"response.created","response":{"id":"resp_1","model":"m"}}\n\n');
      await reply.write('data: {"type":"response.output_text.delta","delta":"Hel"}\n\n');
      reply.end();
    });
    const body = { model: '@scripted/m', input: 'Hi', stream: true };
    const response = await postJson(scripted.platform, '/responses', body, { 'x-gateway-trace-id': traceId });
    const text = await response.text();
    expect(text).toContain('"code":"server_error"');
    expect(text).not.toContain('response.completed');
    expect(await rowOf(traceId)).toMatchObject({ error_code: 'upstream_truncated' });
  });
});

test('reasoning goes back only to the provider that signed it', async () => {
  const { upstream, platform } = scripted;
  const thinking = { type: 'thinking', thinking: 'Let me see.', signature: 'c2ln' };
  const call = { type: 'tool_use', id: 'toolu_1', name: 'weather', input: { city: 'Oslo' } };
  const message = { id: 'msg_1', type: 'message', role: 'assistant', model: 'claude-x', stop_reason: 'tool_use' };
  const usage = { input_tokens: 3, output_tokens: 4 };
  upstream.script((reply) => reply.json(200, { ...message, content: [thinking, call], usage }));
  const params = { model: '@claude/claude-x', tools: [toolNamed('weather')] };
  const input: Item[] = [{ role: 'user', content: 'weather' }];
  const first = await client.responses.create({ ...params, input });
  expect(first.output).toMatchObject([
    { type: 'reasoning', summary: [{ text: 'Let me see.' }], encrypted_content: 'sluice.claude.c2ln' },
    { type: 'function_call', call_id: 'toolu_1', arguments: '{"city":"Oslo"}' },
  ]);
  input.push(...(first.output as Item[]), { type: 'function_call_output', call_id: 'toolu_1', output: 'Snow' });
  const seen = upstream.requests.length;
  await client.responses.create({ ...params, input });
  const { messages } = JSON.parse(upstream.requests[seen]?.body.toString() ?? '') as { messages: object[] };
  expect(messages[1]).toEqual({ role: 'assistant', content: [thinking, call] });
  const elsewhere = await postJson(platform, '/responses', { ...params, model: '@wire-deepseek/sim-small', input });
  expect(elsewhere.status).toBe(200);
  expect(elsewhere.headers.get('x-gateway-dropped-params')).toBe('reasoning');
});

test('images reach a provider that lacks the API', async () => {
  const { upstream } = scripted;
  const seen = upstream.requests.length;
  const message = { id: 'msg_1', type: 'message', role: 'assistant', model: 'claude-x', stop_reason: 'end_turn' };
  const usage = { input_tokens: 3, output_tokens: 4 };
  upstream.script((reply) => reply.json(200, { ...message, content: [{ type: 'text', text: 'A cat' }], usage }));
  const image = { type: 'input_image' as const, detail: 'auto' as const, image_url: 'data:image/png;base64,aGk=' };
  const content = [{ type: 'input_text' as const, text: 'What is it?' }, image];
  await client.responses.create({ model: '@claude/claude-x', input: [{ role: 'user', content }] });
  const { messages } = JSON.parse(upstream.requests[seen]?.body.toString() ?? '') as { messages: object[] };
  expect(messages).toEqual([
    {
      role: 'user',
      content: [
        { type: 'text', text: 'What is it?' },
        { type: 'image', source: { type: 'base64', media_type: 'image/png', data: 'aGk=' } },
      ],
    },
  ]);
});

test('a call falls back to a provider that lacks the API', async () => {
  scripted.upstream.script((reply) =>
    reply.json(503, { error: { message: 'busy', type: 'x', param: null, code: null } }),
  );
  const config = {
    strategy: { mode: 'fallback' },
    targets: [{ virtual_key: 'scripted' }, { virtual_key: 'wire-anthropic', override_params: { model: 'sim-small' } }],
  };
  const headers = { 'x-gateway-config': JSON.stringify(config) };
  const response = await client.responses.create({ model: 'm', input: 'Say hello.' }, { headers });
  expect(response).toMatchObject({ status: 'completed', model: 'sim-small', store: false });
});

test('the tokens of an input are counted by an estimate where the provider cannot count them', async () => {
  const count = async (input: string) => {
    const { data, response } = await client.responses.inputTokens
      .count({ model: '@wire-anthropic/sim-small', input })
      .withResponse();
    expect(response.headers.get('x-gateway-token-count')).toBe('estimated');
    expect(data.object).toBe('response.input_tokens');
    return data.input_tokens;
  };
  const short = await count('Hi');
  expect(short).toBeGreaterThan(0);
  expect(await count('Why is the sky blue? '.repeat(50))).toBeGreaterThan(short + 150);
});

test('a guardrail that holds a stream denies what it says', async () => {
  const noHello = { contains: { operator: 'none', words: ['Apple'] }, deny: true };
  const item = { id: 'm1', type: 'message', role: 'assistant', content: [{ type: 'output_text', text: 'Buy Apple' }] };
  const response = { id: 'resp_1', object: 'response', model: 'm', output: [item] };
  const events = [
    { type: 'response.created', response: { ...response, output: [] } },
    { type: 'response.output_text.delta', output_index: 0, delta: 'Buy Apple' },
    { type: 'response.output_item.done', output_index: 0, item },
    { type: 'response.completed', response: { ...response, status: 'completed' } },
  ];
  for (const sent of [events, events.toSpliced(1, 2), events.toSpliced(2, 1)]) {
    scripted.upstream.script(streamOf(sent.map((event) => JSON.stringify(event))));
    const config = { virtual_key: 'scripted', output_guardrails: [{ ...noHello, stream_mode: 'hold' }] };
    const headers = { 'x-gateway-config': JSON.stringify(config) };
    const body = { model: 'm', input: 'Hi', stream: true };
    const denied = await postJson(scripted.platform, '/responses', body, headers);
    expect([denied.status, (await denied.text()).includes('Buy')]).toEqual([446, false]);
  }
});

test('a client that leaves in the middle of a stream ends the call', async () => {
  const controller = new AbortController();
  const params = { model: '@wire-anthropic/sim-small+20tps+200tok', input: 'Tell a story.', stream: true as const };
  const headers = { 'x-gateway-trace-id': 'responses-left' };
  const stream = await client.responses.create(params, { headers, signal: controller.signal });
  for await (const event of stream) if (event.type === 'response.output_text.delta') break;
  controller.abort();
  expect(await rowOf('responses-left')).toMatchObject({ status: 499 });
});
