import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { createProgressLine } from './progress-line.ts';

let written: string[];
beforeEach(() => {
  vi.useFakeTimers();
  written = [];
  vi.spyOn(process.stderr, 'write').mockImplementation((text) => {
    written.push(String(text));
    return true;
  });
});
afterEach(() => {
  vi.restoreAllMocks();
  vi.useRealTimers();
});

test('a pipe gets a line every five seconds, also while nothing changes, and what is said in between immediately', () => {
  const line = createProgressLine({ isTTY: false } as NodeJS.WriteStream);
  line.show('0/60 lines');
  vi.advanceTimersByTime(4_999);
  expect(written).toEqual([]);
  line.say('60 lines are waiting.');
  vi.advanceTimersByTime(10_001);
  line.show('1/60 lines');
  vi.advanceTimersByTime(5_000);
  expect(written.map((text) => text.trimEnd())).toEqual([
    '60 lines are waiting.',
    '0/60 lines',
    '0/60 lines',
    '0/60 lines',
    '1/60 lines',
  ]);
  line.clear();
  vi.advanceTimersByTime(20_000);
  expect(written).toHaveLength(5);
});
