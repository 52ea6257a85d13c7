import { expect, test } from 'vitest';
import { classifyCallOutcome, type CallOutcome } from './call-outcome.ts';

test.each<[string, number | null, string | null, number, CallOutcome]>([
  ['an answer', 200, null, 1, 'succeeded'],
  ['an answer from the cache', 200, null, 0, 'succeeded'],
  ['an answer that a guardrail only reported', 246, null, 1, 'succeeded'],
  ['a budget that is used up', 412, 'usage_limit_exceeded', 0, 'refused'],
  ['an unknown price', 412, 'price_unknown', 0, 'refused'],
  ['a rate of a policy', 429, 'rate_limit_exceeded', 0, 'refused'],
  ['an input guardrail', 446, 'guardrail_denied', 0, 'refused'],
  ['an output guardrail', 446, 'guardrail_denied', 1, 'refused'],
  ["the provider's own 429", 429, 'rate_limit_exceeded', 1, 'failed'],
  ['an error of the provider', 500, 'http_500', 2, 'failed'],
  ['no answer', null, 'upstream_unreachable', 1, 'failed'],
  ['a stream that broke off', 200, 'upstream_truncated', 1, 'failed'],
])('%s', (_what, status, code, attempts, outcome) => {
  expect(classifyCallOutcome({ status, error_code: code, attempts })).toBe(outcome);
});
