import { expect, test } from 'vitest';
import { createBytePace } from './byte-pace.ts';

test('bytes within the rate are read at once, and faster ones later', () => {
  const state = { nowMs: 1_000 };
  const pace = createBytePace(1_000_000, () => state.nowMs);
  expect(pace.spend('a', 50_000)).toBe(0);
  expect(pace.spend('a', 10_000)).toBe(10);
  expect(pace.spend('a', 20_000)).toBe(30);
  state.nowMs += 1_000;
  expect(pace.spend('a', 50_000)).toBe(0);
});

test('a workspace only waits for its own bytes', () => {
  const pace = createBytePace(1_000_000, () => 0);
  expect(pace.spend('a', 5_000_000)).toBe(4_950);
  expect([pace.spend('b', 1_000), pace.spend(null, 1_000)]).toEqual([0, 0]);
});
