import {
  defaultLimits,
  type Attempt,
  type ForwardRequest,
  type Limits,
  type Outcome,
  type Target,
} from '#libs/calls/call.ts';
import { defaultTimeouts, type Timeouts } from '#libs/calls/timeouts.ts';
import { shuttingDown } from '#libs/calls/cancelled.ts';
import type { Clock } from '#libs/kernel/clock.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { Provider } from '#libs/providers/provider.ts';
import { findProvider } from '#libs/providers/registry.ts';
import { namesForHeader } from './answer-headers.ts';
import type { AnswerThreads } from './answer-threads.ts';
import { attemptCall } from './attempt.ts';
import type { Egress } from './egress.ts';
import { plainRequest, type PlainAnswer, type PlainRequest } from './plain-request.ts';
import { prepareCall, type PreparedCall } from './prepare-call.ts';
import { relay } from './relay.ts';

export type SenderDeps = {
  egress: Egress;
  clock: Clock;
  limits?: Partial<Limits>;
  /** Of the process; what a call brings counts over them. */
  timeouts?: Timeouts;
  /** Where answers are read that would hold up other calls. Absent: they are read where they come. */
  threads?: AnswerThreads;
  /** Tests bring providers of their own. */
  providers?: (id: string) => Provider | undefined;
};

/** Sends requests to providers, and nothing more: no retries, no limits. */
export type Sender = {
  /** Makes a call ready for its attempts, which are recorded in `attempts`. Throws as `prepareCall`. */
  prepare: (request: ForwardRequest, target: Target, attempts: Attempt[]) => PreparedCall;
  /** Makes one attempt of a prepared call. Rejects only for bugs: no answer is `kind: 'failed'`. */
  attempt: (prepared: PreparedCall, attempts: Attempt[]) => Promise<Outcome>;
  /** One request for files or fine-tuning; see `plainRequest`. */
  request: (target: Target, request: PlainRequest) => Promise<PlainAnswer>;
  openRequests: () => number;
  sockets: () => number;
  /** Aborted when this process begins no more calls; those under way go on. */
  stopping: AbortSignal;
  /** Idempotent. */
  stop: () => void;
};

export function createSender(deps: SenderDeps): Sender {
  const { egress, clock, timeouts = defaultTimeouts, threads, providers = findProvider } = deps;
  const limits: Limits = { ...defaultLimits, ...deps.limits };
  const stopping = new AbortController();
  const parts = { egress, clock, limits, timeouts, providers, threads, stopping: stopping.signal };
  let openRequests = 0;

  const attempt: Sender['attempt'] = async ({ nextInput }, attempts) => {
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
      const made = nextInput();
      const input = made instanceof Promise ? await made : made;
      const answer = await ('relayed' in input ? relay(input, resent) : attemptCall(input, resent));
      if ('outbound' in input) {
        const { dropped } = input.outbound;
        if (dropped?.length) answer.headers['x-gateway-dropped-params'] = namesForHeader(dropped);
      }
      record(answer.status, answer.errorCode ?? null);
      return answer;
    } catch (error) {
      if (!(error instanceof GatewayError)) {
        record(null, 'internal_error');
        throw error;
      }
      // A request that was not fit to be sent, or for which there was no connection, is no attempt.
      if (error.kind !== 'invalid_request' && error.code !== 'too_many_calls') record(null, error.code);
      return { kind: 'failed', error, attempts };
    }
  };

  return {
    prepare: (request, target, attempts) => prepareCall(parts, request, target, attempts),
    attempt,
    async request(target, request) {
      if (stopping.signal.aborted) throw shuttingDown();
      openRequests += 1;
      try {
        return await plainRequest({ egress, clock, providers, timeouts }, request, target);
      } finally {
        openRequests -= 1;
      }
    },
    openRequests: () => openRequests,
    sockets: () => egress.stats().sockets,
    stopping: stopping.signal,
    stop: () => stopping.abort(),
  };
}
