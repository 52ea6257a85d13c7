import { expect, test } from 'vitest';
import { compareRows } from './compare-rows.ts';

test('the ratios of two commits are shown with their spread', () => {
  const target = (cpuMicroseconds: number[]) => ({
    byRound: { perSecond: cpuMicroseconds.map((us) => 1e6 / us), p99Ms: cpuMicroseconds, cpuMicroseconds },
  });
  const batch = (worker: number) => ({ lines: 1_000, totalSeconds: 0.5, cpuSeconds: { worker, postgres: 0.08 } });
  const rows = compareRows({
    name: 'main',
    live: { here: target([50, 60, 54]), there: target([100, 100, 60]) },
    batches: { here: [batch(0.1)], there: [batch(0.125)] },
  } as never);
  expect(rows.map(({ figure, value }) => `${figure}: ${value}`)).toEqual([
    'live call: processor time of the API: 0.60 × (0.50, 0.90): 54.0 µs instead of 100.0 µs',
    'live calls a second: 1.67 × (1.11, 2.00): 18,519 instead of 10,000',
    'live call: p99 when saturated: 0.60 × (0.50, 0.90): 54.0 ms instead of 100.0 ms',
    'lines of a batch a second: 1.00 × (1.00, 1.00): 2,000 instead of 2,000',
    'line: processor time of the worker: 0.80 × (0.80, 0.80): 100.0 µs instead of 125.0 µs',
    'line: processor time of Postgres: 1.00 × (1.00, 1.00): 80.0 µs instead of 80.0 µs',
  ]);
});
