import { Histogram, Registry } from 'prom-client';
import { expect, test } from 'vitest';
import { FixedHistogram } from './fixed-histogram.ts';

const options = { name: 'waited_seconds', help: 'Seconds\nwaited.', buckets: [0.005, 0.1, 1, 300] };
const labelNames = ['method', 'route'] as const;
const values = [0, 0.005, 0.0051, 0.1, 0.3, 1, 299.999, 300, 300.1, 1e9, 0.1 + 0.2];

/** The same observations in prom-client's histogram and in ours. */
function observeBoth() {
  const [known, fixed] = [new Registry(), new Registry()];
  const other = new Histogram({ ...options, labelNames, registers: [known] });
  const histogram = new FixedHistogram<(typeof labelNames)[number]>(options);
  histogram.registerIn(fixed);
  for (const method of ['GET', 'a "quoted" one\n\\']) {
    const labels = { method, route: '/v1' };
    const series = histogram.addSeries(labels);
    for (const value of values) {
      series.observe(value);
      other.observe(labels, value);
    }
  }
  return { known, fixed };
}

test('it is shown exactly like a histogram of prom-client', async () => {
  const { known, fixed } = observeBoth();
  expect(await fixed.metrics()).toBe(await known.metrics());
  // As processes of a cluster exchange them. Ours have no exemplars.
  const withoutExemplars = (json: object): unknown =>
    JSON.parse(JSON.stringify(json, (name, value: unknown) => (name === 'exemplar' ? undefined : value)));
  expect(withoutExemplars(await fixed.getMetricsAsJSON())).toEqual(withoutExemplars(await known.getMetricsAsJSON()));
});

test('it can be shown again, with what was observed since', async () => {
  const registry = new Registry();
  const histogram = new FixedHistogram<never>(options);
  histogram.registerIn(registry);
  expect(await registry.metrics()).toBe('# HELP waited_seconds Seconds\\nwaited.\n# TYPE waited_seconds histogram\n');
  const series = histogram.addSeries({});
  for (const count of [1, 2]) {
    series.observe(2);
    expect(await registry.metrics()).toContain(`waited_seconds_bucket{le="300"} ${count}\n`);
    expect(await registry.metrics()).toContain(`waited_seconds_sum ${2 * count}\n`);
  }
});

test('values that are not finite are ignored', async () => {
  const registry = new Registry();
  const histogram = new FixedHistogram<never>(options);
  histogram.registerIn(registry);
  const series = histogram.addSeries({});
  for (const value of [Number.NaN, Infinity, -Infinity, 1]) series.observe(value);
  expect(await registry.metrics()).toContain('waited_seconds_count 1\n');
  expect(await registry.metrics()).toContain('waited_seconds_sum 1\n');
});
