import { expect, test } from 'vitest';
import { drawLatencyMs, parseLatency } from './latency.ts';
import { createRandom } from '../model/hash.ts';
import { readTraits } from '../read-traits.ts';

const sorted = (text: string, count = 20_000): number[] => {
  const latency = parseLatency(text);
  if (latency === undefined) throw new Error(`not a latency: ${text}`);
  const random = createRandom(7);
  return Array.from({ length: count }, () => drawLatencyMs(latency, random)).sort((a, b) => a - b);
};

test('a fixed latency is itself and a uniform one stays between its ends', () => {
  expect(parseLatency('1.5s')).toEqual({ type: 'fixed', ms: 1_500 });
  const draws = sorted('uniform:20ms:80ms');
  expect(draws[0]).toBeGreaterThanOrEqual(20);
  expect(draws.at(-1)).toBeLessThan(80);
  expect(draws[10_000]).toBeCloseTo(50, -1);
});

test('a lognormal latency has the median and the 99th percentile it was given', () => {
  const draws = sorted('lognormal:300ms:2s');
  expect(Math.abs((draws[10_000] ?? 0) / 300 - 1)).toBeLessThan(0.05);
  expect(Math.abs((draws[19_800] ?? 0) / 2_000 - 1)).toBeLessThan(0.1);
});

test('other texts are no latency', () => {
  for (const text of [
    '',
    '50',
    'ms',
    '-1ms',
    '50ms:1s',
    'uniform:9ms:1ms',
    'uniform:1ms',
    'lognormal:0ms:1s',
    '9999999s',
  ]) {
    expect([text, parseLatency(text)]).toEqual([text, undefined]);
  }
});

test('a model name carries manner, latency, speed, length, training time and fault, behind any prefix', () => {
  expect(readTraits('@slug/sim-echo+lognormal:300ms:2s+40tps+200tok+think+training:2s+9bytes')).toEqual({
    behaviour: { manner: 'echo', tokens: 200, think: true, cached: false, preamble: false, refuse: false },
    latency: { type: 'lognormal', p50Ms: 300, p99Ms: 2_000 },
    tokensPerSecond: 40,
    fault: undefined,
    trainingMs: 2_000,
    sizeBytes: 9,
  });
  expect(readTraits('sim-fault-503+5ms')).toMatchObject({ latency: { ms: 5 }, fault: { effect: { statuses: [503] } } });
  expect(readTraits('c4ai-command-r+')).toMatchObject({
    behaviour: { manner: 'write' },
    latency: undefined,
    fault: undefined,
  });
});
