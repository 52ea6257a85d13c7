import { expect, test } from 'vitest';
import { createRateLimit } from './rate-limit.ts';

test('a key may use its minute at once, waits for the refill, and does not touch other keys', () => {
  let now = 0;
  const limit = createRateLimit({ requestsPerMinute: 3, clock: { now: () => now } });
  expect([limit.take('a'), limit.take('a'), limit.take('a')].map(({ remaining }) => remaining)).toEqual([2, 1, 0]);
  expect(limit.take('a')).toEqual({ limit: 3, remaining: 0, resetMs: 60_000, retryAfterMs: 20_000 });
  expect(limit.take('b').retryAfterMs).toBe(0);
  now = 20_000;
  expect(limit.take('a').retryAfterMs).toBe(0);
  expect(limit.take('a').retryAfterMs).toBeGreaterThan(0);
});
