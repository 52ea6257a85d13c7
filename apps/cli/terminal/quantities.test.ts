import { expect, test } from 'vitest';
import { formatBytes, formatCost, formatCount, formatDollars, formatDuration } from './quantities.ts';

test('a cost has the digits that tell it apart, however small it is, and no exponent', () => {
  expect([null, 0, '4.770559', 0.9999, '0.0157', '0.000068', '0.00000012'].map(formatDollars)).toEqual([
    '-',
    '$0.00',
    '$4.77',
    '$1.00',
    '$0.0157',
    '$0.0000680',
    '$0.000000120',
  ]);
});

test('the part of a cost that is not billed is marked', () => {
  expect([formatCost('0.5', 0), formatCost('0.5', '0.25'), formatCost('0.5', '0.5'), formatCost(null, true)]).toEqual([
    '$0.500',
    '$0.500, $0.250 simulated',
    '$0.500 simulated',
    '-',
  ]);
  expect([formatCost('0.5', false), formatCost('0.5', true), formatCost('0', true)]).toEqual([
    '$0.500',
    '$0.500 simulated',
    '$0.00 simulated',
  ]);
});

test('a size is rounded to the unit in which it is said', () => {
  expect([0, 1_023, 1_024, 1_048_575, 1_048_576, 2 ** 50].map(formatBytes)).toEqual([
    '0 B',
    '1023 B',
    '1.0 KiB',
    '1.0 MiB',
    '1.0 MiB',
    '1024.0 TiB',
  ]);
});

test('a duration is said in the units in which people think of it', () => {
  expect([0, 45, 300, 7_500, 172_800, 31_536_000].map(formatDuration)).toEqual([
    '0 s',
    '45 s',
    '5 min',
    '2 h 5 min',
    '2 days',
    '365 days',
  ]);
});

test('one thing is one', () => {
  expect([formatCount(0, 'line'), formatCount(1, 'line'), formatCount(2, 'line')]).toEqual([
    '0 lines',
    '1 line',
    '2 lines',
  ]);
});
