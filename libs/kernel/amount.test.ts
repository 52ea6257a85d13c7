import { Big } from 'big.js';
import fc from 'fast-check';
import { expect, test } from 'vitest';
import { amountToNumber, divide, formatAmount, parseAmount, wholeAmount } from './amount.ts';

test.each([
  ['0', '0'],
  ['0.000000000001', '0.000000000001'],
  ['12.500', '12.5'],
  ['100', '100'],
  ['-0.5', '-0.5'],
  [1e-7, '0.0000001'],
  ['123456789012345678901.25', '123456789012345678901.25'],
  ['0.0000000000005', '0.000000000001'],
  ['0.00000000000049', '0'],
])('%s is stored as %s', (decimal, expected) => {
  expect(formatAmount(parseAmount(decimal))).toBe(expected);
});

const digits = fc.bigInt({ min: -(10n ** 30n), max: 10n ** 30n });

test('every amount is the decimal that big.js makes of it, and is read back unchanged', () => {
  fc.assert(
    fc.property(digits, (amount) => {
      const text = new Big(amount.toString()).div('1e12').toFixed();
      expect(formatAmount(amount)).toBe(text);
      expect(parseAmount(text)).toBe(amount);
      expect(amountToNumber(amount)).toBe(Number(text));
    }),
  );
});

test('quotients are rounded as big.js rounds halves up', () => {
  const positive = fc.bigInt({ min: 1n, max: 10n ** 6n });
  fc.assert(
    fc.property(fc.bigInt({ min: 0n, max: 10n ** 12n }), positive, (dividend, divisor) => {
      const expected = new Big(dividend.toString()).div(divisor.toString()).round(0, Big.roundHalfUp);
      expect(divide(dividend, divisor).toString()).toBe(expected.toFixed());
    }),
  );
});

test('counts are whole amounts', () => {
  expect(formatAmount(wholeAmount(3))).toBe('3');
});
