import { expect, test } from 'vitest';
import { compareContents, readContent, toText } from './compare-answers.ts';

const chat = (message: object, more: object = {}): object => ({
  id: 'chatcmpl-1',
  created: 1,
  model: 'm',
  choices: [{ index: 0, message: { role: 'assistant', ...message }, finish_reason: 'stop' }],
  usage: { total_tokens: 9 },
  ...more,
});
const compare = (one: object, other: object, endpoint = '/v1/chat/completions') =>
  compareContents(readContent(endpoint, one), readContent(endpoint, other));

test('IDs, times, models, usage and the layout of JSON do not make answers different', () => {
  const same = compare(
    chat({ content: '{"a": 1, "b": [2]}' }),
    chat({ content: '{"b":[2],"a":1}' }, { id: 'chatcmpl-2', created: 2, model: 'n', usage: null }),
  );
  expect(same).toEqual({ isEqual: true, similarity: 1 });
  const call = (id: string, given: string) =>
    chat({ content: null, tool_calls: [{ id, type: 'function', function: { name: 'f', arguments: given } }] });
  expect(compare(call('call_1', '{"x":1}'), call('call_2', '{ "x": 1 }')).isEqual).toBe(true);
  expect(compare(call('call_1', '{"x":1}'), call('call_1', '{"x":2}')).isEqual).toBe(false);
  expect(compare(chat({ content: 'yes' }), chat({ content: null, refusal: 'no' })).isEqual).toBe(false);
});

test('the similarity is the share of common words', () => {
  const similarity = (one: string, other: string) =>
    compare(chat({ content: one }), chat({ content: other })).similarity;
  expect(similarity('a b c d', 'a b c d e f')).toBe(0.8);
  expect(similarity('Yes', 'yes')).toBe(1);
  expect(similarity('one two', 'three')).toBe(0);
  expect(similarity('', 'x')).toBe(0);
});

test('answers of other endpoints are compared by their content, too', () => {
  const output = (text: string, id: string) => ({
    id,
    output: [
      { type: 'reasoning', id: `rs_${id}`, summary: [] },
      { type: 'message', id: `msg_${id}`, content: [{ type: 'output_text', text, annotations: [] }] },
    ],
  });
  expect(compare(output('same', '1'), output('same', '2'), '/v1/responses').isEqual).toBe(true);
  expect(compare(output('same', '1'), output('other', '1'), '/v1/responses').isEqual).toBe(false);
  const text = (content: string) => ({ id: content, choices: [{ text: content }] });
  expect(compare(text('x'), text('x'), '/v1/completions').isEqual).toBe(true);
  const vector = (model: string, embedding: number[]) => ({ model, data: [{ index: 0, embedding }] });
  expect(compare(vector('a', [1]), vector('b', [1]), '/v1/embeddings').isEqual).toBe(true);
  expect(compare(vector('a', [1]), vector('b', [2]), '/v1/embeddings').isEqual).toBe(false);
});

test('an answer is shown to a judge as its text, cut at a limit', () => {
  expect(toText(readContent('/v1/chat/completions', chat({ content: 'a long answer' })), 6)).toBe('a long');
});
