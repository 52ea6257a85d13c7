import { describe, expect, test } from 'vitest';
import { decodeAll, translationCall } from '#test/translation-call.ts';
import { decodeConverse, readConverseDetails } from './decode.ts';
import { decodeBedrockError, decodeException } from './errors.ts';
import { openConverseStream } from './stream.ts';

const body = { model: 'amazon.nova-pro-v1:0', messages: [{ role: 'user', content: 'hi' }] };
const decode = (events: readonly (readonly [string, object])[], more: object = {}) =>
  decodeAll(
    openConverseStream(translationCall({ ...body, ...more })),
    events.map(([event, data]) => ({ event, data: JSON.stringify(data) })),
  );
type Chunk = { choices: { delta: object; finish_reason: string | null }[]; usage?: object };
const usage = { inputTokens: 1, cacheReadInputTokens: 20, cacheWriteInputTokens: 300, outputTokens: 4_000 };
const counted = {
  prompt_tokens: 321,
  completion_tokens: 4_000,
  total_tokens: 4_321,
  prompt_tokens_details: { cached_tokens: 20 },
};

describe('a stream', () => {
  test.each([
    ['after', ['messageStop', 'metadata']],
    ['before', ['metadata', 'messageStop']],
  ] as const)('whose usage comes %s its end has it last', (_when, order) => {
    const payloads = { messageStop: { stopReason: 'max_tokens' }, metadata: { usage } };
    const { chunks, done } = decode([['messageStart', {}], ...order.map((name) => [name, payloads[name]] as const)]);
    expect((chunks as Chunk[]).map(({ choices, usage }) => [choices[0]?.finish_reason, usage])).toEqual([
      [null, null],
      ['length', null],
      [undefined, counted],
    ]);
    expect(done).toBe(true);
  });

  test('without a messageStart still has a role, and calls without input have an empty object', () => {
    const { chunks } = decode([
      ['contentBlockStart', { contentBlockIndex: 3, start: { toolUse: { toolUseId: 't', name: 'f' } } }],
      ['contentBlockStop', { contentBlockIndex: 3 }],
    ]);
    expect((chunks as Chunk[]).map(({ choices }) => choices[0]?.delta)).toEqual([
      { role: 'assistant', content: '', refusal: null },
      { tool_calls: [{ index: 0, id: 't', type: 'function', function: { name: 'f', arguments: '' } }] },
      { tool_calls: [{ index: 0, function: { arguments: '{}' } }] },
    ]);
  });

  test('for a request with functions says function_call', () => {
    const { chunks } = decode(
      [
        ['contentBlockStart', { contentBlockIndex: 0, start: { toolUse: { toolUseId: 't', name: 'f' } } }],
        ['contentBlockDelta', { contentBlockIndex: 0, delta: { toolUse: { input: '{}' } } }],
        ['messageStop', { stopReason: 'tool_use' }],
      ],
      { functions: [{ name: 'f' }] },
    );
    expect((chunks as Chunk[]).flatMap(({ choices }) => choices)).toMatchObject([
      {},
      { delta: { function_call: { name: 'f', arguments: '' } } },
      { delta: { function_call: { arguments: '{}' } } },
      { finish_reason: 'function_call' },
    ]);
  });

  test('with events that nobody knows yet goes on', () => {
    expect(
      decode([
        ['initial-response', {}],
        ['later', { x: 1 }],
      ]),
    ).toEqual({ chunks: [], done: false, error: null });
  });
});

test.each([
  ['flex', { cacheWriteTokens: 300, serviceTier: 'flex' }],
  ['priority', { cacheWriteTokens: 300, serviceTier: 'priority' }],
  ['default', { cacheWriteTokens: 300 }],
])('the class of service %s is part of the usage, if it has a price of its own', (type, details) => {
  expect(readConverseDetails({ usage, serviceTier: { type } })).toEqual(details);
  const decoder = openConverseStream(translationCall(body));
  decoder.push({ event: 'metadata', data: JSON.stringify({ usage, serviceTier: { type } }) });
  expect(decoder.details?.()).toEqual(details);
});

test.each([
  ['optimized', 'optimized'],
  ['standard', 'flex'],
])('latency that is %s is the class of service %s', (latency, serviceTier) => {
  const metadata = { usage, serviceTier: { type: 'flex' }, performanceConfig: { latency } };
  expect(readConverseDetails(metadata)).toEqual({ cacheWriteTokens: 300, serviceTier });
  const decoder = openConverseStream(translationCall(body));
  decoder.push({ event: 'metadata', data: JSON.stringify(metadata) });
  expect(decoder.details?.()).toEqual({ cacheWriteTokens: 300, serviceTier });
});

test.each([
  ['throttlingException', 429, 'rate_limit_error'],
  ['modelStreamErrorException', 424, 'server_error'],
  ['serviceUnavailableException', 503, 'server_error'],
  ['internalServerException', 500, 'server_error'],
  ['validationException', 400, 'invalid_request_error'],
  ['modelTimeoutException', 408, 'timeout_error'],
  ['constructorException', 500, 'server_error'],
])('an exception has its status: %s', (name, status, type) => {
  expect(decodeException(name, '{"message":"no"}')).toEqual({
    error: { message: 'no', type, param: null, code: name },
    status,
  });
});

test('an error says what is known of it', () => {
  expect(decodeException('error', '{"message":"oops","code":"Internal"}').error).toMatchObject({ code: 'Internal' });
  expect(decodeException('throttlingException', 'no JSON').error.message).toBe(
    'The provider ended the stream with throttlingException.',
  );
  expect(decodeBedrockError(403, '{"Message":"no"}').error).toMatchObject({ message: 'no', type: 'permission_error' });
  expect(decodeBedrockError(500, '').error.message).toBe('The provider returned status 500.');
});

test.each([
  ['end_turn', 'stop'],
  ['stop_sequence', 'stop'],
  ['max_tokens', 'length'],
  ['tool_use', 'tool_calls'],
  ['guardrail_intervened', 'content_filter'],
  ['content_filtered', 'content_filter'],
  ['toString', 'stop'],
])('a whole answer that stopped by %s ends as %s', (stopReason, finish_reason) => {
  const answer = { output: { message: { content: [{ text: 'a' }, { text: 'b' }] } }, stopReason, usage };
  expect(decodeConverse(answer, translationCall(body))).toMatchObject({
    id: expect.stringMatching(/^chatcmpl-/),
    model: body.model,
    choices: [{ message: { content: 'ab' }, finish_reason }],
    usage: counted,
  });
});
