import { expect, test } from 'vitest';
import { toListResponse } from './list-response.ts';

const items = [{ id: 'a' }, { id: 'b' }, { id: 'c' }];

test('the item beyond the limit says that there are more, and is not shown', () => {
  expect(toListResponse(items, 2)).toEqual({
    object: 'list',
    data: [{ id: 'a' }, { id: 'b' }],
    first_id: 'a',
    last_id: 'b',
    has_more: true,
  });
});

test('a last page and an empty one have no more', () => {
  expect(toListResponse(items, 3)).toMatchObject({ last_id: 'c', has_more: false });
  expect(toListResponse([], 3)).toEqual({ object: 'list', data: [], first_id: null, last_id: null, has_more: false });
});
