import { expect, test } from 'vitest';
import { createDatabaseClock } from './database-clock.ts';

const hourMs = 3_600_000;

function setUp() {
  const at = { own: 1_000_000, monotonic: 500 };
  const clock = createDatabaseClock({ ownTime: () => at.own, monotonicMs: () => at.monotonic });
  return { at, clock };
}

test('before the database has returned its time, the clock is that of the process', () => {
  const { clock } = setUp();
  expect([clock.now(), clock.toOwnTime(1_000_700)]).toEqual([1_000_000, 1_000_700]);
});

test('the time of the database advances by the monotonic clock, whatever happens to the own clock', () => {
  const { at, clock } = setUp();
  clock.set(1_000_000 - 2 * hourMs, 490, 510);
  at.own -= 5 * hourMs;
  at.monotonic += 250;
  expect(clock.now()).toBe(1_000_250 - 2 * hourMs);
  expect(clock.toOwnTime(clock.now() + 40)).toBe(at.own + 40);
});

test('an answer that differs by no more than its way moves nothing, one that differs by more is taken', () => {
  const { at, clock } = setUp();
  clock.set(1_000_000, 490, 510);
  clock.set(1_000_040, 490, 510);
  expect(clock.now()).toBe(1_000_000);
  clock.set(1_000_000 + hourMs, 490, 510);
  expect(clock.now()).toBe(1_000_000 + hourMs);
  at.monotonic += 1;
  expect(clock.now()).toBe(1_000_001 + hourMs);
});

test('an answer that came late is taken only when there is no other', () => {
  const { clock } = setUp();
  clock.set(2_000_000, 500, 2_500);
  expect(clock.now()).toBe(1_999_000);
  clock.set(9_000_000, 500, 2_500);
  expect(clock.now()).toBe(1_999_000);
});

test('a jump ahead is doubted for two minutes, and not at all once the clock is set right', () => {
  const { at, clock } = setUp();
  const tell = (ms: number): void => clock.set(ms + at.monotonic, at.monotonic, at.monotonic);
  tell(1_000_000);
  expect(clock.jumpedAhead()).toBe(false);
  at.monotonic += 30_000;
  tell(1_004_000);
  tell(1_000_000 - hourMs);
  tell(1_000_000);
  at.monotonic += 120_000;
  expect(clock.jumpedAhead()).toBe(false);

  tell(1_000_000 + hourMs);
  expect(clock.jumpedAhead()).toBe(true);
  // Half an hour is left, like before the jump.
  expect(clock.toOwnTime(1_000_000 + at.monotonic + hourMs / 2) - at.own).toBe(hourMs / 2);
  at.monotonic += 60_000;
  tell(1_000_000);
  expect(clock.jumpedAhead()).toBe(false);

  tell(1_000_000 + hourMs);
  at.monotonic += 119_999;
  tell(1_000_000 + hourMs);
  expect(clock.jumpedAhead()).toBe(true);
  at.monotonic += 1;
  expect(clock.jumpedAhead()).toBe(false);
});

test('a process that starts while the clock is ahead of its own doubts it too', () => {
  const { at, clock } = setUp();
  clock.set(1_000_000 + hourMs, 500, 500);
  expect(clock.jumpedAhead()).toBe(true);
  at.monotonic += 120_000;
  at.own += 120_000;
  expect(clock.jumpedAhead()).toBe(false);
});
