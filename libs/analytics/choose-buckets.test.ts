import { expect, test } from 'vitest';
import { divideIntoSegments, chooseStep, type Kept } from './choose-buckets.ts';

const at = (time: string): number => Date.parse(`2026-11-${time}Z`);
const kept: Kept = {
  minutesFrom: at('20T00:00'),
  hoursFrom: at('10T00:00'),
  hoursUntil: at('23T14:00'),
  daysFrom: 0,
  daysUntil: at('23T00:00'),
  tensFrom: 0,
  tensUntil: 0,
  keys: new Map(),
  logFrom: at('15T00:00'),
  now: at('23T14:30'),
};
const shown = (from: number, to: number, stepMs?: number): string[] =>
  divideIntoSegments({ from, to }, kept, { stepMs }).map(
    (segment) =>
      `${segment.source} ${[segment.from, segment.to].map((time) => new Date(time).toISOString().slice(8, 23)).join(' ')}`,
  );

test('a time is divided into the coarsest buckets that are there, and calls at its ends', () => {
  expect(shown(at('20T22:58:30.500'), at('23T14:10:00.001'))).toEqual([
    'log 20T22:58:30.500 20T22:59:00.000',
    'minute 20T22:59:00.000 20T23:00:00.000',
    'hour 20T23:00:00.000 21T00:00:00.000',
    'day 21T00:00:00.000 23T00:00:00.000',
    'hour 23T00:00:00.000 23T14:00:00.000',
    'minute 23T14:00:00.000 23T14:10:00.000',
    'log 23T14:10:00.000 23T14:10:00.001',
  ]);
});

test('points of an hour are made of nothing longer', () => {
  expect(shown(at('21T00:00'), at('22T00:00'), 3_600_000)).toEqual(['hour 21T00:00:00.000 22T00:00:00.000']);
});

test('where minutes are not kept, parts of an hour are read from the log', () => {
  expect(shown(at('16T10:30'), at('16T12:00'))).toEqual([
    'log 16T10:30:00.000 16T11:00:00.000',
    'hour 16T11:00:00.000 16T12:00:00.000',
  ]);
});

test('where the log is not kept either, the bucket at the end is taken whole', () => {
  expect(shown(at('12T10:30'), at('12T12:59'))).toEqual(['hour 12T10:00:00.000 12T13:00:00.000']);
  expect(shown(at('05T10:30'), at('06T00:00'))).toEqual(['day 05T00:00:00.000 06T00:00:00.000']);
});

test('a time that ends now or later takes the current minute whole', () => {
  expect(shown(at('23T14:28'), at('23T14:30:20'))).toEqual(['minute 23T14:28:00.000 23T14:31:00.000']);
});

test.each([
  [at('23T11:30'), at('23T14:30'), 60_000],
  [at('22T14:30'), at('23T14:30'), 600_000],
  [at('20T00:00'), at('23T14:30'), 3_600_000],
  [at('08T00:00'), at('23T00:00'), 86_400_000],
  // Neither minutes nor hours are retained that long.
  [at('12T00:00'), at('12T01:00'), 3_600_000],
  [at('05T00:00'), at('05T01:00'), 86_400_000],
])('from %i to %i points are %i ms apart', (from, to, stepMs) => {
  expect(chooseStep({ from, to }, kept)).toBe(stepMs);
});
