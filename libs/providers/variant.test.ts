import { describe, expect, test } from 'vitest';
import { chatDialect } from './chat/index.ts';
import { variantEdits, openAmendedStream, type Variant } from './variant.ts';
import { decodeOpenAiError } from './openai-error.ts';
import type { Call } from './provider.ts';
import { findProvider } from './registry.ts';

const callOf = (text: string, options: Partial<Call> = {}): Call => ({
  operation: 'chat',
  dialect: chatDialect,
  model: 'm',
  body: Buffer.from(text),
  edits: {},
  json: () => {
    throw new Error('a near variant parses no request');
  },
  stream: false,
  includeUsage: false,
  strict: true,
  resources: new Map(),
  headers: {},
  ...options,
});
const upstream = { baseUrl: new URL('https://p.example/v1'), apiKey: null, settings: {}, secrets: {} };
const sentBy = (id: string, call: Call): Uint8Array =>
  findProvider(id)?.operations.chat?.encode(call, upstream).body as Uint8Array;

describe('a request of a near variant', () => {
  const plain =
    '{"model":"m", "messages":[{"role":"user","content":"a developer, \\"developer\\""}],"n":12345678901234567890}';

  test.each(['openai', 'deepseek', 'mistral', 'together', 'vllm', 'openai-compatible'])(
    'leaves as the very same bytes where nothing is to be changed (%s)',
    (id) => {
      const call = callOf(plain);
      expect(sentBy(id, call)).toBe(call.body);
    },
  );

  test('has its developer messages renamed in the bytes, and nothing else', () => {
    const text =
      '{"seed": 12345678901234567890,"messages":[ {"role" : "developer","content":"\\"role\\":\\"developer\\""},{"role":"user","content":"developer"}],"metadata":{"role":"developer"}}';
    const wanted = text.replace('"role" : "developer"', '"role" : "system"');
    expect(Buffer.from(sentBy('groq', callOf(text))).toString()).toBe(wanted);
    expect(Buffer.from(sentBy('openai', callOf(text))).toString()).toBe(text);
  });

  test('follows what the target’s edits say, not what they replaced', () => {
    const variant: Variant = { renames: { seed: 'random_seed' }, values: { tool_choice: { required: 'any' } } };
    const text = '{"seed":1,"tool_choice":"required","messages":[]}';
    expect(variantEdits(variant, callOf(text))).toEqual({ seed: undefined, random_seed: '1', tool_choice: '"any"' });
    const edits = { seed: undefined, tool_choice: '"auto"', messages: '[{"role":"developer","content":"x"}]' };
    expect(variantEdits(variant, callOf(text, { edits }))).toEqual({
      messages: '[{"role":"system","content":"x"}]',
    });
    expect(variantEdits(variant, callOf('{"seed":null,"messages":[]}'))).toEqual({ seed: undefined });
    expect(variantEdits(variant, callOf('{"messages":[{"role":"user","content":"required"}]}'))).toBeUndefined();
  });

  test('of two names for one thing sends the one that the provider knows, with the newer’s value', () => {
    const call = callOf('{"max_tokens":5,"max_completion_tokens":7,"messages":[]}');
    expect(Buffer.from(sentBy('deepseek', call)).toString()).toBe('{"max_tokens":7,"messages":[]}');
  });

  test.each<[string, string, Partial<Call>, string]>([
    ['of its body', '{"max_tokens":60000,"max_completion_tokens":1}', {}, '{"max_completion_tokens":1}'],
    ['one of a config', '{"max_completion_tokens":1}', { edits: { max_tokens: '5' } }, '{"max_completion_tokens":1}'],
    [
      'one of them null',
      '{"max_tokens":5,"max_completion_tokens":null}',
      {},
      '{"max_tokens":5,"max_completion_tokens":null}',
    ],
    [
      'of a text completion',
      '{"max_tokens":5,"max_completion_tokens":7}',
      { operation: 'completions' },
      '{"max_tokens":5,"max_completion_tokens":7}',
    ],
  ])('with two bounds (%s) has only the newer one sent', (_where, text, options, sent) => {
    expect(Buffer.from(sentBy('openai', callOf(text, options))).toString()).toBe(sent);
  });
});

describe('a stream of a near variant', () => {
  const play = (variant: Variant, ...events: object[]): unknown[] => {
    const decoder = openAmendedStream(variant, callOf('{}'), decodeOpenAiError);
    return events
      .flatMap((event) => decoder.push({ data: JSON.stringify(event) }).payloads)
      .map((text) => JSON.parse(text) as unknown);
  };
  const chunk = (index: number, delta: object, more: object = {}, finish: string | null = null) => ({
    id: 'c',
    choices: [{ index, delta, finish_reason: finish }],
    ...more,
  });
  const usage = { usage: { prompt_tokens: 1, completion_tokens: 2 } };

  test('loses no text of one choice when another has ended and every chunk has usage', () => {
    const events = [
      chunk(0, { content: 'a' }, usage, 'stop'),
      chunk(1, { content: 'b' }, usage),
      chunk(1, { content: '' }, usage, 'stop'),
    ];
    expect(play({ usageBesideChoices: true }, ...events)).toEqual([
      chunk(0, { content: 'a' }, {}, 'stop'),
      { id: 'c', choices: [], ...usage },
      chunk(1, { content: 'b' }),
      chunk(1, { content: '' }, {}, 'stop'),
      { id: 'c', choices: [], ...usage },
    ]);
  });

  test('passes chunks as their very text, spaces included, unless a word of the variant is in them', () => {
    const decoder = openAmendedStream({ finishReasons: { eos: 'stop' } }, callOf('{}'), decodeOpenAiError);
    const text = '{"choices": [ {"delta":{"content":"eos"},"finish_reason":null, "big":12345678901234567890} ] }';
    expect(decoder.push({ data: text })).toEqual({ payloads: [text] });
    expect(decoder.push({ data: '{"say":"eos"}' })).toEqual({ payloads: ['{"say":"eos"}'] });
    expect(decoder.push({ data: 'no json "eos"' })).toEqual({ payloads: ['no json "eos"'] });
    expect(decoder.push({ data: '[DONE]' })).toEqual({ payloads: [], done: true });
  });
});
