import { expect, test } from 'vitest';
import { toAnthropicPage } from './public-model-lists.ts';

const models = ['a', 'b', 'c', 'd', 'e'].map((name) => ({
  name,
  displayName: name.toUpperCase(),
  createdAtMs: Date.UTC(2026, 10, 29),
  workspaceId: 'ws_1',
}));
const idsIn = (query: Parameters<typeof toAnthropicPage>[1]) => {
  const { data, has_more: hasMore } = toAnthropicPage(models, query);
  return [data.map(({ id }) => id).join(''), hasMore];
};

test('a page has the models after an ID, or the last ones before an ID', () => {
  expect(idsIn({})).toEqual(['abcde', false]);
  expect(idsIn({ limit: 2 })).toEqual(['ab', true]);
  expect(idsIn({ limit: 2, after_id: 'b' })).toEqual(['cd', true]);
  expect(idsIn({ limit: 2, after_id: 'd' })).toEqual(['e', false]);
  expect(idsIn({ limit: 2, before_id: 'e' })).toEqual(['cd', true]);
  expect(idsIn({ limit: 2, before_id: 'c' })).toEqual(['ab', false]);
  expect(idsIn({ after_id: 'a', before_id: 'd' })).toEqual(['bc', false]);
});

test('a page after the last model is empty and has no IDs', () => {
  expect(toAnthropicPage(models, { after_id: 'e' })).toEqual({
    data: [],
    first_id: null,
    last_id: null,
    has_more: false,
  });
});

test('an ID that is not in the list is refused with its parameter', () => {
  expect(() => toAnthropicPage(models, { after_id: 'x' })).toThrow(expect.objectContaining({ param: 'after_id' }));
});
