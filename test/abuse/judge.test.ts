import { expect, test } from 'vitest';
import { judge } from './judge.ts';

const figures = (p50Ms: number | null, p99Ms: number | null, failed = 0) => ({
  sent: 100,
  failed,
  reasons: failed > 0 ? { 'a call was cut off': failed } : {},
  p50Ms,
  p99Ms,
  worstMs: p99Ms,
});
const alone = { live: figures(4, 10), batches: figures(600, 900) };
const peaks = { api: 300 * 1_048_576, worker: 300 * 1_048_576 };
const judged = (changes: Partial<Parameters<typeof judge>[0]>, withTimes = true) =>
  judge({ alone, beside: alone, after: alone, crashes: [], peaks, ...changes }, { withTimes });

test('a victim with the same figures as alone breaks no limit', () => {
  expect(judged({})).toEqual([]);
});

test('twice the time alone is within the limits, and so is what the machine itself may add, but not much more', () => {
  expect(judged({ beside: { live: figures(8, 25), batches: figures(1_200, 5_000) } })).toEqual([]);
  expect(judged({ beside: { live: figures(8.5, 25.5), batches: figures(1_201, 5_001) } })).toEqual([
    'live p50: 8.5 ms beside it, 4.0 ms alone',
    'live p99: 25.5 ms beside it, 10.0 ms alone',
    'batch p50: 1201.0 ms beside it, 600.0 ms alone',
    'longest batch: 5001.0 ms beside it, 900.0 ms alone',
  ]);
});

test('a victim that is still slow after the attack breaks a limit', () => {
  const after = { live: figures(4, 26, 1), batches: alone.batches };
  expect(judged({ after })).toEqual([
    "1 of 100 of the victim's live failed after it: a call was cut off (1)",
    'live p99: 26.0 ms after it, 10.0 ms alone',
  ]);
});

test('a victim without an answer is worse than any time', () => {
  const beside = { live: figures(4, 10), batches: figures(null, null) };
  expect(judged({ beside })).toEqual([
    'batch p50: nothing beside it, 600.0 ms alone',
    'longest batch: nothing beside it, 900.0 ms alone',
  ]);
});

test('failed calls, restarts and a gibibyte of memory break a limit whatever the times are', () => {
  const beside = { live: figures(500, 900, 3), batches: alone.batches };
  const crashes = ['api ended: SIGABRT'];
  expect(judged({ beside, crashes, peaks: { api: 1_073_741_824, worker: 1 } }, false)).toEqual([
    'api ended: SIGABRT',
    'api took 1024 MB',
    "3 of 100 of the victim's live failed beside it: a call was cut off (3)",
  ]);
});
