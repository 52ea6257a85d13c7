import { expect, test } from 'vitest';
import { createProgress, describeProgress } from './progress.ts';

const half = { total: 2_000, completed: 990, failed: 10 };

test('the bar tells share, lines a second, time left and failed lines', () => {
  expect(describeProgress(half, 4_000)).toBe(
    '  [████████████░░░░░░░░░░░░]   50 %  1,000/2,000 lines  250 lines/s  ETA 4 s  failed 10',
  );
  expect(describeProgress({ total: 2_000, completed: 0, failed: 0 }, 0)).toContain('ETA -');
});

test('a terminal sees one line that changes, a file gets one every two seconds', () => {
  for (const isTTY of [true, false]) {
    let text = '';
    let time = 0;
    const stream = { isTTY, write: (part: string) => (text += part) };
    const progress = createProgress({ stream, lines: 2_000, now: () => time });
    for (time = 0; time < 4_000; time += 500) progress.show(half);
    progress.end({ total: 2_000, completed: 1_990, failed: 10 });
    expect(text.split('\n')).toHaveLength(isTTY ? 2 : 4);
    expect(text.endsWith(`failed 10${isTTY ? '\u001b[K' : ''}\n`)).toBe(true);
  }
});
