import type { Clock } from '#libs/kernel/clock.ts';
import { asGatewayError, GatewayError } from '#libs/kernel/errors.ts';
import type { Logger } from '#libs/kernel/logger.ts';
import { sleep as realSleep } from '#libs/kernel/sleep.ts';
import type { Provider } from '#libs/providers/provider.ts';
import { findProvider } from '#libs/providers/registry.ts';
import { namesForHeader } from '#libs/calls/upstream/answer-headers.ts';
import type { AnswerThreads } from '#libs/calls/upstream/answer-threads.ts';
import { toStream } from '#libs/calls/upstream/answer-whole.ts';
import { attemptCall, type AttemptInput } from '#libs/calls/upstream/attempt.ts';
import {
  defaultLimits,
  type Answer,
  type Attempt,
  type ForwardRequest,
  type Limits,
  type Outcome,
  type Target,
} from './call.ts';
import type { Egress } from '#libs/calls/upstream/egress.ts';
import { plainRequest, type PlainAnswer, type PlainRequest } from '#libs/calls/upstream/plain-request.ts';
import { prepareCall } from '#libs/calls/upstream/prepare-call.ts';
import { lazyFaultsOf } from '#libs/calls/upstream/provider-faults.ts';
import { relay, type RelayAnswer, type RelayRequest } from '#libs/calls/upstream/relay.ts';
import { createRetryBudget, judge, type RetryPolicy } from './retry.ts';
import type { Pass, Traffic } from '#libs/calls/protect/traffic/traffic.ts';

type Deps = {
  egress: Egress;
  clock: Clock;
  /** From 0 to 1: spreads retries. */
  random: () => number;
  limits?: Partial<Limits>;
  logger?: Logger;
  sleep?: (ms: number, signal: AbortSignal) => Promise<void>;
  /** Where answers are read that would hold up other calls. Absent: they are read where they come. */
  threads?: AnswerThreads;
  /** Tests bring providers of their own. */
  providers?: (id: string) => Provider | undefined;
  /** Who may call when; of targets with a `credentialId`. Absent: everybody, always. */
  traffic?: Pick<Traffic, 'enter' | 'stop'>;
};

export type Forwarder = {
  /**
   * Makes a call, and by policy repeats it, until there is an answer or no hope of one. Never rejects: no answer is
   * `kind: 'failed'`. For callers that record what happened (a batch line, the request log).
   */
  settle: (request: ForwardRequest, target: Target, policy?: RetryPolicy) => Promise<Outcome>;
  /**
   * As `settle`, but throws the GatewayError of a call without an answer: invalid_request, unsupported_operation,
   * provider_failed, provider_timeout, or unavailable (the caller left, this process is stopping).
   */
  forward: (request: ForwardRequest, target: Target, policy?: RetryPolicy) => Promise<Answer>;
  /** GET /models of the target, in OpenAI's list shape; seconds and megabytes instead of minutes and more. */
  listModels: (target: Target, signal: AbortSignal) => Promise<Answer>;
  /** One call to a pass-through area; see `relay`. Throws as `forward`. */
  relay: (request: RelayRequest, target: Target) => Promise<RelayAnswer>;
  /** One request for files or fine-tuning; see `plainRequest`. Throws as `forward`. */
  request: (target: Target, request: PlainRequest) => Promise<PlainAnswer>;
  counters: () => { openCalls: number; openStreams: number; waitingRetries: number; sockets: number };
  /** Refuses new calls and ends the waits between attempts with `shutting_down`; calls under way go on. Idempotent. */
  stop: () => void;
};

const modelsTimeouts = { connectMs: 5_000, headersMs: 10_000, idleMs: 5_000, totalMs: 20_000 };

/** The one forwarding core, for live calls and batch lines alike. Without a policy a call is exactly one provider call. */
export function createForwarder(deps: Deps): Forwarder {
  const { egress, clock, random, logger, sleep = realSleep, providers = findProvider, traffic, threads } = deps;
  const limits: Limits = { ...defaultLimits, ...deps.limits };
  const relayLimits = { errorBytesMax: limits.errorBytesMax, bodyBytesMax: limits.streamBytesMax };
  const stopping = new AbortController();
  const parts = { egress, clock, limits, providers, threads, stopping: stopping.signal };
  let openCalls = 0;
  let openStreams = 0;
  let waitingRetries = 0;

  const makeAttempt = async (
    made: AttemptInput | Promise<AttemptInput>,
    attempts: Attempt[],
  ): Promise<[Outcome, string | null]> => {
    let startedAt = clock.now();
    let start = performance.now();
    const record = (status: number | null, errorCode: string | null): void => {
      attempts.push({ startedAt, durationMs: performance.now() - start, status, errorCode });
    };
    const resent = (): void => {
      record(null, 'upstream_connection_lost');
      startedAt = clock.now();
      start = performance.now();
    };
    try {
      const input = made instanceof Promise ? await made : made;
      const { answer, errorCode } = await attemptCall(input, resent);
      const { dropped } = input.outbound;
      if (dropped?.length) answer.headers['x-gateway-dropped-params'] = namesForHeader(dropped);
      record(answer.status, errorCode);
      return [answer, errorCode];
    } catch (error) {
      if (!(error instanceof GatewayError)) {
        record(null, 'internal_error');
        throw error;
      }
      // A request that was not fit to be sent, or for which there was no connection, is no attempt.
      if (error.kind !== 'invalid_request' && error.code !== 'too_many_calls') record(null, error.code);
      return [{ kind: 'failed', error, attempts }, error.code];
    }
  };

  const settle: Forwarder['settle'] = async (request, target, policy) => {
    const attempts: Attempt[] = [];
    openCalls += 1;
    try {
      const { nextInput, hold } = prepareCall(parts, request, target, attempts);
      const budget = policy && createRetryBudget(policy, random);
      for (;;) {
        const entered =
          target.credentialId === undefined ? undefined : traffic?.enter(request, target, policy?.obeysRetryAfter);
        const pass = entered instanceof Promise ? await entered : entered;
        let outcome: Outcome | null = null;
        let errorCode: string | null = null;
        try {
          [outcome, errorCode] = await makeAttempt(nextInput(), attempts);
        } finally {
          if (pass !== undefined) leave(pass, outcome, errorCode);
        }
        // Behind the circuit breaker: the provider has answered, only not what was asked for.
        if (hold !== null) outcome = hold(outcome);
        const verdict = judge(outcome, errorCode, policy?.statuses);
        const waitMs = budget?.next(verdict, outcome, clock.now()) ?? null;
        if (waitMs === null) return counted(hold !== null && request.stream ? toStream(outcome, request) : outcome);
        logger?.debug(
          { target: target.label, attempt: attempts.length, code: errorCode, wait_ms: waitMs },
          'call waits',
        );
        const wait = (signal: AbortSignal): Promise<void> => sleep(waitMs, AbortSignal.any([signal, stopping.signal]));
        waitingRetries += 1;
        try {
          if (request.aside === undefined) await wait(request.signal);
          else {
            const isCounted = verdict !== 'rate_limited' || policy?.countsRateLimited === true;
            const reason = isCounted ? 'retry' : 'rate_limited';
            const model = target.model ?? request.model;
            await request.aside({ reason, label: target.label, model, untilMs: clock.now() + waitMs }, wait);
          }
        } finally {
          waitingRetries -= 1;
        }
        if (request.signal.aborted) throw lazyFaultsOf(target.label, [])().callerLeft();
        if (stopping.signal.aborted) throw lazyFaultsOf(target.label, [])().stopping();
      }
    } catch (error) {
      return { kind: 'failed', error: asGatewayError(error), attempts };
    } finally {
      openCalls -= 1;
    }
  };

  const counted = (outcome: Outcome): Outcome => {
    if (outcome.kind === 'stream') {
      openStreams += 1;
      void outcome.done.then(() => {
        openStreams -= 1;
      });
    }
    return outcome;
  };

  const forward: Forwarder['forward'] = async (request, target, policy) => {
    const outcome = await settle(request, target, policy);
    if (outcome.kind === 'failed') throw outcome.error;
    return outcome;
  };

  return {
    settle,
    forward,
    listModels: (target, signal) =>
      forward(
        {
          operation: 'models',
          body: Buffer.alloc(0),
          model: null,
          stream: false,
          includeUsage: false,
          signal,
          timeouts: modelsTimeouts,
        },
        target,
      ),
    request: async (target, request) => {
      if (stopping.signal.aborted) throw lazyFaultsOf(target.label, [])().stopping();
      openCalls += 1;
      try {
        return await plainRequest({ egress, clock, providers }, request, target);
      } finally {
        openCalls -= 1;
      }
    },
    relay: async (request, target) => {
      if (stopping.signal.aborted) throw lazyFaultsOf(target.label, [])().stopping();
      openCalls += 1;
      try {
        const pass = target.credentialId === undefined ? undefined : await traffic?.enter(request, target);
        try {
          const answer = await relay({ egress, clock, providers, ...relayLimits }, request, target);
          void answer.done.then(() => pass?.leave(answer, answer.attempt.errorCode));
          return answer;
        } catch (error) {
          pass?.leave(null, null);
          throw error;
        }
      } finally {
        openCalls -= 1;
      }
    },
    counters: () => ({ openCalls, openStreams, waitingRetries, sockets: egress.stats().sockets }),
    stop: () => {
      stopping.abort();
      traffic?.stop();
    },
  };
}

/** Gives a place back; that of a stream when it has ended. */
function leave(pass: Pass, outcome: Outcome | null, errorCode: string | null): void {
  if (outcome?.kind !== 'stream') return pass.leave(outcome, errorCode);
  pass.begun?.();
  void outcome.done.then(({ error }) => pass.leave(error ? { kind: 'failed', error } : outcome, null));
}
