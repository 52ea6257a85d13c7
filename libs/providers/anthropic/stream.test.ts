import { createParser } from 'eventsource-parser';
import { describe, expect, test } from 'vitest';
import { payloadNames, payloadSets, readPayloadLines } from '#test/fixtures/provider-payloads.ts';
import { decodeAll, translationCall } from '#test/translation-call.ts';
import { decodeAnthropicError } from './errors.ts';
import { openClaudeStream } from './stream.ts';
import { decodeClaudeMessage, readClaudeDetails } from './decode.ts';

const body = { model: 'claude-sonnet-4-5', messages: [{ role: 'user', content: 'hi' }] };
const decode = (events: readonly object[], call = translationCall(body)) =>
  decodeAll(
    openClaudeStream(call),
    events.map((event) => ({ data: JSON.stringify(event) })),
  );
type Chunk = { choices: { delta: Record<string, unknown>; finish_reason: string | null }[] };
const deltasOf = (chunks: unknown[]) => (chunks as Chunk[]).flatMap(({ choices }) => choices.map(({ delta }) => delta));

const start = {
  type: 'message_start',
  message: { id: 'msg_1', model: 'claude-x', usage: { input_tokens: 2, output_tokens: 1 } },
};
const stop = (reason: string | null) => ({
  type: 'message_delta',
  delta: { stop_reason: reason },
  usage: { output_tokens: 5 },
});

describe('a stream', () => {
  test('has finish reason and usage in it as soon as Claude tells why it stopped, and once', () => {
    const { chunks, done } = decode([
      start,
      stop(null),
      stop('max_tokens'),
      stop('end_turn'),
      { type: 'message_stop' },
    ]);
    expect((chunks as Chunk[]).map(({ choices }) => choices[0]?.finish_reason)).toEqual([null, 'length', undefined]);
    expect(chunks.at(-1)).toMatchObject({
      id: 'msg_1',
      model: 'claude-x',
      choices: [],
      usage: { prompt_tokens: 2, completion_tokens: 5, total_tokens: 7 },
    });
    expect(done).toBe(true);
  });

  test('that holds its content at the start, or a call’s input, loses neither', () => {
    const held = {
      ...start.message,
      content: [
        { type: 'text', text: 'A' },
        { type: 'tool_use', id: 't', name: 'f', input: { a: 1 } },
      ],
    };
    const block = {
      type: 'content_block_start',
      index: 2,
      content_block: { type: 'tool_use', id: 'u', name: 'g', input: { b: 2 } },
    };
    const { chunks } = decode([
      { ...start, message: held },
      block,
      { type: 'content_block_stop', index: 2 },
      stop('tool_use'),
    ]);
    expect(deltasOf(chunks)).toEqual([
      { role: 'assistant', content: '', refusal: null },
      { content: 'A' },
      { tool_calls: [{ index: 0, id: 't', type: 'function', function: { name: 'f', arguments: '' } }] },
      { tool_calls: [{ index: 0, function: { arguments: '{"a":1}' } }] },
      { tool_calls: [{ index: 1, id: 'u', type: 'function', function: { name: 'g', arguments: '' } }] },
      { tool_calls: [{ index: 1, function: { arguments: '{"b":2}' } }] },
      {},
    ]);
  });

  test('for a request with functions says function_call', () => {
    const call = translationCall({ ...body, functions: [{ name: 'f' }] });
    const block = {
      type: 'content_block_start',
      index: 0,
      content_block: { type: 'tool_use', id: 't', name: 'f', input: {} },
    };
    const { chunks } = decode([start, block, { type: 'content_block_stop', index: 0 }, stop('tool_use')], call);
    expect(deltasOf(chunks).slice(1, 3)).toEqual([
      { function_call: { name: 'f', arguments: '' } },
      { function_call: { arguments: '{}' } },
    ]);
    expect((chunks as Chunk[])[3]?.choices[0]?.finish_reason).toBe('function_call');
  });

  test('that tells an error ends with it, and its status', () => {
    const { error, done } = decode([
      start,
      { type: 'error', error: { type: 'overloaded_error', message: 'Overloaded' } },
    ]);
    expect([done, error]).toEqual([
      false,
      {
        error: { message: 'Overloaded', type: 'overloaded_error', param: null, code: 'overloaded_error' },
        status: 529,
      },
    ]);
  });

  test('with kinds of events and deltas that nobody knows yet goes on', () => {
    const odd = [
      { type: 'later' },
      { type: 'content_block_start', index: 0, content_block: { type: 'server_tool_use', id: 's' } },
      { type: 'content_block_delta', index: 0, delta: { type: 'citations_delta' } },
      { type: 'content_block_stop', index: 0 },
    ];
    expect(decode([start, ...odd]).chunks).toHaveLength(1);
  });
});

describe('a whole answer', () => {
  const message = (more: object) => ({ id: 'msg_1', model: 'claude-x', content: [], stop_reason: 'end_turn', ...more });

  test('counts what was read from the cache and what was written into it', () => {
    const usage = {
      input_tokens: 1,
      cache_creation_input_tokens: 20,
      cache_read_input_tokens: 300,
      output_tokens: 4_000,
    };
    const decoded = decodeClaudeMessage(message({ usage }), translationCall(body, { strict: false }));
    expect(decoded).toMatchObject({
      usage: {
        prompt_tokens: 321,
        completion_tokens: 4_000,
        total_tokens: 4_321,
        prompt_tokens_details: { cached_tokens: 300 },
        cache_creation_input_tokens: 20,
      },
    });
    expect(decodeClaudeMessage(message({ usage }), translationCall(body))).not.toHaveProperty(
      'usage.cache_creation_input_tokens',
    );
  });

  test.each([
    ['end_turn', 'stop'],
    ['stop_sequence', 'stop'],
    ['pause_turn', 'stop'],
    ['max_tokens', 'length'],
    ['model_context_window_exceeded', 'length'],
    ['tool_use', 'tool_calls'],
    ['refusal', 'content_filter'],
    ['something_new', 'stop'],
    ['constructor', 'stop'],
    [null, 'stop'],
  ])('that stopped by %s ends as %s', (stop_reason, finish_reason) => {
    expect(decodeClaudeMessage(message({ stop_reason }), translationCall(body))).toMatchObject({
      choices: [{ finish_reason }],
    });
  });

  test('that is none is left for the core to refuse', () => {
    expect(decodeClaudeMessage({ type: 'message' }, translationCall(body))).toEqual({ type: 'message' });
  });
});

test.each([
  ['batch', { serviceTier: 'batch' }],
  ['priority', { serviceTier: 'priority' }],
  ['standard', null],
  [null, null],
  ['x'.repeat(51), null],
])('the class of service %s is part of the usage, if it has a price of its own', (service_tier, details) => {
  expect(readClaudeDetails({ input_tokens: 1, output_tokens: 1, service_tier })).toEqual(details);
  const decoder = openClaudeStream(translationCall(body));
  const message = { ...start.message, usage: { ...start.message.usage, service_tier } };
  for (const event of [{ ...start, message }, stop('end_turn')]) decoder.push({ data: JSON.stringify(event) });
  expect(decoder.details?.()).toEqual(details);
});

test('errors keep their status and say what is known', () => {
  expect(
    decodeAnthropicError(413, '{"type":"error","error":{"type":"request_too_large","message":"Too big"}}'),
  ).toEqual({
    error: { message: 'Too big', type: 'request_too_large', param: null, code: 'request_too_large' },
    status: 413,
  });
  expect(decodeAnthropicError(503, 'busy')).toEqual({
    error: { message: 'busy', type: 'server_error', param: null, code: null },
  });
});

describe.each(payloadSets)('whole streams (%s)', (set) => {
  const names = payloadNames(set, /^anthropic.*\.chunks\.txt$/);

  /** Returns the output that clients get from a stream that was cut off at a byte. */
  const replay = (bytes: Buffer): { text: string; done: boolean } => {
    const decoder = openClaudeStream(translationCall(body, { strict: false }));
    const decoded: string[] = [];
    let done = false;
    const parser = createParser({
      onEvent: ({ data }) => {
        const pushed = decoder.push({ data });
        decoded.push(...pushed.payloads);
        done ||= pushed.done ?? false;
      },
    });
    parser.feed(new TextDecoder().decode(bytes, { stream: true }));
    return { text: decoded.join('\n').replaceAll(/"created":\d+/g, ''), done };
  };

  test('cut off at any byte are a beginning of the whole, and not done', () => {
    for (const name of names) {
      const bytes = Buffer.from(
        readPayloadLines(name, set)
          .map((line) => `event: x\ndata: ${line}\n\n`)
          .join(''),
      );
      const whole = replay(bytes);
      expect([name, whole.done]).toEqual([name, true]);
      for (let at = 0; at < bytes.length - 1; at += 1) {
        const { text, done } = replay(bytes.subarray(0, at));
        if (done || !whole.text.startsWith(text)) throw new Error(`${name} cut at ${at}: ${text.slice(-200)}`);
      }
    }
    expect(names.length).toBeGreaterThan(3);
  });
});
