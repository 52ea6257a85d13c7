import type { Clock } from '#libs/kernel/clock.ts';
import { asGatewayError, type GatewayError } from '#libs/kernel/errors.ts';
import type { Logger } from '#libs/kernel/logger.ts';
import { sleep as realSleep } from '#libs/kernel/sleep.ts';
import type { ForwardRequest, Outcome, Wait } from './call.ts';
import { callAborted, shuttingDown } from './cancelled.ts';
import { isQuotaUsedUp, waitBeforeRetry } from './retry-waits.ts';

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

// Failures that another attempt may not meet again. Everything else (a refused destination, a redirect, an answer too
// large, a caller who left) would end the same way.
const passing: ReadonlySet<string | null> = new Set([
  'upstream_unreachable',
  'upstream_connection_lost',
  'upstream_truncated',
  'upstream_invalid_response',
  'upstream_error', // the provider says in a 200 that it failed
]);

// Rejected here before the provider was called, as are failures of the kind `rate_limited`: worth another attempt when that
// is over, and none of those that count.
const rejected: ReadonlySet<string | null> = new Set(['circuit_open', 'provider_busy', 'too_many_calls']);

/** How an outcome counts for retries. */
export type Verdict = 'final' | 'retryable' | 'rate_limited';

/** Whether an outcome may be tried again at all. `x-should-retry` beats the status both ways. */
export function judge(outcome: Outcome, statuses?: readonly number[]): Verdict {
  if (outcome.kind === 'failed') {
    const { kind, code } = outcome.error;
    if (rejected.has(code) || kind === 'rate_limited') return 'rate_limited';
    // Another answer may be one, but each is paid for in full: only for callers whose own retries have its status.
    if (code === 'json_object_not_met') return statuses?.includes(502) === true ? 'retryable' : 'final';
    return kind === 'provider_timeout' || (kind === 'provider_failed' && passing.has(code)) ? 'retryable' : 'final';
  }
  if (outcome.status < 400) return 'final';
  if (isQuotaUsedUp(outcome.errorCode)) return 'final';
  const told = outcome.headers['x-should-retry'];
  if (told === 'false') return 'final';
  const listed = statuses ? statuses.includes(outcome.status) : isRetryableStatus(outcome.status);
  if (!listed && told !== 'true') return 'final';
  return outcome.status === 429 ? 'rate_limited' : 'retryable';
}

function isRetryableStatus(status: number): boolean {
  return status === 408 || status === 409 || status === 429 || status >= 500;
}

/** Counts one call's attempts against its policy. */
export function createRetryBudget(policy: RetryPolicy, random: () => number) {
  let counted = 0;
  let rateLimited = 0;
  let waitedMs = 0;
  const { waitMsMax = Number.POSITIVE_INFINITY } = policy;
  return {
    /** The wait before the next attempt in milliseconds, or null when there is none. */
    next: (verdict: Verdict, outcome: Outcome, now: number): number | null => {
      if (verdict === 'final') return null;
      if (verdict === 'rate_limited' && policy.countsRateLimited !== true) rateLimited += 1;
      else counted += 1;
      if (counted >= policy.attemptsMax || rateLimited >= (policy.rateLimitedMax ?? defaultRateLimitedMax)) return null;
      const wait = waitBeforeRetry(policy, { outcome, round: counted + rateLimited, now, random });
      if (now + wait >= policy.deadlineAt || waitedMs + wait > waitMsMax) return null;
      waitedMs += wait;
      return Math.ceil(wait);
    },
  };
}

/** What is made again: how it waits, and where it goes by then. */
type Repeated = {
  request: Pick<ForwardRequest, 'signal' | 'waitWithoutPermit'>;
  target: { label: string } | null;
  model: string | null;
};

/** The retries of one call. */
export type RetryRun = {
  /**
   * Waits before the next attempt. null: it may be made now. Otherwise the call is over: the outcome itself, or, when the
   * call is not to go on after its wait (its caller left, this process stops), a failure with the same attempts.
   */
  after: (outcome: Outcome) => Promise<Outcome | null>;
};

export type Retries = {
  start: (policy: RetryPolicy, call: Repeated) => RetryRun;
  /** Calls that wait for their next attempt. */
  waiting: () => number;
};

export function createRetries(deps: {
  clock: Clock;
  /** From 0 to 1: spreads retries. */
  random: () => number;
  /** Ends all waits. */
  stopping: AbortSignal;
  logger?: Logger | undefined;
  sleep?: ((ms: number, signal: AbortSignal) => Promise<void>) | undefined;
}): Retries {
  const { clock, random, stopping, logger, sleep = realSleep } = deps;
  let waiting = 0;

  const waitOut = async ({ request }: Repeated, what: Wait, waitMs: number): Promise<void> => {
    const wait = (signal: AbortSignal): Promise<void> => sleep(waitMs, AbortSignal.any([signal, stopping]));
    waiting += 1;
    try {
      if (request.waitWithoutPermit === undefined) await wait(request.signal);
      else await request.waitWithoutPermit(what, wait);
    } finally {
      waiting -= 1;
    }
  };

  return {
    start(policy, call) {
      const budget = createRetryBudget(policy, random);
      return {
        async after(outcome) {
          const verdict = judge(outcome, policy.statuses);
          const now = clock.now();
          const waitMs = budget.next(verdict, outcome, now);
          if (waitMs === null) return outcome;
          const { target, model } = call;
          const label = target?.label ?? null;
          const reason = reasonOf(outcome, verdict, policy);
          logger?.debug({ target: label, attempts: outcome.attempts.length, reason, wait_ms: waitMs }, 'call waits');
          let error: GatewayError | null = null;
          try {
            await waitOut(call, { reason, label, model, untilMs: now + waitMs }, waitMs);
          } catch (cause) {
            error = asGatewayError(cause);
          }
          if (stopping.aborted) error = shuttingDown();
          if (call.request.signal.aborted) error = callAborted(label);
          return error === null ? null : { kind: 'failed', error, attempts: outcome.attempts };
        },
      };
    },
    waiting: () => waiting,
  };
}

function reasonOf(outcome: Outcome, verdict: Verdict, policy: RetryPolicy): Wait['reason'] {
  if (outcome.kind === 'failed' && outcome.error.code === 'circuit_open') return 'circuit_open';
  return verdict === 'rate_limited' && policy.countsRateLimited !== true ? 'rate_limited' : 'retry';
}
