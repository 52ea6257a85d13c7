import { expect, test } from 'vitest';
import { retryWaitMs } from './push-events.ts';

test('retries start after a second and are five minutes apart later, with a spread', () => {
  expect([1, 2, 3, 30].map((failures) => retryWaitMs(failures, null, () => 0.5))).toEqual([
    1_000, 2_000, 4_000, 300_000,
  ]);
  expect([0, 1].map((random) => Math.round(retryWaitMs(1, null, () => random)))).toEqual([800, 1_200]);
});

test('a receiver can ask for a longer wait, up to five minutes', () => {
  expect(retryWaitMs(1, 60_000, () => 0.5)).toBe(60_000);
  expect(retryWaitMs(1, 86_400_000, () => 0.5)).toBe(300_000);
});
