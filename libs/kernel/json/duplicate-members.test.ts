import fc from 'fast-check';
import { expect, test } from 'vitest';
import { countMembers, findDuplicateMember } from './duplicate-members.ts';
import { measureJson } from './measure-json.ts';

const wide = { depthMax: 1_000, membersMax: 1_000_000 };
const isReported = (text: string): boolean =>
  countMembers(JSON.parse(text)) !== measureJson(Buffer.from(text), wide).members;

test.each([
  ['{"a":1,"a":2}', ['a']],
  ['{"a":1,"\\u0061":2}', ['a']],
  ['{"a":{"b":1},"c":[{"d":1},{"d":1,"e":[],"d":2}]}', ['c', 1, 'd']],
  ['[[],{"x":{"y":1, "y" :1}}]', [1, 'x', 'y']],
  ['{"__proto__":1,"__proto__":2}', ['__proto__']],
  ['{"":1,"b":"\\"a\\":{","":2}', ['']],
  ['{"1":{"a":0},"2":{"a":0},"1":0}', ['1']],
  ['{"a":"x","a":"x"}', ['a']],
])('the duplicate in %s is found', (text, path) => {
  expect(isReported(text)).toBe(true);
  expect(findDuplicateMember(Buffer.from(text))).toEqual(path);
});

test('JSON without duplicates has none, whatever its names and strings contain', () => {
  fc.assert(
    fc.property(fc.jsonValue({ maxDepth: 6 }), fc.constantFrom(undefined, 2), (value, indent) => {
      const text = JSON.stringify(value, null, indent);
      expect(isReported(text)).toBe(false);
      expect(findDuplicateMember(Buffer.from(text))).toBeNull();
    }),
  );
});

test('a second member of the same name in any object is found', () => {
  fc.assert(
    fc.property(
      fc.dictionary(fc.string(), fc.jsonValue({ maxDepth: 3 }), { minKeys: 1 }),
      fc.nat(),
      (object, place) => {
        const names = Object.keys(object);
        const name = names[place % names.length] as string;
        const text = `{"outer":[${JSON.stringify(object).slice(0, -1)},${JSON.stringify(name)}:null}]}`;
        expect(isReported(text)).toBe(true);
        expect(findDuplicateMember(Buffer.from(text))).toEqual(['outer', 0, name]);
      },
    ),
  );
});
