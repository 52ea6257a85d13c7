import type { Answer, Failure, Outcome } from './call.ts';

/** How a call ended, as far as waits and circuits care; null: it was never made. */
export type Ended = Pick<Answer, 'status' | 'headers' | 'errorCode'> | Pick<Failure, 'kind' | 'error'> | null;

// A provider that asks for more is asked again after a day.
const rateLimitWaitMsMax = 86_400_000;

// Waiting does not bring money back: retrying these burns the caller's time and nothing else.
const quotaCodes: ReadonlySet<string> = new Set([
  'insufficient_quota',
  'credit_balance_exhausted',
  'billing_hard_limit_reached',
]);

/** Whether a provider's error code says that the account has no money or quota left. */
export const isQuotaUsedUp = (errorCode: string | null | undefined): boolean =>
  typeof errorCode === 'string' && quotaCodes.has(errorCode);

/**
 * How long a provider told us to wait, in milliseconds: `retry-after-ms`, its Azure form, or `retry-after` in seconds or
 * as an HTTP date. null when absent, negative, in the past or not understood: the caller then waits by its own rule.
 */
export function readRetryAfter(headers: Readonly<Record<string, string>>, now: number): number | null {
  return (
    milliseconds(headers['retry-after-ms'], 1) ??
    milliseconds(headers['x-ms-retry-after-ms'], 1) ??
    milliseconds(headers['retry-after'], 1_000) ??
    untilDate(headers['retry-after'], now)
  );
}

/**
 * How long the credential and model of this call may not be called, in milliseconds: what a 429 told. null: nothing was
 * told, or a wait would not help because the quota is used up.
 */
export function rateLimitWaitMs(ended: Ended, now: number): number | null {
  if (ended === null || 'error' in ended || ended.status !== 429 || isQuotaUsedUp(ended.errorCode)) return null;
  const told = readRetryAfter(ended.headers, now);
  return told === null ? null : Math.min(told, rateLimitWaitMsMax);
}

/** What an outcome says about when to try again, in milliseconds; null: nothing. */
const toldBy = (outcome: Outcome, now: number): number | null =>
  outcome.kind === 'failed' ? (outcome.error.retryAfterMs ?? null) : readRetryAfter(outcome.headers, now);

type WaitPolicy = {
  baseDelayMs: number;
  maxDelayMs: number;
  /** false: waits by its own rule, whatever the provider told. Default true. */
  obeysRetryAfter?: boolean;
  /** false: the longest wait of each round instead of a random share of it. Default true. */
  jitter?: boolean;
};

/**
 * The wait before attempt `round` + 1 in milliseconds: exponential, and never shorter than the provider told. What is
 * added to that is random, so that callers told the same moment do not all come back at it.
 */
export function waitBeforeRetry(
  policy: WaitPolicy,
  { outcome, round, now, random }: { outcome: Outcome; round: number; now: number; random: () => number },
): number {
  const { obeysRetryAfter = true, jitter = true } = policy;
  const ceiling = Math.min(policy.maxDelayMs, policy.baseDelayMs * 2 ** Math.min(round - 1, 30));
  const told = obeysRetryAfter ? toldBy(outcome, now) : null;
  if (told === null) return ceiling / 2 + (jitter ? random() : 1) * (ceiling / 2);
  // Without jitter what was told is waited to the millisecond.
  return told + (jitter ? random() : 0) * Math.max(ceiling, told / 4);
}

/** A wait for a moment that many wait for, in milliseconds: never shorter, and each a little longer than the others. */
export const spreadWait = (ms: number, random: () => number): number =>
  Math.ceil(ms + random() * Math.min(2_000, ms / 4));

// openai-python gives up on a longer wait, and openai-node 6 would sleep through any, however long; both obey
// x-should-retry first.
const clientWaitMsMax = 60_000;

/**
 * A provider's headers for the client, without a Retry-After that says nothing (SDKs take -5 for "at once"). One beyond a
 * minute stays as it is, for clients that plan by it, and SDKs are told not to sleep that long.
 */
export function withRetryAdvice(headers: Record<string, string>): Record<string, string> {
  const isTold =
    headers['retry-after'] !== undefined ||
    headers['retry-after-ms'] !== undefined ||
    headers['x-ms-retry-after-ms'] !== undefined;
  if (!isTold) return headers;
  const waitMs = readRetryAfter(headers, Date.now());
  if (waitMs !== null) return waitMs <= clientWaitMsMax ? headers : { ...headers, 'x-should-retry': 'false' };
  const { 'retry-after': _after, 'retry-after-ms': _ms, 'x-ms-retry-after-ms': _azure, ...others } = headers;
  return others;
}

/** However many digits: a number that is absurdly large says not to come back, which is not the same as saying nothing. */
function milliseconds(text: string | undefined, unitMs: number): number | null {
  if (text === undefined || !/^\s*\d+(\.\d+)?\s*$/.test(text)) return null;
  return Math.min(Math.ceil(Number(text) * unitMs), Number.MAX_SAFE_INTEGER);
}

/** The three date forms of RFC 9110 5.6.7 all start with a weekday; nothing else is given to Date's lenient parser. */
function untilDate(text: string | undefined, now: number): number | null {
  if (text === undefined || !/^\s*(Mon|Tue|Wed|Thu|Fri|Sat|Sun)/.test(text)) return null;
  // The asctime form names no zone, and would be read in the zone of this machine.
  const at = Date.parse(/GMT\s*$/.test(text) ? text : `${text} GMT`);
  return at > now ? at - now : null;
}
