import { expect, test } from 'vitest';
import { anthropic } from './index.ts';

const readRateHeaders = anthropic.readRateHeaders as NonNullable<typeof anthropic.readRateHeaders>;

const headers = (kind: string, limit: string, remaining: string, reset: string) => ({
  date: 'Sat, 28 Nov 2026 12:00:00 GMT',
  [`anthropic-ratelimit-${kind}-limit`]: limit,
  [`anthropic-ratelimit-${kind}-remaining`]: remaining,
  [`anthropic-ratelimit-${kind}-reset`]: reset,
});

test.each(['requests', 'tokens', 'input-tokens', 'output-tokens'])('limits of %s get the names of OpenAI', (kind) => {
  expect(readRateHeaders(headers(kind, '50', '42', '2026-11-28T12:00:09Z'))).toEqual({
    [`x-ratelimit-limit-${kind}`]: '50',
    [`x-ratelimit-remaining-${kind}`]: '42',
    [`x-ratelimit-reset-${kind}`]: '9000ms',
  });
});

test.each([
  ['2026-11-28T13:00:01.5+01:00', '1500ms'],
  ['2026-11-28T11:59:59Z', '0ms'],
])('a reset at %s is in %s', (reset, duration) => {
  const found = readRateHeaders(headers('requests', '50', '0', reset));
  expect(found['x-ratelimit-reset-requests']).toBe(duration);
});

test.each([
  ['-1', '0', '2026-11-28T12:00:09Z'],
  ['50', '1e3', '2026-11-28T12:00:09Z'],
  ['50', '9999999999999', '2026-11-28T12:00:09Z'],
  ['50', '42', '2026-99-28T12:00:09Z'],
  ['50', '42', '60'],
  ['50', '42', ''],
])('a limit of %s with %s left until "%s" is left out', (limit, remaining, reset) => {
  expect(readRateHeaders(headers('requests', limit, remaining, reset))).toEqual({});
});

test('without the date of the answer, limits are left out', () => {
  const { date: _date, ...others } = headers('requests', '50', '42', '2026-11-28T12:00:09Z');
  expect(readRateHeaders(others)).toEqual({});
});
