import { expect, test } from 'vitest';
import { retryWaitMs } from './send-deliveries.ts';

const hourMs = 3_600_000;
const middle = () => 0.5;

test('retries start after seconds, are hours apart later, and about twenty take three days', () => {
  const waits = Array.from({ length: 20 }, (_value, index) => retryWaitMs(index + 1, null, middle));
  expect(waits.slice(0, 4)).toEqual([5_000, 15_000, 45_000, 135_000]);
  expect(waits.toSorted((a, b) => a - b)).toEqual(waits);
  expect(waits.at(-1)).toBe(6 * hourMs);
  const days = waits.reduce((sum, wait) => sum + wait, 0) / (24 * hourMs);
  expect([Math.floor(days), Math.ceil(days)]).toEqual([3, 4]);
});

test('the waits of many deliveries are spread', () => {
  expect([0, 1].map((random) => Math.round(retryWaitMs(1, null, () => random)))).toEqual([4_000, 6_000]);
});

test('a receiver can ask for a longer wait, up to six hours, and not for a shorter one', () => {
  expect(retryWaitMs(1, 60_000, middle)).toBe(60_000);
  expect(retryWaitMs(4, 1_000, middle)).toBe(135_000);
  expect(retryWaitMs(1, 30 * 24 * hourMs, middle)).toBe(6 * hourMs);
});
