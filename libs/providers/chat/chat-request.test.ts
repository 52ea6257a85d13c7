import { expect, test } from 'vitest';
import { readChatRequest } from './chat-request.ts';
import { assertPlainAnswer, droppedParams } from '../turns/turn-request.ts';

const messages = [{ role: 'user', content: 'hi' }];
const read = (more: object = {}) => readChatRequest({ model: 'm', messages, ...more }, 'm');

test('null is as good as absent, and one stop text is a list', () => {
  expect(read({ temperature: null, stop: 'a', max_tokens: 5, seed: null })).toMatchObject({
    temperature: undefined,
    stop: ['a'],
    maxTokens: 5,
    seed: undefined,
    toolChoice: undefined,
  });
  expect(read({ max_tokens: 5, max_completion_tokens: 6, stop: null })).toMatchObject({ maxTokens: 6, stop: [] });
});

test('tools keep their whole schema; the deprecated functions become tools', () => {
  const parameters = { $defs: { a: {} }, anyOf: [{ $ref: '#/$defs/a' }] };
  expect(
    read({
      tools: [{ type: 'function', function: { name: 'f', parameters, strict: true } }],
      tool_choice: { type: 'function', function: { name: 'f' } },
    }),
  ).toMatchObject({
    tools: [{ name: 'f', parameters, strict: true }],
    toolChoice: { name: 'f' },
    usesFunctions: false,
  });
  expect(read({ functions: [{ name: 'g' }], function_call: { name: 'g' } })).toMatchObject({
    tools: [{ name: 'g', parameters: undefined, param: 'functions[0]' }],
    toolChoice: { name: 'g' },
    usesFunctions: true,
  });
});

test('what was not taken is named in its order, unless it asks for nothing', () => {
  const body = {
    model: 'm',
    messages,
    stream: true,
    n: 1,
    seed: 1,
    logit_bias: {},
    presence_penalty: 0,
    frequency_penalty: 0.5,
    store: false,
    metadata: { a: 'b' },
    user: null,
    future: 0,
    temperature: 1,
  };
  expect(droppedParams(body, new Set(['temperature']))).toEqual(['seed', 'frequency_penalty', 'metadata', 'future']);
});

test.each([
  [{ n: 2 }, 'n'],
  [{ logprobs: true }, 'logprobs'],
  [{ modalities: ['text', 'audio'] }, 'modalities'],
  [{ audio: { voice: 'alloy' } }, 'audio'],
])('an answer of another shape is refused: %j', (more, param) => {
  expect(() => assertPlainAnswer(read(more), 'X')).toThrow(
    expect.objectContaining({ kind: 'invalid_request', code: 'unsupported_parameter', param }),
  );
});

test('a provider that can is asked', () => {
  expect(() => assertPlainAnswer(read({ n: 2, logprobs: true }), 'X', { n: true, logprobs: true })).not.toThrow();
  expect(() => assertPlainAnswer(read({ n: 1, modalities: ['text'], logprobs: false }), 'X')).not.toThrow();
});
