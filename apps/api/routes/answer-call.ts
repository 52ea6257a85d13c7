import type { Request, Response } from 'express';
import type { Failure, JsonAnswer, Outcome, StreamAnswer, StreamSummary } from '#libs/calls/call.ts';
import { readRetryAfter } from '#libs/calls/retry-after.ts';
import { statusOf } from '#libs/http/error-response.ts';
import { sendTogether } from '#libs/http/send-together.ts';
import { sendEventStream } from '#libs/http/sse.ts';
import { asGatewayError } from '#libs/kernel/errors.ts';
import type { Logger } from '#libs/kernel/logger.ts';
import { paidFor, recordCall, type Call, type RecordDeps } from './record-call.ts';

export type AnswerDeps = RecordDeps & {
  /** A client that takes nothing of its answer for so long is cut off. */
  stallTimeoutMs: number;
  logger: Logger;
};

/**
 * Sends what came of a call, with the headers `told` about it, and records it, also when it cannot be sent; a promise only
 * where there is something to wait for.
 */
export function answerCall(
  deps: AnswerDeps,
  request: Request,
  response: Response,
  call: Call,
  outcome: Outcome,
  controller: AbortController,
  told: Readonly<Record<string, string>>,
): void | Promise<void> {
  try {
    const sending = send(deps, request, response, call, outcome, controller, told);
    return sending?.catch((error: unknown) => lost(deps, request, call, outcome, error));
  } catch (error) {
    return lost(deps, request, call, outcome, error);
  }
}

/** A call that could not be answered as it ended; its provider was asked all the same. */
function lost(deps: RecordDeps, request: Request, call: Call, outcome: Outcome, error: unknown): never {
  if (!call.isRecorded) {
    const answered = outcome.kind === 'failed' ? outcome.lostAnswer : outcome;
    recordCall(deps, request, call, {
      status: statusOf(error),
      errorCode: asGatewayError(error).code,
      attempts: outcome.attempts.length,
      ...paidFor(answered),
    });
  }
  throw error;
}

function send(
  deps: AnswerDeps,
  request: Request,
  response: Response,
  call: Call,
  outcome: Outcome,
  controller: AbortController,
  told: Readonly<Record<string, string>>,
): void | Promise<void> {
  const headers: Readonly<Record<string, string>> =
    outcome.kind === 'failed'
      ? told
      : { ...told, 'x-gateway-cache-status': 'DISABLED', ...withRetryAdvice(outcome.headers) };
  if (outcome.kind === 'json') return sendJson(deps, request, response, call, outcome, headers);
  for (const name in headers) response.setHeader(name, headers[name] as string);
  if (outcome.kind === 'failed') return failed(deps, request, call, outcome, controller.signal);
  return sendStream(deps, request, response, call, outcome, controller);
}

function failed(
  deps: AnswerDeps,
  request: Request,
  call: Call,
  { error, attempts, lostAnswer }: Failure,
  signal: AbortSignal,
): never {
  const left = signal.aborted;
  recordCall(deps, request, call, {
    status: left ? 499 : statusOf(error),
    errorCode: left ? 'client_closed_request' : error.code,
    attempts: attempts.length,
    ...paidFor(lostAnswer),
  });
  throw error;
}

function sendJson(
  deps: AnswerDeps,
  request: Request,
  response: Response,
  call: Call,
  answer: JsonAnswer,
  headers: Readonly<Record<string, string>>,
): void {
  // One list: a header that is set by itself costs three times as much.
  const head: string[] = [];
  for (const name in headers) head.push(name, headers[name] as string);
  head.push('content-type', answer.contentType, 'content-length', String(answer.body.length));
  response.writeHead(answer.status, head);
  sendTogether(response, answer.body, deps.stallTimeoutMs);
  const { status, usage, model, finishReason, providerRequestId, attempts } = answer;
  recordCall(deps, request, call, {
    status,
    errorCode: status >= 400 ? `http_${status}` : null,
    attempts: attempts.length,
    usage,
    responseModel: model,
    finishReason,
    providerRequestId,
  });
}

async function sendStream(
  deps: AnswerDeps,
  request: Request,
  response: Response,
  call: Call,
  answer: StreamAnswer,
  controller: AbortController,
): Promise<void> {
  const ended = await sendEventStream(request, response, answer.events, {
    controller,
    logger: deps.logger,
    status: answer.status,
    stallTimeoutMs: deps.stallTimeoutMs,
  });
  const summary: StreamSummary = await answer.done;
  const gone = ended === 'disconnected' || ended === 'stalled';
  recordCall(deps, request, call, {
    status: gone ? 499 : answer.status,
    errorCode: gone ? `client_${ended}` : (summary.error?.code ?? (summary.complete ? null : 'upstream_truncated')),
    attempts: answer.attempts.length,
    usage: summary.usage,
    responseModel: summary.model,
    finishReason: summary.finishReason,
    providerRequestId: answer.providerRequestId,
    firstEventMs: summary.firstEventMs,
  });
}

// openai-python gives up on a longer wait, and openai-node 6 would sleep through any, however long; both obey
// x-should-retry first.
const sleepMsMax = 60_000;

const isWaitTold = (headers: Record<string, string>): boolean =>
  headers['retry-after'] !== undefined ||
  headers['retry-after-ms'] !== undefined ||
  headers['x-ms-retry-after-ms'] !== undefined;

/**
 * A provider's headers without a Retry-After that says nothing (SDKs take -5 for "at once"). One beyond a minute stays as
 * it is, for whoever plans by it, and SDKs are told not to sleep so long.
 */
export function withRetryAdvice(headers: Record<string, string>): Record<string, string> {
  if (!isWaitTold(headers)) return headers;
  const waitMs = readRetryAfter(headers, Date.now());
  if (waitMs !== null) return waitMs <= sleepMsMax ? headers : { ...headers, 'x-should-retry': 'false' };
  const { 'retry-after': _after, 'retry-after-ms': _ms, 'x-ms-retry-after-ms': _azure, ...others } = headers;
  return others;
}
