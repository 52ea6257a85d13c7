import { expect, test } from 'vitest';
import { keyRateLimits, rateLimits, usageLimits } from './limits.ts';

test('one limit in the place of a list is a list of one', () => {
  expect(usageLimits().parse({ credit_limit: 100 })).toEqual([{ credit_limit: 100, type: 'cost' }]);
  const rate = { type: 'requests', unit: 'rpm', value: 5 };
  expect(rateLimits().parse(rate)).toEqual([rate]);
});

test.each([
  ['a period in two ways', usageLimits(), [{ credit_limit: 1, periodic_reset: 'weekly', periodic_reset_days: 3 }]],
  ['a budget of nothing', usageLimits(), [{ credit_limit: 0 }]],
  ['two budgets of one type', usageLimits(), [{ credit_limit: 1 }, { credit_limit: 2 }]],
  [
    'two rates of one unit',
    rateLimits(),
    [
      { type: 'tokens', unit: 'rpm', value: 1 },
      { type: 'tokens', unit: 'rpm', value: 2 },
    ],
  ],
  ['a rate for a second, but for keys', rateLimits(), [{ type: 'requests', unit: 'rps', value: 1 }]],
])('%s is refused', (_name, schema, value) => {
  expect(schema.safeParse(value).success).toBe(false);
});

test('a key may have a rate for a second', () => {
  expect(keyRateLimits().safeParse([{ type: 'requests', unit: 'rps', value: 0 }]).success).toBe(true);
});
