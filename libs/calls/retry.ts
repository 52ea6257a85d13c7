import type { Outcome } from './call.ts';
import { readRetryAfter } from './retry-after.ts';

/** When a call is made again. Every bound is of one call, over all its attempts. */
export type RetryPolicy = {
  /** Attempts in all; those answered with 429 do not count. */
  attemptsMax: number;
  /** Replaces the default statuses: 408, 409, 429 and 500 to 599. */
  statuses?: readonly number[];
  baseDelayMs: number;
  maxDelayMs: number;
  /** No attempt starts at or after this moment (epoch milliseconds). */
  deadlineAt: number;
  /** Bound on attempts answered with 429, should a provider never say anything else and the deadline be far. */
  rateLimitedMax?: number;
  /** true: attempts answered with 429 count like all others. Default false. */
  countsRateLimited?: boolean;
  /** false: waits by its own rule, whatever the provider told. Default true. */
  obeysRetryAfter?: boolean;
  /** false: the longest wait of each round instead of a random share of it. Default true. */
  jitter?: boolean;
  /** Bound on all waits together; a wait that would go over it is the end. Default none. */
  waitMsMax?: number;
};

const defaultRateLimitedMax = 1_000;

// Waiting does not bring money back: retrying these burns the caller's time and nothing else.
const hopeless: ReadonlySet<string> = new Set([
  'insufficient_quota',
  'credit_balance_exhausted',
  'billing_hard_limit_reached',
]);

// Failures that another attempt may not meet again. Everything else (a refused destination, a redirect, an answer too
// large, a caller who left) would end the same way.
const passing: ReadonlySet<string | null> = new Set([
  'upstream_unreachable',
  'upstream_connection_lost',
  'upstream_truncated',
  'upstream_invalid_response',
  'upstream_error', // the provider says in a 200 that it failed
]);

// Not asked at all, for a while (libs/calls/protect/traffic): worth another try when that is over, and no try of those that count.
const turnedAway: ReadonlySet<string | null> = new Set([
  'circuit_open',
  'provider_rate_limited',
  'provider_busy',
  'too_many_calls',
]);

/** How an outcome counts for retries. */
export type Verdict = 'final' | 'retryable' | 'rate_limited';

/** Whether an outcome may be tried again at all. `x-should-retry` beats the status both ways. */
export function judge(outcome: Outcome, errorCode: string | null, statuses?: readonly number[]): Verdict {
  if (outcome.kind === 'failed') {
    const { kind, code } = outcome.error;
    if (turnedAway.has(code)) return 'rate_limited';
    // Another answer may be one, but each is paid for in full: only for callers whose own retries have its status.
    if (code === 'json_object_not_met') return statuses?.includes(502) === true ? 'retryable' : 'final';
    return kind === 'provider_timeout' || (kind === 'provider_failed' && passing.has(code)) ? 'retryable' : 'final';
  }
  if (outcome.status < 400) return 'final';
  if (isHopeless(errorCode)) return 'final';
  const told = outcome.headers['x-should-retry'];
  if (told === 'false') return 'final';
  const listed = statuses ? statuses.includes(outcome.status) : isRetryableStatus(outcome.status);
  if (!listed && told !== 'true') return 'final';
  return outcome.status === 429 ? 'rate_limited' : 'retryable';
}

export function isHopeless(errorCode: string | null): boolean {
  return errorCode !== null && hopeless.has(errorCode);
}

function isRetryableStatus(status: number): boolean {
  return status === 408 || status === 409 || status === 429 || status >= 500;
}

function toldBy(outcome: Outcome, now: number): number | null {
  return outcome.kind === 'failed' ? (outcome.error.retryAfterMs ?? null) : readRetryAfter(outcome.headers, now);
}

/** Counts one call's attempts against its policy. */
export function createRetryBudget(policy: RetryPolicy, random: () => number) {
  let counted = 0;
  let rateLimited = 0;
  let waitedMs = 0;
  const { obeysRetryAfter = true, waitMsMax = Number.POSITIVE_INFINITY } = policy;
  const share = policy.jitter === false ? () => 1 : random;
  const spread = policy.jitter === false ? () => 0 : random;
  return {
    /**
     * The wait before the next attempt in milliseconds, or null when there is none. Never shorter than the provider told;
     * what is added to that is random, so that callers told the same moment do not all come back at it.
     */
    next: (verdict: Verdict, outcome: Outcome, now: number): number | null => {
      if (verdict === 'final') return null;
      if (verdict === 'rate_limited' && policy.countsRateLimited !== true) rateLimited += 1;
      else counted += 1;
      if (counted >= policy.attemptsMax || rateLimited >= (policy.rateLimitedMax ?? defaultRateLimitedMax)) return null;
      const ceiling = Math.min(policy.maxDelayMs, policy.baseDelayMs * 2 ** Math.min(counted + rateLimited - 1, 30));
      const told = obeysRetryAfter ? toldBy(outcome, now) : null;
      // Without jitter what was told is waited to the millisecond.
      const wait =
        told === null ? ceiling / 2 + share() * (ceiling / 2) : told + spread() * Math.max(ceiling, told / 4);
      if (now + wait >= policy.deadlineAt || waitedMs + wait > waitMsMax) return null;
      waitedMs += wait;
      return Math.ceil(wait);
    },
  };
}
