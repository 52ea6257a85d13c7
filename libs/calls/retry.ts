import { toAbortSignal } from '#libs/kernel/call-signal.ts';
import type { Clock } from '#libs/kernel/clock.ts';
import { isTransient } from '#libs/database/database-error.ts';
import { asGatewayError, GatewayError } from '#libs/kernel/errors.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import { sleep as realSleep } from '#libs/kernel/sleep.ts';
import { BudgetWaitError } from './admission.ts';
import type { ForwardRequest, Outcome, Target, Wait } from './call.ts';
import { callAborted, shuttingDown } from './cancelled.ts';
import { isQuotaUsedUp, probeEveryMs, waitBeforeRetry } from './retry-waits.ts';

// This file decides everything that can send a call to a provider once more: the outcome of an attempt, an answer that
// output guardrails reject, a credential that was rotated, a socket that was closed too early, and an outage of ours.

/** When a call is retried. Every limit is for one call with all its attempts. */
export type RetryPolicy = {
  /** The maximum of attempts. Waits for a rate limit do not count. */
  attemptsMax: number;
  /** Replaces the default statuses: 408, 409, 429 and 500 to 599. */
  statuses?: readonly number[];
  baseDelayMs: number;
  maxDelayMs: number;
  /** No attempt that counts starts at or after this time, by the clock of the retries. */
  deadlineAt: number;
  /**
   * Whether attempts answered with 429 count like all others. Default false: the call waits for as long as it is
   * rate-limited, and is repeated every few minutes, until its signal ends it. For a batch line, that is when its batch
   * expires.
   */
  countsRateLimited?: boolean;
  /** Whether to wait for as long as the provider asks; otherwise only the backoff applies. Default true. */
  obeysRetryAfter?: boolean;
  /**
   * Whether to wait for a random share of the longest wait of each round; otherwise for the longest wait. Default true.
   */
  jitter?: boolean;
  /** The maximum sum of all waits. A wait that would exceed it ends the call. Default: no limit. */
  waitMsMax?: number;
};

// Failures that might not happen again at the next attempt. All others (a forbidden destination, a redirect, an answer that
// is too large, a caller who left) would fail in the same way.
const passing: ReadonlySet<string | null> = new Set([
  'upstream_unreachable',
  'upstream_connection_lost',
  'upstream_truncated',
  'upstream_invalid_response',
  'upstream_error', // The provider reports a failure in a 200.
]);

// Calls rejected here before the provider was called, like failures of the kind `rate_limited`. They are worth another
// attempt after the wait, and do not count as attempts.
const rejected: ReadonlySet<string | null> = new Set([
  'circuit_open',
  'provider_busy',
  'too_many_calls',
  'limits_unavailable',
]);

/** How an outcome counts for retries. */
type Verdict = 'final' | 'retryable' | 'rate_limited';

/** Whether an outcome is retryable at all. `x-should-retry` overrides the status in both directions. */
export function retryVerdict(outcome: Outcome, statuses?: readonly number[]): Verdict {
  if (outcome.kind === 'failed') {
    const { kind, code } = outcome.error;
    if (rejected.has(code) || kind === 'rate_limited') return 'rate_limited';
    // Another answer could be a JSON object, but each one is paid for in full, so it is only requested if the caller's
    // retries list its status.
    if (code === 'json_object_not_met') return statuses?.includes(502) === true ? 'retryable' : 'final';
    return kind === 'provider_timeout' || (kind === 'provider_failed' && passing.has(code)) ? 'retryable' : 'final';
  }
  if (outcome.status < 400) return 'final';
  if (isQuotaUsedUp(outcome.errorCode)) return 'final';
  const shouldRetry = outcome.headers['x-should-retry'];
  if (shouldRetry === 'false') return 'final';
  const listed = statuses ? statuses.includes(outcome.status) : isRetryableStatus(outcome.status);
  if (!listed && shouldRetry !== 'true') return 'final';
  return outcome.status === 429 ? 'rate_limited' : 'retryable';
}

function isRetryableStatus(status: number): boolean {
  return status === 408 || status === 409 || status === 429 || status >= 500;
}

/**
 * Counts the attempts of one call against its policy.
 * @testOnly
 */
export function createRetryBudget(policy: RetryPolicy, random: () => number) {
  let counted = 0;
  let rateLimited = 0;
  let waitedMs = 0;
  const { waitMsMax = Number.POSITIVE_INFINITY } = policy;
  return {
    /**
     * Returns the wait before the next attempt in milliseconds, or null when there is none. `wallNow`: by the system's
     * clock, for a Retry-After that is a date.
     */
    next: (verdict: Verdict, outcome: Outcome, now: number, wallNow = now): number | null => {
      if (verdict === 'final') return null;
      const isUncounted = verdict === 'rate_limited' && policy.countsRateLimited !== true;
      // The provider is not called while a budget is used up or the database is unavailable, so these waits do not
      // grow.
      if (budgetOf(outcome) !== undefined || isOfOutage(outcome)) rateLimited = Math.max(1, rateLimited);
      else if (isUncounted) rateLimited += 1;
      else counted += 1;
      if (counted >= policy.attemptsMax) return null;
      const wait = waitBeforeRetry(policy, { outcome, round: counted + rateLimited, now: wallNow, random });
      if (isUncounted) return Math.ceil(Math.min(wait, probeEveryMs));
      if (now + wait >= policy.deadlineAt || waitedMs + wait > waitMsMax) return null;
      waitedMs += wait;
      return Math.ceil(wait);
    },
    /** Counts an answer that output guardrails rejected. Returns whether another one can be requested. */
    repeatRejected: (status: number): boolean => {
      if (policy.statuses?.includes(status) !== true) return false;
      counted += 1;
      return counted < policy.attemptsMax;
    },
  };
}

/**
 * Returns whether a request can be sent once more after its socket was closed. RFC 9112 9.3.1 lets a client repeat a request
 * that it knows was not processed, even if the method is not idempotent. That is assumed when the socket had been used
 * before, was closed within a second, and no byte was answered: a server that closes an idle socket does not read later
 * data. The remaining risk is a server that read the request and died within that second, which can also happen to a first
 * request. So a request that creates something at the provider (a file, a job, a thread) is never repeated here; its sender
 * first checks whether that exists.
 */
export function canResend(
  { method, isRepeatable, body }: { method: string; isRepeatable?: boolean | undefined; body?: unknown },
  { error, onUsedSocketForMs }: { error: Error; onUsedSocketForMs: number | null },
): boolean {
  return (
    (isRepeatable === true || method === 'GET') &&
    onUsedSocketForMs !== null &&
    onUsedSocketForMs < resendMsMax &&
    'code' in error &&
    lostSocketCodes.has(error.code) &&
    (body === null || body === undefined || typeof body === 'string' || body instanceof Uint8Array)
  );
}

/** If the other side had closed an idle socket, this shows within a round trip. Later, it was working on the call. */
const resendMsMax = 1_000;
const lostSocketCodes: ReadonlySet<unknown> = new Set(['UND_ERR_SOCKET', 'ECONNRESET', 'EPIPE']);

/**
 * Returns a function that is given the status of each answer. The first time that the provider refuses the credential, it
 * resolves with the target and its newer credential, if there is one; otherwise it returns null. AWS answers 403 for an
 * access key that it does not know.
 */
export function createCredentialRenewal(target: Target): (status: number) => Promise<Target | null> | null {
  let isUsed = false;
  return (status) => {
    if (isUsed || target.renewCredential === undefined || (status !== 401 && status !== 403)) return null;
    isUsed = true;
    return target.renewCredential().then((renewed) => (renewed === null ? null : { ...target, ...renewed }));
  };
}

/** For a request that cannot be repeated here, because its body was a stream: its sender repeats it. */
export const rotatedCredential = (label: string): GatewayError =>
  new GatewayError(
    'unavailable',
    'credential_rotated',
    `The credential of ${label} has just been rotated. The new one is used from now on: send the request again.`,
    { retryAfterMs: 100 },
  );

/** Whether the database or a secret manager is unavailable, so that work is repeated until it is available again. */
export const isOutage = (error: unknown): boolean =>
  isTransient(error) || (error instanceof GatewayError && error.kind === 'unavailable');

/** A call that is retried, with its way of waiting and its current target. */
type Repeated = {
  request: Pick<ForwardRequest, 'signal' | 'waitWithoutPermit'>;
  target: { label: string; credentialId?: string } | null;
  model: string | null;
};

/** Makes the retries of one call. */
export type RetryRun = {
  /**
   * Waits before the next attempt. Resolves with null when the attempt can start. Otherwise the call is over, and it
   * resolves with the outcome itself, or, when the call must not continue after its wait (its caller left, this process
   * stops), with a failure that has the same attempts.
   */
  after: (outcome: Outcome) => Promise<Outcome | null>;
  /** Counts an answer that output guardrails rejected. Returns whether another one can be requested immediately. */
  repeatRejected: (status: number) => boolean;
  obeysRetryAfter: boolean | undefined;
};

export type Retries = {
  start: (policy: RetryPolicy, call: Repeated) => RetryRun;
  /** The calls that wait for their next attempt. */
  waiting: () => number;
};

export function createRetries(deps: {
  /** The clock of policy deadlines and of the ends of waits. */
  clock: Clock;
  /** The system's clock, for a Retry-After that is a date. Default: `clock`. */
  wallClock?: Clock | undefined;
  /** Aborts when a credential changes: calls that are rate-limited with the old one are repeated immediately. */
  changeOf?: ((credentialId: string) => AbortSignal) | undefined;
  /** Returns a number from 0 to 1, to spread retries. */
  random: () => number;
  /** Ends all waits. */
  stopping: AbortSignal;
  logger?: Logger | undefined;
  sleep?: ((ms: number, signal: AbortSignal) => Promise<void>) | undefined;
}): Retries {
  const { clock, wallClock = clock, changeOf, random, stopping, logger, sleep = realSleep } = deps;
  let waiting = 0;

  const waitOut = async ({ request, target }: Repeated, what: Wait, waitMs: number): Promise<void> => {
    const ends = [stopping];
    if (what.reason === 'rate_limited' && target?.credentialId !== undefined) {
      const change = changeOf?.(target.credentialId);
      if (change !== undefined) ends.push(change);
    }
    const wait = (signal: AbortSignal): Promise<void> => sleep(waitMs, AbortSignal.any([signal, ...ends]));
    waiting += 1;
    try {
      if (request.waitWithoutPermit === undefined) await wait(toAbortSignal(request.signal));
      else await request.waitWithoutPermit(what, wait);
    } finally {
      waiting -= 1;
    }
  };

  return {
    start(policy, call) {
      const budget = createRetryBudget(policy, random);
      return {
        repeatRejected: budget.repeatRejected,
        obeysRetryAfter: policy.obeysRetryAfter,
        async after(outcome) {
          const verdict = retryVerdict(outcome, policy.statuses);
          const now = clock.now();
          const waitMs = budget.next(verdict, outcome, now, wallClock.now());
          if (waitMs === null) return outcome;
          const { target, model } = call;
          const label = target?.label ?? null;
          const reason = reasonOf(outcome, verdict, policy);
          logger?.debug({ target: label, attempts: outcome.attempts.length, reason, wait_ms: waitMs }, 'call waits');
          let error: GatewayError | null = null;
          try {
            const budget = budgetOf(outcome);
            const what = { reason, label, model, untilMs: now + waitMs, ...(budget && { budget }) };
            await waitOut(call, what, waitMs);
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
  if (budgetOf(outcome) !== undefined) return 'budget_used_up';
  if (isOfOutage(outcome)) return 'gateway';
  return verdict === 'rate_limited' && policy.countsRateLimited !== true ? 'rate_limited' : 'retry';
}

/** Names the used-up budget of ours. Only a call that waits for budgets gets this as a retryable error. */
const budgetOf = (outcome: Outcome): string | undefined =>
  outcome.kind === 'failed' && outcome.error instanceof BudgetWaitError ? outcome.error.message : undefined;

/** Budgets and rates cannot be checked because the database is unavailable. */
const isOfOutage = (outcome: Outcome): boolean =>
  outcome.kind === 'failed' && outcome.error.code === 'limits_unavailable';
