import fc from 'fast-check';
import { applyPatch } from 'rfc6902';
import { expect, test } from 'vitest';
import { getEventNouns } from '#libs/event-log/inline-model.ts';
import { inlineModels } from '../../platform/models.ts';
import { createStatePatch } from './diff-events.ts';
import { eventTypes } from './event-types.ts';

const applied = (before: object, after: object): unknown => {
  const state = structuredClone(before);
  const patch = createStatePatch(before, after);
  expect(applyPatch(state, patch as never).filter((error) => error !== null)).toEqual([]);
  return state;
};

test('the patch turns every state into every other', () => {
  const state = fc.dictionary(
    fc.string(),
    fc.jsonValue({ maxDepth: 4 }).map((value) => value as unknown),
  );
  fc.assert(
    fc.property(state, state, (before, after) => {
      fc.pre(!JSON.stringify([before, after]).includes('__proto__'));
      const [one, other] = [before, after].map((each) => JSON.parse(JSON.stringify(each)) as object) as [
        object,
        object,
      ];
      expect(applied(one, other)).toEqual(other);
    }),
  );
});

test('members of nested objects and short lists are changed one by one', () => {
  const before = { status: 'open', config: { targets: [{ weight: 1 }, { weight: 2 }], 'a/b': 1 }, old: true };
  const after = { status: 'open', config: { targets: [{ weight: 1 }, { weight: 3 }], 'a/b': null }, added: [1] };
  expect(createStatePatch(before, after)).toEqual([
    { op: 'remove', path: '/old' },
    { op: 'add', path: '/added', value: [1] },
    { op: 'replace', path: '/config/targets/1/weight', value: 3 },
    { op: 'replace', path: '/config/a~1b', value: null },
  ]);
});

test('long lists, and states that have very many members, are compared without a search', () => {
  const long = Array.from({ length: 50_000 }, (_each, index) => index);
  const changed = [...long, -1];
  expect(createStatePatch({ long }, { long })).toEqual([]);
  expect(createStatePatch({ long }, { long: changed })).toEqual([{ op: 'replace', path: '/long', value: changed }]);
  const lists = (first: number) =>
    Array.from({ length: 40 }, (_each, index) =>
      Array.from({ length: 40 }, (_number, at) => first + index * 1_000 + at),
    );
  const [before, after] = [{ lists: lists(0) }, { lists: lists(7) }];
  expect(applied(before, after)).toEqual(after);
});

test('a record with any type of event has a state after each of its events', () => {
  const folded = new Set(inlineModels.filter(({ perEvent }) => perEvent === undefined).flatMap(getEventNouns));
  expect(eventTypes.filter((type) => !folded.has(type.slice(0, type.indexOf('.'))))).toEqual([]);
});
