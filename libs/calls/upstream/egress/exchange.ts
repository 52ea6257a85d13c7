import type { IncomingHttpHeaders } from 'node:http';
import type { Dispatcher } from 'undici';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { OutboundRequest } from '#libs/providers/provider.ts';
import { shuttingDown } from '#libs/calls/cancelled.ts';
import type { Timeouts } from '#libs/calls/timeouts.ts';
import type { CallHandler, ConnectingCall } from './connection-call.ts';
import type { Egress } from './egress.ts';
import type { Faults } from '../provider-faults.ts';

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
} & Partial<SendWatch>;

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

/**
 * Sends one request and passes the answer to the sink. Every error arrives as one GatewayError at `fail`:
 * provider_failed, provider_timeout, `call_aborted` when the signal aborts, or the errors of the sink's own methods.
 * Never throws or retries, and follows no redirect.
 */
export function startExchange(
  egress: Egress,
  outbound: OutboundRequest,
  options: {
    timeouts: Timeouts;
    signal: AbortSignal;
    faults: () => Faults;
    workspaceId: string | undefined;
    /** The same as in `CallOptions`. */
    isRepeatable?: boolean;
  },
  sink: Sink,
): void {
  const { timeouts, signal, faults, workspaceId, isRepeatable } = options;
  let phase: 'waiting' | 'sent' | 'answering' | 'finished' | 'closed' = 'waiting';
  let controller: Dispatcher.DispatchController | null = null;
  let connecting: ConnectingCall | null = null;
  let interimAnswers = 0;

  const close = (): void => {
    phase = 'closed';
    clearTimeout(timer);
    clearTimeout(answerTimer);
    signal.removeEventListener('abort', onAbort);
  };
  const fail = (error: GatewayError): void => {
    if (phase === 'closed') return;
    const wasReported = phase === 'finished';
    close();
    if (!wasReported) sink.fail(error);
  };
  const abort = (error: GatewayError): void => {
    fail(error);
    if (controller === null) connecting?.abort(error);
    else controller.abort(error);
  };
  const onAbort = (): void => abort(faults().callerLeft());

  // One timer is used for two deadlines: first for the connection, then for the rest of the attempt.
  const firstMs = Math.min(timeouts.connectMs, timeouts.totalMs);
  let timer = setTimeout(() => {
    if (phase === 'waiting') return abort(faults().connectTimeout(firstMs));
    timer = setTimeout(() => abort(faults().totalTimeout(timeouts.totalMs)), timeouts.totalMs - firstMs);
  }, firstMs);

  const { answerMs } = timeouts;
  const answerTimer =
    answerMs === undefined ? undefined : setTimeout(() => abort(faults().answerTimeout(answerMs)), answerMs);

  const flow: Flow = {
    answered: () => clearTimeout(answerTimer),
    pause: () => controller?.pause(),
    resume: () => controller?.resume(),
    abort,
    finish: () => {
      if (phase === 'closed' || phase === 'finished') return;
      close();
      phase = 'finished';
      timer = setTimeout(() => abort(faults().callerLeft()), lingerMs);
    },
  };

  const guarded = (step: () => void): void => {
    try {
      step();
    } catch (error) {
      abort(error instanceof GatewayError ? error : faults().unreadable(error));
    }
  };

  const handler = {
    onConnecting: (call) => {
      connecting = call;
      if (phase === 'closed') call.abort(faults().callerLeft());
    },
    onRequestStart: (started) => {
      if (phase === 'closed') return started.abort(faults().callerLeft());
      controller = started;
      phase = 'sent';
      sink.sent?.();
    },
    onResent: () => {
      if (phase !== 'sent') return;
      controller = null;
      phase = 'waiting';
      sink.resent?.();
    },
    onResponseStart: (_controller, status, headers) => {
      if (phase !== 'sent') return;
      if (status < 200) {
        interimAnswers += 1;
        if (interimAnswers > interimAnswersMax) abort(faults().invalid('sent too many interim answers (1xx)'));
        return;
      }
      phase = 'answering';
      guarded(() => {
        if (isNoStatus(status)) throw faults().invalid(`returned the unexpected status ${status}`);
        sink.head(status, headers, flow);
      });
    },
    onResponseData: (_controller, chunk) => {
      if (phase === 'answering') guarded(() => sink.data(chunk));
    },
    onResponseEnd: () => {
      const wasReported = phase === 'finished' || phase === 'closed';
      close();
      if (wasReported) return;
      try {
        sink.end();
      } catch (error) {
        sink.fail(error instanceof GatewayError ? error : faults().unreadable(error));
      }
    },
    onResponseError: (_controller, error) => fail(describe(error, phase === 'answering', timeouts, faults)),
  } satisfies CallHandler;

  if (signal.aborted) return fail(faults().callerLeft());
  signal.addEventListener('abort', onAbort, { once: true });
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
    handler,
  );
}

/** Whether HTTP does not define this status, or the gateway itself uses it for guardrails that failed. */
const isNoStatus = (status: number): boolean => status > 599 || status === 246 || status === 446;

function describe(error: unknown, answering: boolean, timeouts: Timeouts, faults: () => Faults): GatewayError {
  if (error instanceof GatewayError) return error;
  const code = error instanceof Error && 'code' in error ? String(error.code) : '';
  if (code === 'UND_ERR_CONNECT_TIMEOUT') return faults().connectTimeout(timeouts.connectMs);
  if (code === 'UND_ERR_HEADERS_TIMEOUT') return faults().headersTimeout(timeouts.headersMs);
  if (code === 'UND_ERR_BODY_TIMEOUT') return faults().idleTimeout(timeouts.idleMs);
  if (code === 'UND_ERR_DESTROYED' || code === 'UND_ERR_CLOSED') return shuttingDown();
  if (code === 'UND_ERR_INVALID_ARG') {
    return new GatewayError(
      'invalid_request',
      'invalid_header',
      'The request could not be sent: its credential, path or a header contains characters that HTTP does not allow.',
    );
  }
  if (code === 'UND_ERR_HEADERS_OVERFLOW' || (error instanceof Error && error.name === 'HTTPParserError')) {
    return faults().invalid('sent an invalid HTTP response');
  }
  if (answering) return faults().truncated(error);
  return isLostConnection(code) ? faults().connectionLost(error) : faults().unreachable(error);
}

/** The connection was open, so the provider may have received the request. */
function isLostConnection(code: string): boolean {
  return code === 'UND_ERR_SOCKET' || code === 'ECONNRESET' || code === 'EPIPE';
}
