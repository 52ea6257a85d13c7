import { expect, test } from 'vitest';
import { Secret } from '#libs/kernel/logging/secret.ts';
import type { Call } from '../provider.ts';
import { chatDialect } from '../chat/index.ts';
import { decodeChat } from './decode.ts';
import { encodeEmbedBody } from './index.ts';
import { encodeChatBody } from './encode.ts';
import { cohere } from './index.ts';
import { openChatStream } from './stream.ts';

// Cases that test/conformance/cases/cohere.ts cannot express: extensions, and the less common forms of requests.

const callOf = (json: Record<string, unknown>, options: Partial<Call> = {}): Call => ({
  operation: 'chat',
  dialect: chatDialect,
  model: (json['model'] as string | undefined) ?? 'command-a-03-2025',
  body: Buffer.from(JSON.stringify(json)),
  edits: {},
  json: () => ({ model: 'command-a-03-2025', messages: [{ role: 'user', content: 'Hi' }], ...json }),
  stream: false,
  includeUsage: false,
  strict: true,
  resources: new Map(),
  headers: {},
  ...options,
});
const deltas = (call: Call, events: readonly object[]): unknown[] => {
  const decoder = openChatStream(call);
  return events
    .flatMap((event) => decoder.push({ data: JSON.stringify(event) }).payloads)
    .flatMap((payload) => (JSON.parse(payload) as { choices: { delta: unknown }[] }).choices.map(({ delta }) => delta));
};
const tool = (name: string, more: object = {}) => ({ type: 'function', function: { name, ...more } });
const toolCall = {
  id: 'w1',
  type: 'function',
  function: { name: 'weather', arguments: '{"big":12345678901234567890}' },
};

test('plan and citations come with strict compliance off, and a plan goes back with its calls', () => {
  const plan = { type: 'tool-plan-delta', delta: { message: { tool_plan: 'Look.' } } };
  const cite = {
    type: 'citation-start',
    index: 0,
    delta: { message: { citations: { start: 0, end: 2, text: 'So' } } },
  };
  expect(deltas(callOf({}, { strict: false }), [plan, cite])).toEqual([
    { role: 'assistant', content: '', refusal: null },
    { tool_plan: 'Look.' },
    { citations: [{ start: 0, end: 2, text: 'So' }] },
  ]);
  expect(deltas(callOf({}), [plan, cite])).toEqual([]);
  const answer = {
    id: 'c',
    message: { tool_plan: 'Look.', tool_calls: [toolCall], citations: [{ start: 0 }] },
    finish_reason: 'TOOL_CALL',
  };
  expect(decodeChat(answer, callOf({}, { strict: false }))).toMatchObject({
    choices: [{ message: { content: null, tool_plan: 'Look.', citations: [{ start: 0 }], tool_calls: [toolCall] } }],
  });
  const { body } = encodeChatBody(
    callOf({ messages: [{ role: 'assistant', content: null, tool_plan: 'Look.', tool_calls: [toolCall] }] }),
  );
  // The text of the arguments is the client's, including numbers beyond 2^53.
  expect(body['messages']).toEqual([{ role: 'assistant', tool_plan: 'Look.', tool_calls: [toolCall] }]);
});

test('results may be documents, and thoughts of an earlier answer go back as content', () => {
  const document = { type: 'document', document: { id: '1', data: { text: 'sun' } } };
  const { body } = encodeChatBody(
    callOf({
      messages: [
        {
          role: 'assistant',
          content: '4',
          content_blocks: [
            { type: 'thinking', thinking: 'Hm.', signature: 's' },
            { type: 'text', text: '4' },
            { type: 'redacted_thinking', data: 'x' },
          ],
        },
        { role: 'tool', tool_call_id: 'w1', content: [{ type: 'text', text: 'It is' }, document] },
      ],
    }),
  );
  expect(body['messages']).toEqual([
    {
      role: 'assistant',
      content: [
        { type: 'thinking', thinking: 'Hm.' },
        { type: 'text', text: '4' },
      ],
    },
    { role: 'tool', tool_call_id: 'w1', content: [{ type: 'text', text: 'It is' }, document] },
  ]);
});

test('the deprecated functions are tools, and their answers function calls', () => {
  const call = callOf({
    functions: [{ name: 'weather' }],
    function_call: { name: 'weather' },
    messages: [
      { role: 'assistant', content: null, function_call: { name: 'weather', arguments: '' } },
      { role: 'function', name: 'weather', content: 'sun' },
    ],
  });
  expect(encodeChatBody(call)).toMatchObject({
    body: {
      tools: [{ type: 'function', function: { name: 'weather', parameters: { type: 'object', properties: {} } } }],
      tool_choice: 'REQUIRED',
      messages: [
        { role: 'assistant', tool_calls: [{ id: 'call_function_0', function: { name: 'weather', arguments: '{}' } }] },
        { role: 'tool', tool_call_id: 'call_function_0', content: 'sun' },
      ],
    },
    dropped: [],
  });
  const answer = { id: 'c', message: { tool_calls: [toolCall] }, finish_reason: 'TOOL_CALL' };
  expect(decodeChat(answer, call)).toMatchObject({
    choices: [{ message: { function_call: { name: 'weather' } }, finish_reason: 'function_call' }],
  });
});

test('strictness is a switch for all tools of a request, or it is reported as dropped', () => {
  const strict = { strict: true, parameters: { type: 'object' } };
  expect(encodeChatBody(callOf({ tools: [tool('a', strict)] }))).toMatchObject({
    body: { strict_tools: true },
    dropped: [],
  });
  const some = encodeChatBody(callOf({ tools: [tool('a', strict), tool('b')] }));
  expect(some.body).not.toHaveProperty('strict_tools');
  expect(some.dropped).toEqual(['tools[0].function.strict']);
});

test('thinking has a budget when asked for with strict compliance off; no effort switches it off', () => {
  const thinking = { type: 'enabled', budget_tokens: 500 };
  expect(encodeChatBody(callOf({ thinking }, { strict: false })).body['thinking']).toEqual({
    type: 'enabled',
    token_budget: 500,
  });
  const none = { reasoning_effort: 'none' };
  expect(encodeChatBody(callOf(none, { model: 'command-a-reasoning-08-2025' })).body['thinking']).toEqual({
    type: 'disabled',
  });
  expect(encodeChatBody(callOf(none))).toMatchObject({
    dropped: [],
    body: expect.not.objectContaining({ thinking: expect.anything() }),
  });
});

test('a tool chosen by a name that no tool has is refused, and so are tokens as input', () => {
  const choice = { tools: [tool('a')], tool_choice: tool('b') };
  expect(() => encodeChatBody(callOf(choice))).toThrow(
    expect.objectContaining({ code: 'invalid_value', param: 'tool_choice' }),
  );
  expect(() => encodeEmbedBody(callOf({ input: [1, 2] }))).toThrow(
    expect.objectContaining({ code: 'unsupported_parameter', param: 'input' }),
  );
});

test('the list of models stands beside the second version, wherever that is', () => {
  const pathAt = (baseUrl: string) =>
    cohere.operations.models?.encode(callOf({}), {
      baseUrl: new URL(baseUrl),
      apiKey: new Secret('k'),
      settings: {},
      secrets: {},
    }).path;
  expect(pathAt('https://api.cohere.com/v2')).toBe('/v1/models?page_size=1000');
  expect(pathAt('https://proxy.example/cohere/v2/')).toBe('/cohere/v1/models?page_size=1000');
});
