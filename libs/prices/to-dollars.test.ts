import { expect, test } from 'vitest';
import { toDollars } from './to-dollars.ts';

test.each([
  ['0', '0'],
  ['100', '1'],
  ['265.9867', '2.659867'],
  ['0.000000000001', '0.00000000000001'],
  ['123456789012345678901', '1234567890123456789.01'],
])('%s cents are %s dollars', (cents, dollars) => {
  expect(toDollars(cents)).toBe(dollars);
});
