import { expect, test } from 'vitest';
import { translationCall } from '#test/translation-call.ts';
import type { Call } from '../provider.ts';
import { findProvider, providerIds } from '../registry.ts';

const asksInWords = (id: string, body: object, call: Partial<Call> = {}): boolean =>
  findProvider(id)?.operations.chat?.asksForJsonInWords?.(translationCall(body, call)) === true;
const response_format = { type: 'json_object' };
const schema = { type: 'object', properties: {} };

test('a JSON object is asked for in words only of models that have no mode for it', () => {
  const model = 'gemini-2.5-pro';
  expect(providerIds.filter((id) => asksInWords(id, { model, response_format }))).toEqual(['anthropic', 'bedrock']);
  expect(asksInWords('vertex', { model: 'claude-sonnet-4-5', response_format })).toBe(true);
  expect(asksInWords('vertex', { model: 'meta/llama-4-maverick', response_format })).toBe(false);
});

test.each([
  [{ type: 'json_object' }, true],
  [{ type: 'json_schema', json_schema: { name: 'n' } }, true],
  [{ type: 'json_schema', json_schema: { name: 'n', schema } }, false],
  [{ type: 'text' }, false],
  [null, false],
  [undefined, false],
])('a response_format of %j: %j', (format, expected) => {
  expect(asksInWords('anthropic', { model: 'claude-sonnet-4-5', response_format: format })).toBe(expected);
});

test('a format that a config sets counts as one of the caller’s', () => {
  const model = 'claude-sonnet-4-5';
  const edits = { response_format: JSON.stringify(response_format) };
  expect(asksInWords('anthropic', { model }, { edits })).toBe(true);
  expect(asksInWords('anthropic', { model, response_format }, { edits: { response_format: undefined } })).toBe(false);
});
