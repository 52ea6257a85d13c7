import fc from 'fast-check';
import { expect, test } from 'vitest';
import { checkJsonShape, jsonErrorOffset } from './json-scan.ts';

const depthOf = (value: unknown): number =>
  typeof value === 'object' && value !== null ? 1 + Math.max(0, ...Object.values(value).map(depthOf)) : 0;
const membersOf = (value: unknown): number => {
  if (typeof value !== 'object' || value === null) return 0;
  const own = Array.isArray(value) ? 0 : Object.keys(value).length;
  return Object.values(value).reduce<number>((sum, member) => sum + membersOf(member), own);
};
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

test('depth and members are those of the parsed value, whatever its strings hold', () => {
  fc.assert(
    fc.property(jsonText, (text) => {
      const [bytes, value] = [Buffer.from(text), JSON.parse(text) as unknown];
      const [depth, members] = [depthOf(value), membersOf(value)];
      const look = (depthMax: number, membersMax: number) => checkJsonShape(bytes, { depthMax, membersMax });
      expect(look(depth, members)).toBe(null);
      expect(look(depth - 1, members)).toBe(depth === 0 ? null : 'depth');
      expect(look(depth, members - 1)).toBe(members === 0 ? null : 'members');
    }),
  );
});

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

test('a megabyte of brackets, quotes or backslashes is looked over without recursion', () => {
  const limits = { depthMax: 64, membersMax: 100 };
  expect(checkJsonShape(Buffer.alloc(1_000_000, '['), limits)).toBe('depth');
  expect(checkJsonShape(Buffer.alloc(1_000_000, '"'), limits)).toBe(null);
  expect(checkJsonShape(Buffer.alloc(1_000_000, '"\\'), limits)).toBe(null);
  expect(checkJsonShape(Buffer.alloc(1_000_000, '{"a":'), limits)).toBe('depth');
});
