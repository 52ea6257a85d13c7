import { setImmediate as turn } from 'node:timers/promises';
import { expect, test } from 'vitest';
import { batchPerTurn } from './batch-per-turn.ts';

test('the items of one turn are passed on in order: eight at once, and the rest when the turn ends', async () => {
  const handed: number[] = [];
  const take = batchPerTurn((item: number) => void handed.push(item));
  for (let item = 1; item <= 11; item += 1) take(item);
  expect(handed).toEqual([1, 2, 3, 4, 5, 6, 7, 8]);
  await turn();
  expect(handed).toEqual([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]);
});

test('an item added while others are passed on keeps its turn', async () => {
  const handed: string[] = [];
  const take = batchPerTurn((item: string) => {
    handed.push(item);
    if (item === 'first') take('second');
  });
  take('first');
  await turn();
  await turn();
  expect(handed).toEqual(['first', 'second']);
});
