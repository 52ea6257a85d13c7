import type { Request } from 'express';
import type { Answer } from '#libs/calls/call.ts';
import { addLogFields, getCaller, getContext } from '#libs/http/request-context.ts';
import { makeTraceparent } from '#libs/kernel/trace-ids.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { BodyRecorder } from '#libs/request-log/bodies/body-recorder.ts';
import type { CallCosts } from '#libs/request-log/record/call-costs.ts';
import { toLogEntry } from '#libs/request-log/record/call-entry.ts';
import type { CallEnd, LoggedCall } from '#libs/request-log/record/logged-call.ts';
import type { RequestLog } from '#libs/request-log/write/request-log.ts';
import type { Telemetry } from '../../platform/operations/telemetry.ts';
import type { CallVerdict } from '#libs/request-log/columns.ts';
import type { CountVerdict } from '../organisation/guard-keys.ts';
import { findDigests } from './call-digests.ts';
import type { LiveCall } from './live-call.ts';

export type RecordDeps = {
  requestLog: RequestLog;
  costs: CallCosts;
  bodies: BodyRecorder;
  /** null: OpenTelemetry is off. */
  telemetry: Telemetry | null;
  countVerdict: CountVerdict;
};

/**
 * The trace header for the provider: none, unless the caller's trace is continued or this gateway records it. Its
 * parent is the span of the call.
 */
export function makeCallTraceparent(
  { telemetry }: Pick<RecordDeps, 'telemetry'>,
  request: Request,
): string | undefined {
  const { traceId, requestId, isSampled } = getContext(request);
  if (isSampled === null && telemetry === null) return undefined;
  return makeTraceparent(
    traceId,
    requestId,
    telemetry === null ? isSampled === true : telemetry.isSampled(traceId, isSampled),
  );
}

/** A call that could not be recorded is refused before it costs anything. */
export function refuseWhenUnlogged(requestLog: RequestLog): void {
  if (!requestLog.isFull()) return;
  const message =
    'The request log cannot be written at the moment, and no calls are made without a record. Try again shortly.';
  throw new GatewayError('unavailable', 'request_log_full', message, { retryAfterMs: 2_000 });
}

/** The known data of an answer, for its row. */
export const toCallEnd = (answered: Answer | null | undefined): Partial<CallEnd> =>
  answered
    ? {
        usage: answered.usage,
        responseModel: answered.model,
        finishReason: answered.finishReason,
        providerRequestId: answered.providerRequestId,
        cacheStatus: answered.headers['x-gateway-cache-status'],
      }
    : {};

/**
 * After the answer: writes the row of the request log, and the fields of the request's one log line. `response` is the
 * answer's body, if there is one that can be recorded; it is only called if the caller's bodies are recorded or hashed.
 */
export function recordCall(
  { requestLog, costs, bodies, telemetry, countVerdict }: RecordDeps,
  request: Request,
  call: LiveCall,
  end: CallEnd,
  response?: () => Buffer,
): void {
  call.isRecorded = true;
  const { request: sent, target, model } = call;
  const context = getContext(request);
  const { principal, defaults } = getCaller(request);
  const logged: LoggedCall = {
    kind: 'live',
    operation: sent.operation,
    method: sent.relayed?.method ?? 'POST',
    requestId: context.requestId,
    userId: principal.type === 'user' ? principal.id : null,
    trace: context,
    call,
    stream: sent.relayed === undefined && sent.stream,
    option: call.isRouted ? call.leaf.path : null,
    batch: null,
    startedAtMs: call.startedAt,
    durationMs: performance.now() - context.startedMs,
    end,
  };
  const entry = toLogEntry(costs, logged);
  if (defaults.recording) {
    const texts = { request: sent.body, response: response?.() ?? null };
    entry.bodies_blob = bodies.record(call.workspaceId, defaults.recording, texts);
  }
  const digests = findDigests(request);
  if (digests !== null) {
    // A client that left got no answer, or a part of a stream, which has been hashed.
    const answer = end.status === 499 ? null : (response?.() ?? null);
    Object.assign(entry, digests.finish(request, answer));
  }
  requestLog.record(entry);
  telemetry?.record(logged, entry);
  for (const result of (entry.guardrails ?? []) as CallVerdict[])
    if (result.verdict !== 'passed') countVerdict(request, result);
  context.isInRequestLog = end.errorCode === null;
  addLogFields(request, {
    provider: target?.provider ?? null,
    model,
    provider_status: end.status,
    error_code: end.errorCode ?? undefined,
    input_tokens: end.usage?.inputTokens,
    output_tokens: end.usage?.outputTokens,
    cost: entry.cost ?? undefined,
  });
}
