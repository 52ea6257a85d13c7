import type { IncomingHttpHeaders } from 'node:http';
import type { Dispatcher } from 'undici';
import type { CallSignal } from '#libs/kernel/call-signal.ts';
import { Deadline, type Deadlines } from '#libs/kernel/deadlines.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { OutboundRequest } from '#libs/providers/provider.ts';
import type { Timeouts } from '#libs/calls/timeouts.ts';
import type { CallHandler, ConnectingCall } from './connection-call.ts';
import type { Egress } from './egress.ts';
import type { Faults } from '../provider-faults.ts';
import { transportFault } from './transport-fault.ts';

/** Controls the answer while it arrives. */
export type Flow = {
  pause: () => void;
  resume: () => void;
  /** Ends the exchange as failed and closes its socket. */
  abort: (error: GatewayError) => void;
  /**
   * Ends the exchange successfully although the answer can continue (a stream after `[DONE]`). No deadline or abort
   * applies any more, and the connection of a provider that does not end its answer within a second is closed.
   */
  finish: () => void;
  /** The answer is complete, or a stream has begun: `answerMs` no longer applies. */
  answered: () => void;
};

/**
 * Receives an answer: `head` once, `data` any number of times, then exactly one of `end` and `fail`, unless it is
 * finished.
 */
export type Sink = {
  head: (status: number, headers: IncomingHttpHeaders, flow: Flow) => void;
  data: (chunk: Buffer) => void;
  end: () => void;
  fail: (error: GatewayError) => void;
};

/** Follows a request until its answer begins. */
export type SendWatch = {
  /** The request is on its way. Called again after `resent`. */
  sent: () => void;
  /** The provider had closed the idle socket, and the request is sent once more. Called before `head`, at most once. */
  resent: () => void;
};

const lingerMs = 1_000;
/**
 * A server that reports every ten seconds that it is working (102) can do so for as long as the maximum duration of an
 * answer.
 */
const interimAnswersMax = 200;

type Options = {
  timeouts: Timeouts;
  signal: CallSignal;
  faults: () => Faults;
  workspaceId: string | undefined;
  /** The same as in `CallOptions`. */
  isRepeatable?: boolean;
  watch?: SendWatch;
};

/**
 * Sends one request and passes the answer to the sink. Every error arrives as one GatewayError at `fail`:
 * provider_failed, provider_timeout, `call_aborted` when the signal aborts, or the errors of the sink's own methods.
 * Never throws or retries. A redirect or a compressed answer is an error.
 */
export function startExchange(egress: Egress, outbound: OutboundRequest, options: Options, sink: Sink): void {
  new Exchange(options, sink, egress.deadlines).start(egress, outbound);
}

// A class because one is made for every call, and its methods are shared.
class Exchange implements CallHandler, Flow {
  readonly #options: Options;
  readonly #sink: Sink;
  #phase: 'waiting' | 'sent' | 'answering' | 'finished' | 'closed' = 'waiting';
  #controller: Dispatcher.DispatchController | null = null;
  #connecting: ConnectingCall | null = null;
  #interimAnswers = 0;
  readonly #deadline: Deadline;
  readonly #startedAt = performance.now();
  /** After this time, `onDeadline` is called. */
  #dueMs = 0;
  #isAnswered = false;

  constructor(options: Options, sink: Sink, deadlines: Deadlines) {
    this.#deadline = new Deadline(deadlines, this);
    this.#options = options;
    this.#sink = sink;
  }

  start(egress: Egress, outbound: OutboundRequest): void {
    const { timeouts, signal, faults, workspaceId, isRepeatable } = this.#options;
    if (signal.aborted) return this.#fail(faults().callerLeft());
    this.#setDeadline();
    signal.addEventListener('abort', this);
    egress.dispatch(
      {
        origin: outbound.origin,
        workspaceId,
        isRepeatable,
        path: outbound.path,
        method: outbound.method,
        headers: outbound.headers,
        body: outbound.body,
        headersTimeout: timeouts.headersMs,
        bodyTimeout: timeouts.idleMs,
      },
      this,
    );
  }

  answered(): void {
    this.#isAnswered = true;
  }

  pause(): void {
    this.#controller?.pause();
  }

  resume(): void {
    this.#controller?.resume();
  }

  abort(error: GatewayError): void {
    this.#fail(error);
    if (this.#controller === null) this.#connecting?.abort(error);
    else this.#controller.abort(error);
  }

  finish(): void {
    if (this.#isOver()) return;
    this.#close();
    this.#phase = 'finished';
    this.#deadline.set(lingerMs);
  }

  onConnecting(call: ConnectingCall): void {
    this.#connecting = call;
    if (this.#phase === 'closed') call.abort(this.#options.faults().callerLeft());
  }

  onRequestStart(controller: Dispatcher.DispatchController): void {
    if (this.#phase === 'closed') return controller.abort(this.#options.faults().callerLeft());
    this.#controller = controller;
    this.#phase = 'sent';
    this.#options.watch?.sent();
  }

  onResent(): void {
    if (this.#phase !== 'sent') return;
    this.#controller = null;
    this.#phase = 'waiting';
    this.#options.watch?.resent();
  }

  onResponseStart(_controller: unknown, status: number, headers: IncomingHttpHeaders): void {
    if (this.#phase !== 'sent') return;
    const { faults } = this.#options;
    if (status < 200) {
      this.#interimAnswers += 1;
      if (this.#interimAnswers <= interimAnswersMax) return;
      return this.abort(faults().invalid('sent too many interim answers (1xx)'));
    }
    this.#phase = 'answering';
    try {
      checkHead(status, headers, faults);
      this.#sink.head(status, headers, this);
    } catch (error) {
      this.abort(this.#toFault(error));
    }
  }

  onResponseData(_controller: unknown, chunk: Buffer): void {
    if (this.#phase !== 'answering') return;
    try {
      this.#sink.data(chunk);
    } catch (error) {
      this.abort(this.#toFault(error));
    }
  }

  onResponseEnd(): void {
    const wasReported = this.#isOver();
    this.#close();
    if (wasReported) return;
    try {
      this.#sink.end();
    } catch (error) {
      this.#sink.fail(this.#toFault(error));
    }
  }

  onResponseError(_controller: unknown, error: Error): void {
    const { timeouts, faults } = this.#options;
    this.#fail(transportFault(error, this.#phase === 'answering', timeouts, faults));
  }

  onDeadline(): void {
    const { timeouts, faults } = this.#options;
    const { answerMs, connectMs, totalMs } = timeouts;
    const due = this.#dueMs;
    if (this.#phase === 'finished') this.handleEvent();
    else if (this.#phase === 'waiting' && due === Math.min(connectMs, totalMs))
      this.abort(faults().connectTimeout(due));
    else if (due === answerMs && !this.#isAnswered) this.abort(faults().answerTimeout(due));
    else if (due === totalMs) this.abort(faults().totalTimeout(due));
    else this.#setDeadline();
  }

  /** The signal has aborted. */
  handleEvent(): void {
    this.abort(this.#options.faults().callerLeft());
  }

  /** Sets the next deadline of the attempt: for its connection, its answer, or all of it. */
  #setDeadline(): void {
    const { answerMs = Infinity, connectMs, totalMs } = this.#options.timeouts;
    let next = totalMs;
    if (connectMs > this.#dueMs && connectMs < next) next = connectMs;
    if (answerMs > this.#dueMs && answerMs < next) next = answerMs;
    this.#dueMs = next;
    this.#deadline.set(next - (performance.now() - this.#startedAt));
  }

  /** Whether `end`, `fail` or `finish` was called. */
  #isOver(): boolean {
    return this.#phase === 'finished' || this.#phase === 'closed';
  }

  #close(): void {
    this.#phase = 'closed';
    this.#deadline.clear();
    this.#options.signal.removeEventListener('abort', this);
  }

  #fail(error: GatewayError): void {
    if (this.#phase === 'closed') return;
    const wasReported = this.#phase === 'finished';
    this.#close();
    if (!wasReported) this.#sink.fail(error);
  }

  #toFault(error: unknown): GatewayError {
    return error instanceof GatewayError ? error : this.#options.faults().unreadable(error);
  }
}

/** Throws for an answer that is never read, whatever its body is. */
function checkHead(status: number, headers: IncomingHttpHeaders, faults: () => Faults): void {
  if (isNoStatus(status)) throw faults().invalid(`returned the unexpected status ${status}`);
  if (status >= 300 && status < 400) throw faults().redirect(status);
  const encoding = headers['content-encoding'] ?? '';
  // Only identity was requested. Decompressing an answer nevertheless could turn a small one into a huge one.
  if (encoding !== '' && encoding !== 'identity') {
    throw faults().invalid('sent a compressed answer although only identity was accepted');
  }
}

/** Whether HTTP does not define this status, or the gateway itself uses it for guardrails that failed. */
const isNoStatus = (status: number): boolean => status > 599 || status === 246 || status === 446;
