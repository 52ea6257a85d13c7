import { Counter, Gauge, Histogram, Registry } from 'prom-client';
import { expect, test } from 'vitest';
import { createMetricSums } from './sum-metrics.ts';

/** A process with a counter, a gauge whose proposed aggregation is an average, and a histogram. */
function startProcess() {
  const registry = new Registry();
  const registers = [registry];
  const calls = new Counter({ name: 'calls_total', help: 'Calls.', labelNames: ['model'], registers });
  const lag = new Gauge({ name: 'lag', help: 'Lag.', aggregator: 'average', registers });
  const seconds = new Histogram({ name: 'seconds', help: 'Seconds.', buckets: [1], registers });
  return { registry, calls, lag, seconds };
}

/** The lines of the values, without comments. */
const values = (text: string): string[] => text.split('\n').filter((line) => line !== '' && !line.startsWith('#'));

test('counters and histograms are summed, and each gauge says which process it is of', async () => {
  const sums = createMetricSums();
  for (const number of [1, 2]) {
    const { registry, calls, lag, seconds } = startProcess();
    calls.inc({ model: 'a' }, number);
    calls.inc({ model: `only ${number}` });
    lag.set(number === 1 ? Number.NaN : 5);
    seconds.observe(number);
    sums.record(number, await registry.getMetricsAsJSON());
  }
  const text = await sums.render();
  expect(values(text)).toEqual([
    'calls_total{model="a"} 3',
    'calls_total{model="only 1"} 1',
    'calls_total{model="only 2"} 1',
    'lag{process="1"} Nan',
    'lag{process="2"} 5',
    'seconds_bucket{le="1"} 1',
    'seconds_bucket{le="+Inf"} 2',
    'seconds_sum 3',
    'seconds_count 2',
  ]);
  expect(text).toContain('# TYPE calls_total counter\n');
});

test('what a process that ended has counted stays in the sums, and its gauges do not', async () => {
  const sums = createMetricSums();
  for (const count of [3, 4]) {
    const { registry, calls, lag, seconds } = startProcess();
    calls.inc({ model: 'a' }, count);
    lag.set(1);
    seconds.observe(0.5);
    sums.record(1, await registry.getMetricsAsJSON());
    sums.end(1);
  }
  sums.end(1);
  expect(values(await sums.render())).toEqual([
    'calls_total{model="a"} 7',
    'seconds_bucket{le="1"} 2',
    'seconds_bucket{le="+Inf"} 2',
    'seconds_sum 1',
    'seconds_count 2',
  ]);
});
