import fc from 'fast-check';
import { expect, test } from 'vitest';
import { createShares } from './shares.ts';

test('one holder alone has three quarters, and the next one three quarters of the rest', () => {
  const shares = createShares(100);
  const takeAll = (holder: string): number => {
    while (shares.take(holder));
    return shares.held(holder);
  };
  expect(takeAll('a')).toBe(75);
  expect(takeAll('b')).toBe(19);
  expect(takeAll('a')).toBe(75);
  expect(takeAll('c')).toBe(5);
  expect(shares.held()).toBe(99);
});

test('whatever is taken and given back, the limit holds, and nothing is left when all is given back', () => {
  const step = fc.tuple(fc.constantFrom('a', 'b', 'c'), fc.boolean());
  fc.assert(
    fc.property(fc.array(step, { maxLength: 200 }), fc.integer({ min: 1, max: 20 }), (steps, max) => {
      const shares = createShares(max);
      const mine = new Map<string, number>();
      for (const [holder, isTaking] of steps) {
        const held = mine.get(holder) ?? 0;
        if (!isTaking) shares.give(holder);
        const next = isTaking ? held + (shares.take(holder) ? 1 : 0) : Math.max(0, held - 1);
        mine.set(holder, next);
        expect(shares.held(holder)).toBe(next);
        expect(shares.held()).toBeLessThanOrEqual(max);
      }
      for (const [holder, held] of mine) for (let left = held; left > 0; left -= 1) shares.give(holder);
      expect(shares.held()).toBe(0);
    }),
  );
});
