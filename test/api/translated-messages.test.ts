import Anthropic from '@anthropic-ai/sdk';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { eventually } from '#test/eventually.ts';
import { startPlatform, type TestPlatform } from '#test/platform.ts';
import { storeWireKeys, wireKeys } from './wire-keys.ts';

// The SDK of Anthropic, unchanged, against each wire format that the core translates to.

let platform: TestPlatform;
let client: Anthropic;

beforeAll(async () => {
  platform = await startPlatform({ worker: false });
  await storeWireKeys(platform);
  client = new Anthropic({ apiKey: platform.adminKey, baseURL: new URL(platform.baseUrl).origin, maxRetries: 0 });
});
afterAll(() => platform.stop());

const hello = { role: 'user' as const, content: 'Say hello.' };
const cityTool = (name: string): Anthropic.Tool => ({
  name,
  description: `Tells the ${name}`,
  input_schema: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] },
});
const pixel = 'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==';
/** The wires whose models have images, and those of which the simulator shows reasoning. */
const withImages = new Set(['openai', 'anthropic', 'gemini', 'vertex', 'bedrock', 'cohere']);

describe.each(wireKeys)('$provider', ({ provider, model, prefix }) => {
  /** Options of the simulated model; not every provider allows `+` in a name. */
  const name = (...options: string[]): string => [`@wire-${provider}/${model}`, ...options].join('__');

  test('answers with a message whose stream is the same', async () => {
    const request = {
      model: name(),
      max_tokens: 500,
      system: [{ type: 'text' as const, text: 'Answer briefly.' }],
      messages: [hello],
    };
    const { data: whole, response } = await client.messages.create(request).withResponse();
    expect(whole).toMatchObject({
      type: 'message',
      role: 'assistant',
      content: [{ type: 'text', text: expect.stringMatching(/./) }],
      stop_reason: 'end_turn',
      stop_sequence: null,
    });
    expect(whole.usage.input_tokens).toBeGreaterThan(0);
    expect(whole.usage.output_tokens).toBeGreaterThan(0);
    expect(response.headers.get('request-id')).toBe(response.headers.get('x-request-id'));
    const streamed = await client.messages.stream(request).finalMessage();
    expect(streamed.content).toMatchObject(whole.content);
    expect(streamed.stop_reason).toBe(whole.stop_reason);
    expect(streamed.usage.output_tokens).toBe(whole.usage.output_tokens);
    expect(streamed.usage.input_tokens).toBe(whole.usage.input_tokens);
  });

  test('calls tools in parallel over three turns', async () => {
    const tools = [cityTool('weather'), cityTool('time')];
    const messages: Anthropic.MessageParam[] = [{ role: 'user', content: 'Ask weather and time for Paris.' }];
    const request = { model: name(), max_tokens: 500, tools };
    const first = await client.messages.stream({ ...request, messages }).finalMessage();
    expect(first.stop_reason).toBe('tool_use');
    const results = (message: Anthropic.Message): Anthropic.ToolResultBlockParam[] =>
      message.content.flatMap((block) =>
        block.type === 'tool_use' ? [{ type: 'tool_result', tool_use_id: block.id, content: 'fine' }] : [],
      );
    const calls = first.content.filter((block) => block.type === 'tool_use');
    expect(calls.map((call) => call.name)).toEqual(['weather', 'time']);
    for (const { input } of calls) expect(input).toHaveProperty('city');
    messages.push({ role: 'assistant', content: first.content as Anthropic.ContentBlockParam[] });
    messages.push({ role: 'user', content: results(first) });
    const second = await client.messages.create({ ...request, messages });
    expect(second).toMatchObject({ stop_reason: 'end_turn', content: [{ type: 'text' }] });
    messages.push({ role: 'assistant', content: second.content as Anthropic.ContentBlockParam[] });
    messages.push({ role: 'user', content: 'Ask weather and time for Rome.' });
    const third = await client.messages.create({ ...request, messages, tool_choice: { type: 'any' } });
    expect(third.stop_reason).toBe('tool_use');
    messages.push({ role: 'assistant', content: third.content as Anthropic.ContentBlockParam[] });
    messages.push({
      role: 'user',
      content: [...results(third).map((result) => ({ ...result, is_error: true })), { type: 'text', text: 'Well?' }],
    });
    expect(await client.messages.create({ ...request, messages })).toMatchObject({ stop_reason: 'end_turn' });
  });

  test.runIf(withImages.has(provider))('sees images', async () => {
    const content: Anthropic.ContentBlockParam[] = [
      { type: 'text', text: 'What is it?' },
      { type: 'image', source: { type: 'base64', media_type: 'image/png', data: pixel } },
    ];
    const request = { model: name(), max_tokens: 100, messages: [{ role: 'user' as const, content }] };
    expect(await client.messages.create(request)).toMatchObject({ content: [{ type: 'text' }] });
  });

  test('gives structured output', async () => {
    const schema = {
      type: 'object',
      properties: { city: { type: 'string' }, people: { type: 'integer' } },
      required: ['city', 'people'],
      additionalProperties: false,
    };
    const message = await client.messages.create({
      model: name(),
      max_tokens: 500,
      messages: [{ role: 'user', content: 'Name a city.' }],
      output_config: { format: { type: 'json_schema', schema } },
    });
    const [block] = message.content;
    expect(JSON.parse(block?.type === 'text' ? block.text : '')).toMatchObject({
      city: expect.any(String),
      people: expect.any(Number),
    });
  });

  test('gets its reasoning back within a loop of tool calls', async () => {
    const request = {
      model: name('think'),
      max_tokens: 4_000,
      thinking: { type: 'enabled' as const, budget_tokens: 1_024 },
      tools: [cityTool('weather')],
    };
    const ask = { role: 'user' as const, content: 'Ask weather for Paris.' };
    const first = await client.messages.stream({ ...request, messages: [ask] }).finalMessage();
    expect(first.stop_reason).toBe('tool_use');
    const results: Anthropic.ToolResultBlockParam[] = first.content.flatMap((block) =>
      block.type === 'tool_use' ? [{ type: 'tool_result', tool_use_id: block.id, content: 'sunny' }] : [],
    );
    const said = { role: 'assistant' as const, content: first.content as Anthropic.ContentBlockParam[] };
    const second = await client.messages.create({
      ...request,
      messages: [ask, said, { role: 'user', content: results }],
    });
    expect(second.stop_reason).toBe('end_turn');
  });

  test.each([
    [400, Anthropic.BadRequestError, 'invalid_request_error'],
    [401, Anthropic.AuthenticationError, 'authentication_error'],
    [404, Anthropic.NotFoundError, 'not_found_error'],
    [429, Anthropic.RateLimitError, 'rate_limit_error'],
    [500, Anthropic.InternalServerError, 'api_error'],
    [503, Anthropic.InternalServerError, 'overloaded_error'],
  ])('reports status %i in the form of Anthropic', async (status, kind, type) => {
    const failing = `@wire-${provider}/${prefix}sim-fault-${status}`;
    const failed = await client.messages
      .create({ model: failing, max_tokens: 9, messages: [hello] })
      .catch((error: unknown) => error);
    expect(failed).toBeInstanceOf(kind);
    expect(failed).toMatchObject({
      status: status === 503 ? 529 : status,
      error: { type: 'error', error: { type, message: expect.stringMatching(/./) } },
    });
  });

  test('counts tokens, itself or by an estimate that says so', async () => {
    const tokens = async (content: string) => {
      const body = { model: name(), messages: [{ role: 'user' as const, content }] };
      const { data, response } = await client.messages.countTokens(body).withResponse();
      return { count: data.input_tokens, kind: response.headers.get('x-gateway-token-count') };
    };
    const [short, long] = await Promise.all([tokens('Hi'), tokens('Why is the sky blue? '.repeat(50))]);
    expect(short.kind).toBe(provider === 'anthropic' ? null : 'estimated');
    expect(short.count).toBeGreaterThan(0);
    expect(long.count).toBeGreaterThan(short.count + 150);
  });

  test('stops when the client leaves in the middle of a stream', async () => {
    const traceId = `leaves-${provider}`;
    const long = name('2000tok', '50tps');
    const stream = client.messages.stream(
      { model: long, max_tokens: 4_000, messages: [hello] },
      { headers: { 'x-gateway-trace-id': traceId } },
    );
    const left = stream.finalMessage().catch((error: unknown) => error);
    stream.once('text', () => stream.abort());
    expect(await left).toBeInstanceOf(Anthropic.APIUserAbortError);
    const list = async () => {
      const headers = { authorization: `Bearer ${platform.adminKey}` };
      const response = await fetch(`${platform.baseUrl}/logs?trace_id=${traceId}`, { headers });
      return ((await response.json()) as { data: { status: number }[] }).data;
    };
    expect(await eventually(list, (rows) => rows.length > 0)).toMatchObject([{ operation: 'messages', status: 499 }]);
  });
});
