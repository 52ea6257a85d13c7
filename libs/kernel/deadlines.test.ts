import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { Deadline, Deadlines } from './deadlines.ts';

let wheel: Deadlines;

beforeEach(() => {
  wheel = new Deadlines();
  vi.useFakeTimers({
    now: 0,
    toFake: ['setTimeout', 'clearTimeout', 'setInterval', 'clearInterval', 'performance'],
  });
});
afterEach(() => void vi.useRealTimers());

/** A deadline that records when it passes, in milliseconds since now. */
function record(): { deadline: Deadline; passed: number[] } {
  const since = performance.now();
  const passed: number[] = [];
  const deadline = new Deadline(wheel, { onDeadline: () => passed.push(performance.now() - since) });
  return { deadline, passed };
}

test('a deadline of less than a second passes to the millisecond', () => {
  const { deadline, passed } = record();
  deadline.set(37);
  vi.advanceTimersByTime(5_000);
  expect(passed).toEqual([37]);
});

test('a longer deadline passes once, never early and at most a tenth of a second late', () => {
  for (const ms of [1_000, 1_001, 9_999, 10_000, 51_150, 51_250, 600_000, 1_800_000]) {
    vi.advanceTimersByTime(33);
    const { deadline, passed } = record();
    deadline.set(ms);
    vi.advanceTimersByTime(2 * ms + 200);
    expect(passed, `${ms} ms`).toHaveLength(1);
    expect(passed[0], `${ms} ms`).toBeGreaterThanOrEqual(ms);
    expect(passed[0], `${ms} ms`).toBeLessThanOrEqual(ms + 100);
  }
});

test('a deadline that was cleared, or set again, does not pass at its first time', () => {
  const [cleared, short, moved] = [record(), record(), record()];
  cleared.deadline.set(3_000);
  cleared.deadline.clear();
  cleared.deadline.clear();
  short.deadline.set(500);
  short.deadline.clear();
  moved.deadline.set(2_000);
  moved.deadline.set(4_000);
  vi.advanceTimersByTime(3_900);
  expect([cleared.passed, short.passed, moved.passed]).toEqual([[], [], []]);
  vi.advanceTimersByTime(10_000);
  expect([cleared.passed.length, short.passed.length, moved.passed.length]).toEqual([0, 0, 1]);
});

test('a deadline can be set again when it passes, and clear others that pass at the same time', () => {
  const other = record();
  const passed: number[] = [];
  const deadline = new Deadline(wheel, {
    onDeadline: () => {
      passed.push(performance.now());
      other.deadline.clear();
      if (passed.length < 3) deadline.set(1_500);
    },
  });
  deadline.set(1_500);
  other.deadline.set(1_500);
  vi.advanceTimersByTime(20_000);
  expect(passed).toHaveLength(3);
  expect(other.passed).toEqual([]);
});

test('every deadline passes after the event loop was blocked, even for longer than a turn of the wheel', () => {
  const records = [1_000, 20_000, 40_000, 60_000, 80_000].map((ms) => {
    const one = record();
    one.deadline.set(ms);
    return one;
  });
  const later = record();
  later.deadline.set(200_000);
  const real = performance.now.bind(performance);
  const blocked = vi.spyOn(performance, 'now').mockImplementation(() => real() + 100_000);
  vi.advanceTimersByTime(100);
  expect(records.map(({ passed }) => passed.length)).toEqual([1, 1, 1, 1, 1]);
  expect(later.passed).toEqual([]);
  blocked.mockRestore();
  later.deadline.clear();
});

test('the timer runs only while there are deadlines', () => {
  vi.advanceTimersByTime(200);
  expect(vi.getTimerCount()).toBe(0);
  const [first, second] = [record(), record()];
  first.deadline.set(2_000);
  second.deadline.set(600_000);
  expect(vi.getTimerCount()).toBe(1);
  first.deadline.clear();
  vi.advanceTimersByTime(200);
  expect(vi.getTimerCount()).toBe(1);
  second.deadline.clear();
  vi.advanceTimersByTime(200);
  expect(vi.getTimerCount()).toBe(0);
});
