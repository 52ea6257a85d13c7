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
import { namesForHeader } from './answers/answer-headers.ts';
import type { AnswerThreads } from './answers/answer-threads.ts';
import { attemptCall } from './attempt.ts';
import type { SendWatch } from './egress/exchange.ts';
import type { Egress } from './egress/egress.ts';
import { plainRequest, type PlainAnswer, type PlainRequest } from './egress/plain-request.ts';
import { prepareCall, type PreparedCall } from './prepare-call.ts';
import { relay } from './relay/relay.ts';

export type SenderDeps = {
  egress: Egress;
  clock: Clock;
  limits?: Partial<Limits>;
  /** The timeouts of the process, which a call can override. */
  timeouts?: Timeouts;
  /** Threads for answers that would block other calls. Absent: every answer is read in the main thread. */
  threads?: AnswerThreads;
  /** Tests use their own providers. */
  providers?: (id: string) => Provider | undefined;
};

/** Sends requests to providers and does nothing else: no retries, no limits. */
export type Sender = {
  /** Makes a call ready for its attempts, which are recorded in `attempts`. Throws like `prepareCall`. */
  prepare: (request: ForwardRequest, target: Target, attempts: Attempt[]) => PreparedCall;
  /** Makes one attempt of a prepared call. Rejects only for bugs: a call without an answer has `kind: 'failed'`. */
  attempt: (prepared: PreparedCall, attempts: Attempt[]) => Promise<Outcome>;
  /** Makes one request for files or fine-tuning; see `plainRequest`. */
  request: (target: Target, request: PlainRequest) => Promise<PlainAnswer>;
  openRequests: () => number;
  sockets: () => number;
  /** Aborted when this process starts no more calls. Running calls continue. */
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

  return {
    prepare: (request, target, attempts) => prepareCall(parts, request, target, attempts),
    attempt: (prepared, attempts) => new AttemptRun(clock, prepared, attempts).make(),
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

const lost: Partial<Attempt> = { isLost: true };

/** Makes one attempt of a call and records it. A class because one is made for every call. */
class AttemptRun implements SendWatch {
  readonly #clock: Clock;
  readonly #prepared: PreparedCall;
  readonly #attempts: Attempt[];
  #startedAt: number;
  #start = performance.now();
  #isSent = false;

  constructor(clock: Clock, prepared: PreparedCall, attempts: Attempt[]) {
    this.#clock = clock;
    this.#prepared = prepared;
    this.#attempts = attempts;
    this.#startedAt = clock.now();
  }

  async make(): Promise<Outcome> {
    try {
      const input = await this.#prepared.nextInput();
      const answer = await ('relayed' in input ? relay(input, this) : attemptCall(input, this));
      if ('outbound' in input) {
        const { dropped } = input.outbound;
        if (dropped?.length) answer.headers['x-gateway-dropped-params'] = namesForHeader(dropped);
      }
      const { status, errorCode = null, usage } = answer;
      if (usage === null) this.#record(status, errorCode);
      else this.#record(status, errorCode, { paid: { responseModel: answer.model, usage } });
      return answer;
    } catch (error) {
      return this.#fail(error);
    }
  }

  sent(): void {
    this.#isSent = true;
  }

  resent(): void {
    this.#isSent = false;
    this.#record(null, 'upstream_connection_lost');
    this.#startedAt = this.#clock.now();
    this.#start = performance.now();
  }

  #fail(error: unknown): Outcome {
    if (!(error instanceof GatewayError)) {
      this.#record(null, 'internal_error', this.#isSent ? lost : undefined);
      throw error;
    }
    // A request that could not be sent, or for which there was no connection, is not an attempt.
    if (this.#isSent) this.#record(null, error.code, lost);
    else if (error.kind !== 'invalid_request' && error.code !== 'too_many_calls') this.#record(null, error.code);
    return { kind: 'failed', error, attempts: this.#attempts };
  }

  #record(status: number | null, errorCode: string | null, more?: Partial<Attempt>): void {
    const { target, model } = this.#prepared;
    this.#attempts.push({
      startedAt: this.#startedAt,
      durationMs: performance.now() - this.#start,
      status,
      errorCode,
      to: { target, model },
      ...more,
    });
  }
}
