import fc from 'fast-check';
import { expect, test } from 'vitest';
import { argumentsMemoryMax, ArgumentsWriter } from './arguments-writer.ts';
import type { Json } from '../turns/json-value.ts';

const write = (pieces: readonly Json[], memory = { left: argumentsMemoryMax }): string[] => {
  const writer = new ArgumentsWriter(memory);
  return [...pieces.map((piece) => writer.add(piece)), writer.end()];
};
const read = (pieces: readonly Json[]): unknown => JSON.parse(write(pieces).join(''));
const refusal = expect.objectContaining({ kind: 'provider_failed', code: 'upstream_invalid_response' }) as Error;

test('a string is written piece by piece, and other values as they arrive', () => {
  const texts = write([
    { jsonPath: '$.location', stringValue: 'New ', willContinue: true },
    { jsonPath: '$.location', stringValue: '"Delhi"\n' },
    { jsonPath: '$.days', numberValue: 2.5 },
    { jsonPath: '$.exact', boolValue: false },
    { jsonPath: '$.unit', nullValue: null },
  ]);
  expect(texts).toEqual(['{"location":"New ', '\\"Delhi\\"\\n"', ',"days":2.5', ',"exact":false', ',"unit":null', '}']);
});

test('nested objects and lists open and close as the paths go on', () => {
  const texts = write([
    { jsonPath: '$.a.b[0].c', stringValue: 'x' },
    { jsonPath: '$.a.b[0].d', numberValue: 1 },
    { jsonPath: '$.a.b[1].c', stringValue: 'y' },
    { jsonPath: '$.e', nullValue: 'NULL_VALUE' },
  ]);
  expect(texts).toEqual(['{"a":{"b":[{"c":"x"', ',"d":1', '},{"c":"y"', '}]},"e":null', '}']);
});

test('a call without any piece has no arguments', () => {
  expect(write([])).toEqual(['{}']);
});

test('names in quotes may hold anything, and names of prototypes are names like others', () => {
  const texts = write([
    { jsonPath: "$['a.b\\'\"']", numberValue: 1 },
    { jsonPath: '$["c[0]\\u0041"]', numberValue: 2 },
    { jsonPath: '$.__proto__.constructor', numberValue: 3 },
    { jsonPath: '$.first-name', numberValue: 4 },
  ]);
  expect(texts.join('')).toBe('{"a.b\'\\"":1,"c[0]A":2,"__proto__":{"constructor":3},"first-name":4}');
});

test('a string that begins while another has not ended is written at the end of the call', () => {
  const texts = write([
    { jsonPath: '$.a.x', stringValue: '1', willContinue: true },
    { jsonPath: '$.b', stringValue: 'p', willContinue: true },
    { jsonPath: '$.a.x', stringValue: '2', willContinue: true },
    { jsonPath: '$.b', stringValue: 'q' },
    { jsonPath: '$.a.x', stringValue: '3' },
    { jsonPath: '$.a.y', boolValue: true },
  ]);
  expect(texts).toEqual(['{"a":{"x":"1', '', '2', '', '3"', '', ',"y":true},"b":"pq"}']);
});

test('items of a list that arrive in any order are written in theirs', () => {
  expect(
    read([
      { jsonPath: '$.l[2]', numberValue: 2 },
      { jsonPath: '$.l[0]', numberValue: 0 },
      { jsonPath: '$.l[1]', numberValue: 1 },
    ]),
  ).toEqual({ l: [0, 1, 2] });
});

test('an end without a value ends the string, or says nothing', () => {
  expect(
    read([
      { jsonPath: '$.a', willContinue: true },
      { jsonPath: '$.a', stringValue: 'x', willContinue: true },
      { jsonPath: '$.a' },
      { jsonPath: '$.n', numberValue: 1, willContinue: true },
      { jsonPath: '$.n', willContinue: false },
      { jsonPath: '$.z', boolValue: true },
    ]),
  ).toEqual({ a: 'x', n: 1, z: true });
});

test.each<[string, Json[]]>([
  ['a path that is none', [{ jsonPath: 'location', stringValue: 'x' }]],
  ['no path', [{ stringValue: 'x' }]],
  ['the whole object as a string', [{ jsonPath: '$', stringValue: 'x' }]],
  ['a path of wildcards', [{ jsonPath: '$.a[*]', stringValue: 'x' }]],
  ['a path that does not end', [{ jsonPath: "$['a", stringValue: 'x' }]],
  ['a bad escape in a name', [{ jsonPath: '$["\\x"]', stringValue: 'x' }]],
  ['a path a thousand objects deep', [{ jsonPath: `$${'.a'.repeat(1_000)}`, stringValue: 'x' }]],
  ['a number that is none', [{ jsonPath: '$.a', numberValue: 'NaN' }]],
  ['a string that is none', [{ jsonPath: '$.a', stringValue: 1 }]],
  ['a list at the top', [{ jsonPath: '$[0]', stringValue: 'x' }]],
  ['an item far beyond a list', [{ jsonPath: '$.a[999999999]', stringValue: 'x' }]],
  [
    'a value after its end',
    [
      { jsonPath: '$.a', stringValue: 'x' },
      { jsonPath: '$.a', stringValue: 'y' },
    ],
  ],
  [
    'a member of an object that has ended',
    [
      { jsonPath: '$.a.b', numberValue: 1 },
      { jsonPath: '$.c', numberValue: 2 },
      { jsonPath: '$.a.d', numberValue: 3 },
    ],
  ],
  [
    'a list that is an object, too',
    [
      { jsonPath: '$.a[0]', numberValue: 1 },
      { jsonPath: '$.a.b', numberValue: 1 },
    ],
  ],
  [
    'an object that is a string, too',
    [
      { jsonPath: '$.a.b', numberValue: 1 },
      { jsonPath: '$.a', stringValue: 'x' },
    ],
  ],
  [
    'a string that goes on as a number',
    [
      { jsonPath: '$.a', stringValue: 'x', willContinue: true },
      { jsonPath: '$.a', numberValue: 1 },
    ],
  ],
  [
    'a string that goes on as an object',
    [
      { jsonPath: '$.a', stringValue: 'x', willContinue: true },
      { jsonPath: '$.a.b', numberValue: 1 },
    ],
  ],
])('%s is refused', (_name, pieces) => {
  expect(() => write(pieces)).toThrow(refusal);
});

test('what is kept of names, and of pieces out of order, is bounded', () => {
  const names = Array.from({ length: 20 }, (_none, index) => ({ jsonPath: `$.name${index}`, numberValue: 1 }));
  expect(() => write(names, { left: 1_000 })).toThrow(refusal);
  const first = { jsonPath: '$.a', stringValue: '', willContinue: true };
  const late = { jsonPath: '$.b', stringValue: 'x'.repeat(500), willContinue: true };
  expect(() => write([first, late, late], { left: 1_000 })).toThrow(refusal);
  const long = { ...first, stringValue: 'x'.repeat(5_000) };
  expect(read([long, long])).toEqual({ a: 'x'.repeat(10_000) });
});

/** Objects whose leaves are values, because pieces cannot represent an empty object or list. */
const name = fc.oneof(
  fc.string({ unit: 'binary', minLength: 1 }),
  fc.constantFrom('__proto__', 'constructor', 'a', '0'),
);
const { object } = fc.letrec<{ value: unknown; object: Record<string, unknown> }>((tie) => ({
  value: fc.oneof(
    { depthSize: 'small', withCrossShrink: true },
    fc.string({ unit: 'binary' }),
    fc.double({ noNaN: true, noDefaultInfinity: true }),
    fc.boolean(),
    fc.constant(null),
    fc.array(tie('value'), { minLength: 1, maxLength: 4 }),
    tie('object'),
  ),
  object: fc.dictionary(name, tie('value'), { minKeys: 1, maxKeys: 4 }),
}));

/** The pieces of each leaf, with strings cut according to `cut`, in the order of the text. */
function leavesOf(value: unknown, jsonPath: string, cut: number): Json[][] {
  if (Array.isArray(value)) return value.flatMap((item, index) => leavesOf(item, `${jsonPath}[${index}]`, cut));
  if (typeof value === 'object' && value !== null) {
    return Object.entries(value).flatMap(([key, member]) =>
      leavesOf(member, `${jsonPath}[${JSON.stringify(key)}]`, cut),
    );
  }
  if (typeof value === 'number') return [[{ jsonPath, numberValue: value }]];
  if (typeof value === 'boolean') return [[{ jsonPath, boolValue: value }]];
  if (typeof value !== 'string') return [[{ jsonPath, nullValue: null }]];
  const pieces = [value.slice(0, cut), value.slice(cut, cut * 2), value.slice(cut * 2)];
  return [
    pieces.map((stringValue, index) => ({ jsonPath, stringValue, ...(index < 2 ? { willContinue: true } : {}) })),
  ];
}

const same = (text: string, value: unknown): void =>
  expect(JSON.parse(text)).toEqual(JSON.parse(JSON.stringify(value)));

test('any object that is cut to pieces comes back whole', () => {
  fc.assert(
    fc.property(object, fc.integer({ min: 0, max: 3 }), (value, cut) => {
      same(write(leavesOf(value, '$', cut).flat()).join(''), value);
    }),
  );
});

test('an object whose first string ends after all else comes back whole, in whatever order that comes', () => {
  fc.assert(
    fc.property(object, fc.infiniteStream(fc.nat()), (value, picks) => {
      const rest = leavesOf(value, '$', 1);
      const mixed: Json[] = [{ jsonPath: '$.first', stringValue: 'a', willContinue: true }];
      while (rest.some((leaf) => leaf.length > 0)) {
        const left = rest.filter((leaf) => leaf.length > 0);
        mixed.push((left[Number(picks.next().value) % left.length] as Json[]).shift() as Json);
      }
      mixed.push({ jsonPath: '$.first', stringValue: 'b' });
      fc.pre(!Object.hasOwn(value, 'first'));
      const texts = write(mixed);
      expect(texts[0]).toBe('{"first":"a');
      same(texts.join(''), { first: 'ab', ...value });
    }),
  );
});

/** The arguments as JSON, or how they were refused. */
const outcome = (pieces: readonly Json[]): unknown => {
  try {
    return read(pieces);
  } catch (error) {
    return error;
  }
};

test('pieces in any order come back as the same object, or are refused', () => {
  fc.assert(
    fc.property(object, fc.infiniteStream(fc.nat()), (value, picks) => {
      const shuffled = leavesOf(value, '$', 1)
        .map((leaf) => ({ leaf, rank: Number(picks.next().value) }))
        .toSorted((a, b) => a.rank - b.rank)
        .flatMap(({ leaf }) => leaf);
      expect([refusal, JSON.parse(JSON.stringify(value))]).toContainEqual(outcome(shuffled));
    }),
  );
});
