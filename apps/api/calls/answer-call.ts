import type { Request, Response } from 'express';
import type { Failure, JsonAnswer, Outcome, RelayedAnswer, StreamAnswer, StreamSummary } from '#libs/calls/call.ts';
import { planHeaders } from '#libs/calls/plan/plan-headers.ts';
import { withRetryAdvice } from '#libs/calls/retry-waits.ts';
import { drainThenEnd, hasBody } from '#libs/http/bodies/drain-request.ts';
import { findClientForm } from '#libs/http/answers/client-form.ts';
import { httpStatus, toErrorBody } from '#libs/http/answers/error-response.ts';
import { sendPieces } from '#libs/http/answers/send-pieces.ts';
import { sendTogether } from '#libs/http/answers/send-together.ts';
import { sendEventStream } from '#libs/http/answers/sse.ts';
import type { CallAbort } from '#libs/kernel/call-signal.ts';
import { asGatewayError } from '#libs/kernel/errors.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import { findDigests } from './call-digests.ts';
import type { LiveCall } from './live-call.ts';
import { buildStreamAnswer, type StreamAnswerBuilder } from '#libs/calls/protect/guardrails/texts/stream-answer.ts';
import { getCaller, getContext } from '#libs/http/request-context.ts';
import { bodyBytesMax } from '#libs/request-log/bodies/body-recorder.ts';
import type { CallEnd } from '#libs/request-log/record/logged-call.ts';
import { toCallEnd, recordCall, type RecordDeps } from './record-call.ts';

/** Two bytes for each character, and the memory for assembling them. */
const recordedBytesMax = 4 * bodyBytesMax;

export type AnswerDeps = RecordDeps & {
  /** A client that reads nothing of its answer for this long is disconnected. */
  stallTimeoutMs: number;
  logger: Logger;
};

/** A call that is over, and the client that waits for its answer. `controller` ends the call. */
export type Answered<Kind extends Outcome = Outcome> = {
  request: Request;
  response: Response;
  controller: CallAbort;
  call: LiveCall;
  outcome: Kind;
};

type Headers = Readonly<Record<string, string>>;

/**
 * Sends the outcome of a call and records it, even if it cannot be sent. Returns a promise only if it has to wait. A
 * call without a config that was refused before its target was known does not count as a call: the error is thrown, and
 * not recorded.
 */
export function answerCall(deps: AnswerDeps, answered: Answered): void | Promise<void> {
  const { call, outcome } = answered;
  if (outcome.kind === 'failed' && call.target === null && !call.isRouted) throw outcome.error;
  try {
    return send(deps, answered)?.catch((error: unknown) => lost(deps, answered, error));
  } catch (error) {
    return lost(deps, answered, error);
  }
}

/** Records a call whose outcome could not be sent. Its provider was called nevertheless. */
function lost(deps: RecordDeps, { request, call, outcome, controller }: Answered, error: unknown): never {
  if (!call.isRecorded) {
    const left = outcome.kind === 'relayed' && controller.aborted;
    recordCall(deps, request, call, {
      status: left ? 499 : httpStatus(error),
      errorCode: left ? 'client_closed_request' : asGatewayError(error).code,
      attempts: outcome.attempts,
      ...toCallEnd(outcome.kind === 'failed' ? outcome.lostAnswer : outcome),
    });
  }
  if (outcome.kind === 'relayed') outcome.body.destroy();
  throw error;
}

function send(deps: AnswerDeps, answered: Answered): void | Promise<void> {
  const { response, call, outcome } = answered;
  switch (outcome.kind) {
    case 'json':
      return sendJson(deps, answered as Answered<JsonAnswer>, answerHeaders(call, outcome));
    case 'stream':
      setHeaders(response, answerHeaders(call, outcome));
      return sendStream(deps, answered as Answered<StreamAnswer>);
    case 'relayed':
      setHeaders(response, { ...callHeaders(call, outcome), ...withRetryAdvice(outcome.headers) });
      return sendRelayed(deps, answered as Answered<RelayedAnswer>);
    case 'failed':
      setHeaders(response, callHeaders(call, outcome));
      return fail(deps, answered as Answered<Failure>);
  }
}

/** The headers of an answer that describe its call. */
function callHeaders(call: LiveCall, outcome: Outcome): Headers {
  if (call.isRouted) return planHeaders(call, outcome);
  if (call.target === null) return noHeaders;
  const { provider } = call.target;
  return call.request.relayed === undefined
    ? // The same as for a call with a config, which can also have been retried, sent elsewhere, or not made.
      { 'x-gateway-provider': provider, 'x-gateway-retry-attempt-count': '0' }
    : { 'x-gateway-provider': provider };
}

const noHeaders: Headers = {};

const answerHeaders = (call: LiveCall, outcome: JsonAnswer | StreamAnswer): Headers => ({
  ...callHeaders(call, outcome),
  'x-gateway-cache-status': 'DISABLED',
  ...withRetryAdvice(outcome.headers),
});

function setHeaders(response: Response, headers: Headers): void {
  for (const name in headers) response.setHeader(name, headers[name] as string);
}

function fail(deps: AnswerDeps, { request, call, outcome, controller }: Answered<Failure>): never {
  const { error, attempts, lostAnswer } = outcome;
  const left = controller.aborted;
  recordCall(
    deps,
    request,
    call,
    {
      status: left ? 499 : httpStatus(error),
      errorCode: left ? 'client_closed_request' : error.code,
      attempts,
      ...toCallEnd(lostAnswer),
    },
    () => Buffer.from(JSON.stringify(toErrorBody(error, getContext(request).requestId))),
  );
  throw error;
}

function sendJson(
  deps: AnswerDeps,
  { request, response, call, outcome }: Answered<JsonAnswer>,
  headers: Headers,
): void {
  // One list, because setting a header separately costs three times as much.
  const head: string[] = [];
  for (const name in headers) head.push(name, headers[name] as string);
  head.push('content-type', outcome.contentType, 'content-length', String(outcome.body.length));
  response.writeHead(findClientForm(request).toStatus(outcome.status), head);
  // After this event the socket no longer needs the body. It does not happen if the client disconnects.
  if (outcome.freeBody !== undefined) response.once('finish', outcome.freeBody);
  sendTogether(response, outcome.body, deps.stallTimeoutMs);
  const { status, attempts } = outcome;
  recordCall(
    deps,
    request,
    call,
    {
      status,
      errorCode: status >= 400 ? `http_${status}` : null,
      attempts,
      ...toCallEnd(outcome),
    },
    () => outcome.body,
  );
}

async function sendStream(
  deps: AnswerDeps,
  { request, response, call, outcome, controller }: Answered<StreamAnswer>,
): Promise<void> {
  const recorded = getCaller(request).defaults.recording ? buildStreamAnswer(call.request.operation) : null;
  const events = recorded === null ? outcome.events : assembled(outcome.events, recorded);
  findDigests(request)?.watchAnswer(response);
  const ended = await sendEventStream(request, response, events, {
    controller,
    logger: deps.logger,
    status: outcome.status,
    stallTimeoutMs: deps.stallTimeoutMs,
  });
  const summary: StreamSummary = await outcome.done;
  const gone = ended === 'disconnected' || ended === 'stalled';
  recordCall(
    deps,
    request,
    call,
    {
      status: gone ? 499 : (summary.status ?? outcome.status),
      errorCode: gone ? `client_${ended}` : (summary.error?.code ?? (summary.complete ? null : 'upstream_truncated')),
      attempts: outcome.attempts,
      ...toCallEnd(outcome),
      usage: summary.usage,
      isEstimate: summary.isEstimate === true,
      responseModel: summary.model,
      finishReason: summary.finishReason,
      firstEventMs: summary.firstEventMs,
      streamedMs: sinceBegun(outcome),
    },
    recorded === null ? undefined : () => recorded.body(),
  );
}

/** Passes the events of a stream on, and adds them to the recorded answer, until that is too large to be recorded. */
async function* assembled(
  events: AsyncIterable<readonly string[]>,
  answer: StreamAnswerBuilder,
): AsyncIterable<readonly string[]> {
  let bytes = 0;
  for await (const batch of events) {
    yield batch;
    if (bytes > recordedBytesMax) continue;
    try {
      for (const payload of batch) if (payload !== '[DONE]') bytes += answer.add(payload);
    } catch {
      // The event is not valid JSON. The client has received it, and the events before it are recorded.
      bytes = Number.POSITIVE_INFINITY;
    }
  }
}

/** Writes the answer as it arrives. If it breaks off in the middle, the client's connection is cut as well. */
async function sendRelayed(deps: AnswerDeps, answered: Answered<RelayedAnswer>): Promise<void> {
  const { request, response, call, outcome, controller } = answered;
  const { status, body } = outcome;
  const recorded = getCaller(request).defaults.recording ? new RelayedCopy(outcome.headers['content-type']) : null;
  findDigests(request)?.watchAnswer(response);
  response.statusCode = status;
  if (status >= 400 && !request.complete && hasBody(request)) {
    // Refused before the whole body had arrived.
    const chunks: Buffer[] = await body.toArray();
    for (const chunk of chunks) recorded?.add(chunk);
    drainThenEnd(request, response, Buffer.concat(chunks), { isSlow: false });
  } else {
    try {
      const pieces = body as AsyncIterable<Buffer>;
      await sendPieces(response, recorded === null ? pieces : recorded.of(pieces), deps.stallTimeoutMs);
    } catch {
      // Recorded when `done` resolves.
    }
    if (!response.writableEnded) {
      controller.abort(new Error('the client disconnected or stopped reading'));
      response.destroy();
    }
  }
  const { usage, model, units = null, error } = await outcome.done;
  const isWhole = response.writableEnded;
  const isBroken = error !== null && error.code !== 'call_aborted';
  const end: CallEnd = {
    status: isWhole ? status : isBroken ? 502 : 499,
    errorCode: isWhole ? (status >= 400 ? `http_${status}` : null) : (error?.code ?? 'client_disconnected'),
    attempts: outcome.attempts,
    ...toCallEnd(outcome),
    usage,
    units,
    responseModel: model,
    streamedMs: sinceBegun(outcome),
  };
  recordCall(deps, request, call, end, recorded === null ? undefined : () => recorded.body());
}

/**
 * Copies the text of an answer that passes through, for its record. Audio, images, files, and texts that are too large
 * are not copied.
 */
class RelayedCopy {
  private readonly chunks: Buffer[] = [];
  private bytes = 0;
  private isKept: boolean;

  constructor(contentType: string | undefined) {
    this.isKept = /^(application\/(json|x-ndjson)|text\/)/i.test(contentType ?? '');
  }

  async *of(pieces: AsyncIterable<Buffer>): AsyncIterable<Buffer> {
    for await (const piece of pieces) {
      this.add(piece);
      yield piece;
    }
  }

  add(piece: Buffer): void {
    this.bytes += piece.length;
    this.isKept &&= this.bytes <= bodyBytesMax;
    if (this.isKept) this.chunks.push(piece);
    else this.chunks.length = 0;
  }

  body(): Buffer {
    return Buffer.concat(this.chunks);
  }
}

/** How long ago the answer began to arrive, in milliseconds. */
function sinceBegun({ attempts }: Outcome): number {
  const last = attempts.at(-1);
  return last === undefined ? 0 : Math.max(0, Date.now() - last.startedAt - last.durationMs);
}
