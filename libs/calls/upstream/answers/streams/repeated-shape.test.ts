import fc from 'fast-check';
import { expect, test } from 'vitest';
import { RepeatedShape } from './repeated-shape.ts';

const toChunk = (text: string, padding: string | null = null): string =>
  JSON.stringify({
    id: 'chatcmpl-1',
    choices: [{ index: 0, delta: { content: text }, logprobs: null, finish_reason: null }],
    usage: null,
    ...(padding === null ? {} : { obfuscation: padding }),
  });

/** What parsing finds; null if the chunk is not JSON. */
function textIn(chunk: string): string | null {
  try {
    return (JSON.parse(chunk) as { choices: [{ delta: { content: string } }] }).choices[0].delta.content;
  } catch {
    return null;
  }
}

function learnShape(chunk: string, text: string): RepeatedShape {
  const shape = new RepeatedShape();
  shape.learn(chunk, text);
  return shape;
}

test('a chunk that differs only in its text is recognised', () => {
  expect(learnShape(toChunk('Hello'), 'Hello').findText(toChunk(' world'))).toBe(' world');
});

test('the padding of a chunk can differ, too', () => {
  expect(learnShape(toChunk('Hello', 'x4'), 'Hello').findText(toChunk(' world', 'hG8s2'))).toBe(' world');
});

test.each([
  ['another member', toChunk('a').replace('"id":"chatcmpl-1"', '"id":"chatcmpl-2"')],
  ['a finish reason', toChunk('a').replace('"finish_reason":null', '"finish_reason":"stop"')],
  ['a usage', toChunk('a').replace('"usage":null', '"usage":{"total_tokens":3}')],
  ['an escaped character', toChunk('a "quoted" word')],
  ['a line break that JSON does not allow', toChunk('ab').replace('"ab"', '"a\nb"')],
  ['a member within the text', toChunk('a').replace('"a"', '"a","name":"b"')],
  ['no end', toChunk('a').slice(0, -3)],
  ['no text', ''],
])('a chunk with %s is left to the parser', (_name, chunk) => {
  const shape = learnShape(toChunk('Hello'), 'Hello');
  expect(shape.findText(chunk)).toBeNull();
});

test.each([
  ['occurs twice', '{"choices":[{"delta":{"content":"id"}}],"type":"id"}', 'id'],
  ['is not the member that was read', '{"choices":[{"delta":{"\\u0063ontent":"Hello"}}]}', 'Hello'],
  ['has an escape', toChunk('"'), '"'],
  ['is empty', toChunk(''), ''],
])('a chunk whose text %s is not remembered', (_name, chunk, text) => {
  expect(learnShape(chunk, text).findText(chunk)).toBeNull();
});

test('what is recognised is exactly what parsing would have found', () => {
  const anyText = fc.string({ unit: 'binary', maxLength: 8 });
  const padding = fc.option(fc.string({ maxLength: 6 }));
  fc.assert(
    fc.property(anyText, anyText, padding, padding, (first, second, padded, paddedNext) => {
      const shape = learnShape(toChunk(first, padded), first);
      const chunk = toChunk(second, paddedNext);
      const found = shape.findText(chunk);
      expect([second, null]).toContain(found);
      expect([textIn(chunk), null]).toContain(found);
    }),
    { numRuns: 5_000 },
  );
});

test('a cut or changed chunk is recognised only if it is still JSON with that text', () => {
  const chunk = toChunk('Hello', 'abcd');
  const shape = learnShape(chunk, 'Hello');
  fc.assert(
    fc.property(fc.nat(chunk.length), fc.nat(3), fc.string({ unit: 'binary', maxLength: 3 }), (at, cut, more) => {
      const changed = chunk.slice(0, at) + more + chunk.slice(at + cut);
      expect([textIn(changed), null]).toContain(shape.findText(changed));
    }),
    { numRuns: 5_000 },
  );
});
