import { Big } from 'big.js';
import fc from 'fast-check';
import { expect, test } from 'vitest';
import { addDecimals } from './add-decimals.ts';

const decimals = fc
  .tuple(fc.bigInt({ min: -(10n ** 30n), max: 10n ** 30n }), fc.integer({ min: 0, max: 20 }))
  .map(([digits, places]) => new Big(digits.toString()).times(new Big(`1e-${places}`)).toFixed());

test('sums are exact, whatever the number of decimals', () => {
  fc.assert(
    fc.property(decimals, decimals, (one, other) => {
      expect(addDecimals(one, other)).toBe(new Big(one).plus(other).toFixed());
    }),
  );
});

test('nothing counts as 0', () => {
  expect(addDecimals(null, '1.25')).toBe('1.25');
});
