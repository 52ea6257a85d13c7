import { expect, test } from 'vitest';
import { createLatencyHistogram } from './latency-histogram.ts';

/** The bin of a duration, as SQL computes it. */
const binOf = (durationMs: number): number => Math.ceil(Math.log(durationMs) / Math.log(1.04));

test('a quantile is within 2 % of the exact one, from a tenth of a millisecond to hours', () => {
  const durations = Array.from({ length: 1_000 }, (_, index) => 0.1 * 1.018 ** index);
  const histogram = createLatencyHistogram();
  histogram.add(durations.map((duration) => `${binOf(duration)}:1`).join(','));
  for (const share of [0, 0.01, 0.5, 0.9, 0.99, 1]) {
    const exact = durations[Math.max(1, Math.ceil(share * durations.length)) - 1] ?? 0;
    expect(Math.abs(histogram.quantile(share) / exact - 1)).toBeLessThanOrEqual(0.02);
  }
});

test('histograms are added up, from texts that are joined and from each other', () => {
  const one = createLatencyHistogram();
  one.add('-59:1,0:2,460:3');
  one.add('0:1');
  const other = createLatencyHistogram();
  other.add('0:4');
  one.merge(other);
  expect([...one.counts].filter((count) => count > 0)).toEqual([1, 7, 3]);
  expect(one.quantile(0.5)).toBeCloseTo(0.98, 2);
});

test('no calls have no duration', () => {
  expect(createLatencyHistogram().quantile(0.99)).toBe(0);
});
