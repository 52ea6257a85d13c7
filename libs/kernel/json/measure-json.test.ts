import { getHeapStatistics, setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import fc from 'fast-check';
import { beforeAll, expect, test } from 'vitest';
import { endOfString } from './json-scan.ts';
import { measureJson } from './measure-json.ts';

const wide = { depthMax: 1_000, membersMax: 10_000_000 };

const childrenOf = (value: unknown): unknown[] =>
  typeof value === 'object' && value !== null ? Object.values(value) : [];
const depthOf = (value: unknown): number =>
  typeof value === 'object' && value !== null ? 1 + Math.max(0, ...childrenOf(value).map(depthOf)) : 0;
const membersOf = (value: unknown): number =>
  (Array.isArray(value) ? 0 : childrenOf(value).length) +
  childrenOf(value).reduce<number>((sum, child) => sum + membersOf(child), 0);
const valuesOf = (value: unknown): number =>
  1 + childrenOf(value).reduce<number>((sum, child) => sum + valuesOf(child), 0);

test('depth, members and values are those of the parsed value, whatever its strings contain', () => {
  const jsonText = fc
    .tuple(fc.jsonValue({ maxDepth: 6 }), fc.constantFrom(undefined, 2))
    .map(([value, indent]) => JSON.stringify(value, null, indent));
  fc.assert(
    fc.property(jsonText, (text) => {
      const [bytes, value] = [Buffer.from(text), JSON.parse(text) as unknown];
      const [depth, members] = [depthOf(value), membersOf(value)];
      const look = (depthMax: number, membersMax: number) => measureJson(bytes, { depthMax, membersMax }).excess;
      const measure = measureJson(bytes, wide);
      expect(measure).toMatchObject({ excess: null, depth, members });
      expect(measure.values).toBeGreaterThanOrEqual(valuesOf(value));
      expect(look(depth, members)).toBe(null);
      expect(look(depth - 1, members)).toBe(depth === 0 ? null : 'depth');
      expect(look(depth, members - 1)).toBe(members === 0 ? null : 'members');
    }),
  );
});

test('a string ends at its first unescaped quote, however long it is and whatever was escaped before', () => {
  const pieces = fc.array(fc.constantFrom('\\"', '\\\\', '\\n', 'x'.repeat(63), 'x'.repeat(200), '\\"'.repeat(80)));
  fc.assert(
    fc.property(pieces, pieces, (inside, after) => {
      const string = `"${inside.join('')}"`;
      expect(endOfString(Buffer.from(`[${string}${after.join('')}"`), 1)).toBe(string.length);
      expect(endOfString(Buffer.from(`["${inside.join('')}`), 1)).toBe(string.length);
    }),
  );
});

test('a megabyte of brackets, quotes or backslashes is measured without recursion', () => {
  const limits = { depthMax: 64, membersMax: 100 };
  expect(measureJson(Buffer.alloc(1_000_000, '['), limits).excess).toBe('depth');
  expect(measureJson(Buffer.alloc(1_000_000, '"'), limits).excess).toBe(null);
  expect(measureJson(Buffer.alloc(1_000_000, '"\\'), limits).excess).toBe(null);
  expect(measureJson(Buffer.alloc(1_000_000, '{"a":'), limits).excess).toBe('depth');
});

test('a list with too many values is not read to its end', () => {
  const list = Buffer.from(`[${'1,'.repeat(1_000)}1]`);
  expect(measureJson(list, { ...wide, workMax: 100 })).toMatchObject({ excess: 'work', values: 103 });
  expect(measureJson(list, { ...wide, workMax: 1_005 })).toMatchObject({ excess: null, values: 1_002 });
  expect(measureJson(list, { ...wide, workMax: 1_004 }).excess).toBe('work');
});

let collect: () => void;

beforeAll(() => {
  setFlagsFromString('--expose-gc');
  collect = runInNewContext('gc') as () => void;
  setFlagsFromString('--no-expose-gc');
});

const takenBytes = (): number => {
  collect();
  const { used_heap_size, external_memory } = getHeapStatistics();
  return used_heap_size + external_memory;
};

/** The memory that the text and the value of these bytes really take. */
function parseCost(bytes: Buffer): number {
  const before = takenBytes();
  const text = bytes.toString();
  const value = JSON.parse(text) as unknown;
  const after = takenBytes();
  expect([text, value]).toHaveLength(2); // Both were alive until here.
  return after - before;
}

const sizeBytes = 2_097_152;
const listOf = (item: (index: number) => string): Buffer => {
  const items: string[] = [];
  for (let chars = 0, index = 0; chars < sizeBytes; index += 1) {
    const text = item(index);
    items.push(text);
    chars += text.length + 1;
  }
  return Buffer.from(`[${items.join(',')}]`);
};
const digits = (index: number): string => (Math.sin(index + 1) || 0.5).toFixed(9);
const words = 'What is the capital of France, and why? ';
const tool = {
  type: 'function',
  function: {
    name: 'get_weather',
    description: 'Get the weather in a place',
    parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] },
  },
};

/** The estimate as a multiple of the truth: at least 1/1.3, and not far above 1 for ordinary bodies. */
test.each<[string, Buffer, number]>([
  ['empty objects', listOf(() => '{}'), 2],
  ['empty arrays', listOf(() => '[]'), 2],
  ['deep arrays', listOf(() => '['.repeat(60) + ']'.repeat(60)), 2],
  ['small arrays', listOf(() => '[1]'), 2],
  ['small numbers', listOf(() => '1'), 2],
  ['large integers', listOf((index) => (index === 0 ? '"a"' : '9999999999')), 2],
  ['fractions among strings', listOf((index) => (index === 0 ? '"a"' : '1.5')), 2],
  ['short keys, all of one shape', listOf(() => '{"a":1}'), 4],
  ['keys that are all different', listOf((index) => `{"k${index.toString(36)}":0}`), 2],
  ['keys that are all different, with objects', listOf((index) => `{"${index.toString(36)}":{}}`), 2],
  ['keys that are numbers', listOf((index) => `{"${1_000_000 + index}":0}`), 2],
  ['short strings that are all different', listOf((index) => `"${index.toString(36)}"`), 2],
  ['one long string', Buffer.from(JSON.stringify({ a: words.repeat(50_000) })), 1.2],
  ['base64', Buffer.from(JSON.stringify({ url: Buffer.alloc(1_500_000, 'image').toString('base64') })), 1.2],
  ['one wide character in a long text', Buffer.from(JSON.stringify({ a: `${words.repeat(50_000)}\u{1F600}` })), 1.4],
  ['one escape of a wide character in a long text', Buffer.from(`"${words.repeat(50_000)}\\u4e00"`), 1.2],
  [
    'embeddings',
    listOf(
      (index) =>
        `{"index":${index},"embedding":[${Array.from({ length: 500 }, (_, at) => digits(index + at)).join()}]}`,
    ),
    2.5,
  ],
  ['a long chat', listOf((index) => JSON.stringify({ role: 'user', content: `${index} ${words.repeat(4)}` })), 2],
  ['tools', listOf((index) => JSON.stringify({ ...tool, index })), 3.5],
])('the estimate of the memory for parsing is close: %s', (_name, bytes, overMax) => {
  const { textBytes, valueBytes } = measureJson(bytes, wide);
  // Garbage of other tests in the process can be collected meanwhile, so a single measurement can be wrong.
  const costs = Array.from({ length: 3 }, () => parseCost(bytes)).toSorted((a, b) => a - b);
  const ratio = (textBytes + valueBytes) / (costs[1] as number);
  expect(ratio).toBeGreaterThan(1 / 1.3);
  expect(ratio).toBeLessThan(overMax);
});
