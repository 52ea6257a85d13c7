import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import type { Wait } from '#libs/calls/call.ts';
import { createSnoozeWatch, type SnoozeWatch } from './snooze-watch.ts';

const idleMsMax = 3_000;

let isCrowded: boolean;
let watch: SnoozeWatch;
const create = (snoozes: number): SnoozeWatch =>
  createSnoozeWatch({ now: Date.now, isCrowded: () => isCrowded, snoozes });

beforeEach(() => {
  vi.useFakeTimers();
  isCrowded = true;
  watch = create(0);
});
afterEach(() => {
  watch.stop();
  vi.useRealTimers();
});

const waitFor = (reason: Wait['reason'], forMs: number | null = 60_000): (() => void) =>
  watch.onWait({ reason, label: 'p', model: 'm', untilMs: forMs === null ? null : Date.now() + forMs });
const startTwo = (): void => {
  watch.lineStarted();
  watch.lineStarted();
  watch.allLinesStarted();
};

test('a chunk whose lines all have a long wait is snoozed until the first of them can go on', () => {
  startTwo();
  waitFor('rate_limited', 60_000);
  expect(watch.snooze.aborted).toBe(false);
  waitFor('circuit_open', 40_000);
  expect(watch.snooze.aborted).toBe(true);
  expect(watch.resumeAtMs()).toBe(Date.now() + 40_000);
});

test.each([
  [0, 5_000],
  [1, 10_000],
  [4, 80_000],
  [1_000, 80_000],
])('a chunk that was snoozed %i times before is snoozed for %i ms when its lines have short waits', (snoozes, ms) => {
  watch.stop();
  watch = create(snoozes);
  startTwo();
  waitFor('rate_limited', 4_000);
  waitFor('rate_limited', 4_000);
  expect(watch.snooze.aborted).toBe(true);
  expect(watch.resumeAtMs()).toBe(Date.now() + ms);
});

test('a chunk whose lines have all waited for a long time, some without a known end, is snoozed', () => {
  startTwo();
  waitFor('secret_unavailable', null);
  waitFor('rate_limited', 60_000);
  vi.advanceTimersByTime(idleMsMax - 1);
  expect(watch.snooze.aborted).toBe(false);
  vi.advanceTimersByTime(1_001);
  expect(watch.snooze.aborted).toBe(true);
});

test.each([
  ['a line calls', () => watch.lineStarted()],
  [
    'a line waits for its next retry',
    () => {
      watch.lineStarted();
      waitFor('retry');
    },
  ],
  [
    'no other chunk needs its slot',
    () => {
      isCrowded = false;
    },
  ],
])('a chunk is not snoozed while %s', (_what, alsoSo) => {
  startTwo();
  alsoSo();
  waitFor('rate_limited');
  waitFor('rate_limited');
  vi.advanceTimersByTime(10 * idleMsMax);
  expect(watch.snooze.aborted).toBe(false);
});

test('a chunk is not snoozed while lines have not started, or soon after a result', () => {
  watch.lineStarted();
  waitFor('rate_limited', 1_000);
  vi.advanceTimersByTime(10 * idleMsMax);
  expect(watch.snooze.aborted).toBe(false);
  watch.lineStarted();
  watch.allLinesStarted();
  watch.lineEnded();
  vi.advanceTimersByTime(idleMsMax - 1_000);
  expect(watch.snooze.aborted).toBe(false);
  vi.advanceTimersByTime(2_000);
  expect(watch.snooze.aborted).toBe(true);
});

test('a chunk whose lines call now and then, only to be rejected again, is snoozed as well', () => {
  startTwo();
  waitFor('rate_limited');
  let end = waitFor('rate_limited', 900);
  for (let n = 0; n < 12 && !watch.snooze.aborted; n += 1) {
    vi.advanceTimersByTime(900);
    end(); // The line calls again.
    end = waitFor('rate_limited', 900);
  }
  expect(watch.snooze.aborted).toBe(true);
});

test.each([
  [null, 5_000],
  [1, 5_000],
  [86_400_000, 300_000],
])('a wait of %s ms snoozes a chunk for %i ms', (forMs, expected) => {
  watch.lineStarted();
  watch.allLinesStarted();
  vi.advanceTimersByTime(idleMsMax + 500);
  waitFor('provider_busy', forMs);
  expect(watch.snooze.aborted).toBe(true);
  expect(watch.resumeAtMs() - Date.now()).toBe(expected);
});
