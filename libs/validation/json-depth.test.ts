import fc from 'fast-check';
import { expect, test } from 'vitest';
import { nestsDeeper } from './json-depth.ts';

const nests = (text: string, depthMax: number) => nestsDeeper(Buffer.from(text), 0, Buffer.byteLength(text), depthMax);

function depthOf(value: unknown): number {
  if (typeof value !== 'object' || value === null) return 0;
  return 1 + Math.max(0, ...Object.values(value).map(depthOf));
}

test('the depth is that of the parsed value, whatever its strings hold', () => {
  const strings = fc.oneof(fc.string(), fc.constantFrom('[[[{', '"[', '\\"[', '\\\\', ']}'));
  fc.assert(
    fc.property(fc.jsonValue({ maxDepth: 5, stringUnit: 'binary' }), strings, fc.nat(7), (value, text, depthMax) => {
      const whole = [value, text, { [text]: value }];
      expect(nests(JSON.stringify(whole), depthMax)).toBe(depthOf(whole) > depthMax);
    }),
  );
});

test('a million brackets are found without recursion', () => {
  expect(nests('['.repeat(1_000_000), 64)).toBe(true);
  expect(nests('[]'.repeat(500_000), 64)).toBe(false);
});

test('text that is not JSON does no harm', () => {
  expect(nests('"\\', 1)).toBe(false);
  expect(nests(']]]][[', 1)).toBe(false);
});
