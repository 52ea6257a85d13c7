import { expect, test } from 'vitest';
import { translationCall } from '#test/translation-call.ts';
import { createChunkWriter, toCompletion } from './chat-chunks.ts';

const head = { id: 'x', model: 'm', created: 7 };
const withoutUsage = translationCall({}, { includeUsage: false });
const withFunctions = translationCall({ functions: [{ name: 'f' }] }, { includeUsage: false });
const parse = (payloads: string[]) => payloads.map((payload) => JSON.parse(payload) as Record<string, unknown>);
const deltas = (payloads: string[]) =>
  parse(payloads).map(
    ({ choices }) => (choices as { index: number; delta: object; finish_reason: string | null }[])[0],
  );

test('the first chunk carries the role, whatever it is, and only once', () => {
  const choice = createChunkWriter(head, withoutUsage).choice();
  const chunks = deltas([...choice.text('a'), ...choice.text(''), ...choice.text('b'), ...choice.finish('stop')]);
  expect(chunks).toEqual([
    { index: 0, delta: { role: 'assistant', content: '', refusal: null }, logprobs: null, finish_reason: null },
    { index: 0, delta: { content: 'a' }, logprobs: null, finish_reason: null },
    { index: 0, delta: { content: 'b' }, logprobs: null, finish_reason: null },
    { index: 0, delta: {}, logprobs: null, finish_reason: 'stop' },
  ]);
});

test('if usage was asked for, every chunk has it: null, and the counts in the last', () => {
  const writer = createChunkWriter(head, translationCall({}));
  const chunks = parse([
    ...writer.choice().text('a'),
    ...writer.choice().finish('stop'),
    ...writer.usage({ promptTokens: 1, completionTokens: 2 }),
  ]);
  const counts = { prompt_tokens: 1, completion_tokens: 2, total_tokens: 3 };
  expect(chunks.map(({ usage }) => usage)).toEqual([null, null, null, counts]);
});

test('tool calls are numbered over the stream, by whatever key the provider has', () => {
  const choice = createChunkWriter(head, withoutUsage).choice();
  const chunks = deltas([
    ...choice.toolCall(4, { id: 'a', name: 'f' }),
    ...choice.toolCall('other', { id: 'b', name: 'g', arguments: '{}' }),
    ...choice.toolArguments(4, '{"x":1}'),
    ...choice.toolArguments(4, ''),
    ...choice.toolArguments(9, 'lost'),
    ...choice.finish('tool_calls'),
  ]).slice(1);
  expect(chunks.map((chunk) => chunk?.delta)).toEqual([
    { tool_calls: [{ index: 0, id: 'a', type: 'function', function: { name: 'f', arguments: '' } }] },
    { tool_calls: [{ index: 1, id: 'b', type: 'function', function: { name: 'g', arguments: '{}' } }] },
    { tool_calls: [{ index: 0, function: { arguments: '{"x":1}' } }] },
    {},
  ]);
  expect(choice.hasToolCalls()).toBe(true);
});

test('choices have roles of their own, and all chunks one head', () => {
  const writer = createChunkWriter(head, withoutUsage);
  const payloads = [
    ...writer.choice(1).text('a'),
    ...writer.choice(0).text('b'),
    ...writer.usage({ promptTokens: 2, completionTokens: 3, cachedTokens: 1, reasoningTokens: 1 }),
  ];
  expect(deltas(payloads).map((choice) => choice?.index)).toEqual([1, 1, 0, 0, undefined]);
  expect(new Set(parse(payloads).map(({ id, created, model }) => JSON.stringify([id, created, model])))).toEqual(
    new Set(['["x",7,"m"]']),
  );
  expect(parse(payloads).at(-1)).toMatchObject({
    choices: [],
    usage: {
      prompt_tokens: 2,
      completion_tokens: 3,
      total_tokens: 5,
      prompt_tokens_details: { cached_tokens: 1 },
      completion_tokens_details: { reasoning_tokens: 1 },
    },
  });
});

test('a request with functions hears of the first call, in the deprecated form', () => {
  const choice = createChunkWriter(head, withFunctions).choice();
  const chunks = deltas([
    ...choice.toolCall(0, { id: 'a', name: 'f' }),
    ...choice.toolArguments(0, '{}'),
    ...choice.toolCall(1, { id: 'b', name: 'g' }),
    ...choice.toolArguments(1, '{}'),
    ...choice.finish('tool_calls'),
  ]).slice(1);
  expect(chunks.map((chunk) => chunk?.delta)).toEqual([
    { function_call: { name: 'f', arguments: '' } },
    { function_call: { arguments: '{}' } },
    {},
  ]);
  expect(chunks.at(-1)?.finish_reason).toBe('function_call');
  const toolCalls = [
    { id: 'a', name: 'f', arguments: '{}' },
    { id: 'b', name: 'g', arguments: '{}' },
  ];
  expect(toCompletion(head, [{ blocks: [], toolCalls, finishReason: 'tool_calls' }], null, withFunctions)).toEqual({
    id: 'x',
    object: 'chat.completion',
    created: 7,
    model: 'm',
    choices: [
      {
        index: 0,
        message: { role: 'assistant', content: null, refusal: null, function_call: { name: 'f', arguments: '{}' } },
        logprobs: null,
        finish_reason: 'function_call',
      },
    ],
  });
});
