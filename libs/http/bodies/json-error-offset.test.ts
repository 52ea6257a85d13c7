import fc from 'fast-check';
import { expect, test } from 'vitest';
import { jsonErrorOffset } from './json-error-offset.ts';

const isJson = (text: string): boolean => {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
};
const jsonText = fc
  .tuple(fc.jsonValue({ maxDepth: 6 }), fc.constantFrom(undefined, 2))
  .map(([value, indent]) => JSON.stringify(value, null, indent));

test('valid JSON has no error offset before its end', () => {
  fc.assert(
    fc.property(jsonText, (text) => {
      expect(jsonErrorOffset(Buffer.from(text))).toBe(Buffer.byteLength(text));
    }),
  );
});

test('damaged JSON is faulted at the damage or after it, and what stands before the fault is not', () => {
  const damage = fc.tuple(
    jsonText,
    fc.nat(),
    fc.constantFrom('', '"', '\\', ',', ':', '{', ']', '}', 'x', '\u0001', '-', '1'),
  );
  fc.assert(
    fc.property(damage, ([text, place, inserted]) => {
      const at = place % (text.length + 1);
      const damaged = text.slice(0, at) + inserted + text.slice(at + 1);
      if (isJson(damaged)) return;
      const bytes = Buffer.from(damaged);
      const offset = jsonErrorOffset(bytes);
      expect(offset).toBeGreaterThanOrEqual(0);
      const before = bytes.subarray(0, offset);
      expect(jsonErrorOffset(before)).toBe(before.length);
    }),
  );
});

test.each([
  ['', 0],
  ['{"a":1,}', 7],
  ['{"a" 1}', 5],
  ['{"a":tru}', 5],
  ['[1 2]', 3],
  ['[1,]', 3],
  ['[01]', 1],
  ['{"a":"\u0001"}', 6],
  ['{"a":"\\x"}', 6],
  ['{"a":1}}', 7],
  ["{'a':1}", 1],
  ['{"ž":nope}', 6],
  ['[NaN]', 1],
  ['{"a":"open', 10],
])('%s is faulted at byte %i', (text, offset) => {
  expect(isJson(text)).toBe(false);
  expect(jsonErrorOffset(Buffer.from(text))).toBe(offset);
});
