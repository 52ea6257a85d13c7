import type { Answer, Failure, Outcome } from './call.ts';

/** How a call ended, as far as waits and circuits need to know; null if it was never made. */
export type Ended =
  | (Pick<Answer, 'status' | 'headers' | 'errorCode'> & Partial<Pick<Answer, 'usage'>>)
  | Pick<Failure, 'kind' | 'error'>
  | null;

// A longer wait is shortened to a day.
const rateLimitWaitMsMax = 86_400_000;

/**
 * How often a call is let through during a rate-limit wait, in milliseconds. Providers ask for a day, or for a century,
 * and can lift their limit long before that.
 */
export const probeEveryMs = 300_000;

// Waiting does not help when the money or quota of an account is used up, so these are not retried.
const quotaCodes: ReadonlySet<string> = new Set([
  'insufficient_quota',
  'credit_balance_exhausted',
  'billing_hard_limit_reached',
]);

/** Whether a provider's error code means that the account has no money or quota left. */
export const isQuotaUsedUp = (errorCode: string | null | undefined): boolean =>
  typeof errorCode === 'string' && quotaCodes.has(errorCode);

/**
 * Returns how long a provider asks us to wait, in milliseconds: `retry-after-ms`, its Azure form, or `retry-after` in
 * seconds or as an HTTP date. null when it is absent, negative, in the past or malformed; the caller applies its own
 * rule in that case.
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
 * Returns for how long the credential and model of this call must not be called, in milliseconds, according to a 429.
 * `now` is the system's clock, which dates refer to. null: the answer has no wait, or waiting would not help because
 * the quota is used up.
 */
export function rateLimitWaitMs(ended: Ended, now: number): number | null {
  if (ended === null || 'error' in ended || ended.status !== 429 || isQuotaUsedUp(ended.errorCode)) return null;
  const retryAfterMs = readRetryAfter(ended.headers, now);
  return retryAfterMs === null ? null : Math.min(retryAfterMs, rateLimitWaitMsMax);
}

/** Returns when to try again according to an outcome, in milliseconds; null if it names no time. */
const retryAfterOf = (outcome: Outcome, now: number): number | null =>
  outcome.kind === 'failed' ? (outcome.error.retryAfterMs ?? null) : readRetryAfter(outcome.headers, now);

type WaitPolicy = {
  baseDelayMs: number;
  maxDelayMs: number;
  /** Whether to wait for as long as the provider asks; otherwise only the backoff applies. Default true. */
  obeysRetryAfter?: boolean;
  /**
   * Whether to wait for a random share of the longest wait of each round; otherwise for the longest wait. Default true.
   */
  jitter?: boolean;
};

/**
 * Returns the wait before attempt `round` + 1 in milliseconds: exponential, and never shorter than the provider asks. A
 * random time is added to the provider's wait, so that callers with the same retry time do not all return together.
 */
export function waitBeforeRetry(
  policy: WaitPolicy,
  { outcome, round, now, random }: { outcome: Outcome; round: number; now: number; random: () => number },
): number {
  const { obeysRetryAfter = true, jitter = true } = policy;
  const ceiling = Math.min(policy.maxDelayMs, policy.baseDelayMs * 2 ** Math.min(round - 1, 30));
  const retryAfterMs = obeysRetryAfter ? retryAfterOf(outcome, now) : null;
  if (retryAfterMs === null) return ceiling / 2 + (jitter ? random() : 1) * (ceiling / 2);
  // Without jitter the wait is exactly what the provider asked for.
  return retryAfterMs + (jitter ? random() : 0) * Math.max(ceiling, retryAfterMs / 4);
}

/**
 * Returns a wait, in milliseconds, for a time that many calls wait for: slightly longer by a random amount, never
 * shorter.
 */
export const spreadWait = (ms: number, random: () => number): number =>
  Math.ceil(ms + random() * Math.min(2_000, ms / 4));

// openai-python ignores a longer wait, and openai-node 6 sleeps for the whole time. Both obey x-should-retry first.
const clientWaitMsMax = 60_000;

/**
 * Returns a provider's headers for the client, without an invalid Retry-After (SDKs read -5 as "immediately"). A wait
 * of more than a minute stays in the headers for clients that plan with it, but SDKs are instructed not to retry.
 */
export function withRetryAdvice(headers: Record<string, string>): Record<string, string> {
  const isReported =
    headers['retry-after'] !== undefined ||
    headers['retry-after-ms'] !== undefined ||
    headers['x-ms-retry-after-ms'] !== undefined;
  if (!isReported) return headers;
  const waitMs = readRetryAfter(headers, Date.now());
  if (waitMs !== null) return waitMs <= clientWaitMsMax ? headers : { ...headers, 'x-should-retry': 'false' };
  const { 'retry-after': _after, 'retry-after-ms': _ms, 'x-ms-retry-after-ms': _azure, ...others } = headers;
  return others;
}

/**
 * A number with any number of digits is accepted, because an absurdly large one still means "do not come back soon".
 */
function milliseconds(text: string | undefined, unitMs: number): number | null {
  if (text === undefined || !/^\s*\d+(\.\d+)?\s*$/.test(text)) return null;
  return Math.min(Math.ceil(Number(text) * unitMs), Number.MAX_SAFE_INTEGER);
}

/**
 * The three date formats of RFC 9110 5.6.7 all start with a weekday. Nothing else is passed to Date's lenient parser.
 */
function untilDate(text: string | undefined, now: number): number | null {
  if (text === undefined || !/^\s*(Mon|Tue|Wed|Thu|Fri|Sat|Sun)/.test(text)) return null;
  // The asctime format has no time zone, and would be read in that of this machine.
  const at = Date.parse(/GMT\s*$/.test(text) ? text : `${text} GMT`);
  return at > now ? at - now : null;
}
