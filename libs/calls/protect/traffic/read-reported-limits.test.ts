import { expect, test } from 'vitest';
import { readReportedLimits } from './read-reported-limits.ts';

const now = Date.parse('2026-01-02T03:04:05Z');
const after = (ms: number): number => now + ms;

test('the headers of OpenAI, with durations, are two limits', () => {
  const headers = {
    'retry-after': '3',
    'x-ratelimit-limit-requests': '60',
    'x-ratelimit-remaining-requests': '59',
    'x-ratelimit-reset-requests': '1s',
    'x-ratelimit-limit-tokens': '150000',
    'x-ratelimit-remaining-tokens': '149984',
    'x-ratelimit-reset-tokens': '6m0.5s',
  };
  expect(readReportedLimits(headers, now)).toEqual([
    { of: 'requests', limit: 60, remaining: 59, resetsAtMs: after(1_000) },
    { of: 'tokens', limit: 150_000, remaining: 149_984, resetsAtMs: after(360_500) },
  ]);
});

test('names with what is limited first, and times, mean the same', () => {
  const headers = {
    'some-ratelimit-input-tokens-limit': '80000',
    'some-ratelimit-input-tokens-remaining': '0',
    'some-ratelimit-input-tokens-reset': '2026-01-02T03:05:05Z',
  };
  expect(readReportedLimits(headers, now)).toEqual([
    { of: 'input-tokens', limit: 80_000, remaining: 0, resetsAtMs: after(60_000) },
  ]);
});

test.each([
  ['35.5', after(35_500)],
  ['250ms', after(250)],
  ['1h2m', after(3_720_000)],
  [String(now / 1_000 + 60), after(60_000)],
  [String(now + 60_000), after(60_000)],
  ['soon', null],
  ['99999999', null],
  ['2026-99-99T00:00:00Z', null],
  ['1'.repeat(100), null],
])('a reset of %s is read as a time, or as none', (reset, resetsAtMs) => {
  const headers = { 'x-ratelimit-limit': '10', 'x-ratelimit-reset': reset };
  expect(readReportedLimits(headers, now)).toEqual([{ of: 'requests', limit: 10, remaining: null, resetsAtMs }]);
});

test('what is no number is not shown, and no answer reports more than eight limits', () => {
  const odd = { 'x-ratelimit-limit-requests': 'many', 'x-ratelimit-remaining-tokens': '-5', 'x-ratelimit-x': '1' };
  expect(readReportedLimits(odd, now)).toEqual([]);
  const kinds = Array.from({ length: 30 }, (_value, index) => 'abcdefghijklmnopqrstuvwxyzabcdef'.slice(index));
  const many = Object.fromEntries(kinds.map((of) => [`x-ratelimit-limit-${of}`, '1']));
  expect(readReportedLimits(many, now)).toHaveLength(8);
});
