import type { Request } from 'express';
import type { Answer, StreamSummary } from '#libs/calls/call.ts';
import { addLogFields, callerOf, contextOf } from '#libs/http/request-context.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { RequestLog } from '#libs/request-log/request-log.ts';
import type { LiveCall } from '../live-call.ts';

export type RecordDeps = { requestLog: RequestLog };

type Recorded = {
  status: number;
  errorCode: string | null;
  /** Of the last target. */
  attempts: number;
  usage?: StreamSummary['usage'];
  responseModel?: string | null;
  finishReason?: string | null;
  providerRequestId?: string | null;
  firstEventMs?: number;
};

/** A call whose record could not be kept is refused before it costs anything. */
export function refuseWhenUnlogged(requestLog: RequestLog): void {
  if (!requestLog.isFull()) return;
  const message = 'The request log cannot be written now, and calls are not made without a record. Try again shortly.';
  throw new GatewayError('unavailable', 'request_log_full', message, { retryAfterMs: 2_000 });
}

/** What is known of an answer, for its row. */
export const paidFor = (answered: Answer | null | undefined): Partial<Recorded> =>
  answered
    ? {
        usage: answered.usage,
        responseModel: answered.model,
        finishReason: answered.finishReason,
        providerRequestId: answered.providerRequestId,
      }
    : {};

/** After the answer: the row of the request log, and the fields of the request's one log line. */
export function recordCall(deps: RecordDeps, request: Request, call: LiveCall, ended: Recorded): void {
  call.isRecorded = true;
  const { request: sent } = call;
  const context = contextOf(request);
  const { workspaceId, keyId } = callerOf(request);
  const provider = call.target?.provider ?? null;
  const usage = ended.usage ?? null;
  deps.requestLog.record({
    workspace_id: workspaceId,
    key_id: keyId,
    kind: 'live',
    operation: sent.operation,
    request_id: context.requestId,
    trace_id: context.traceId,
    span_id: context.spanId,
    parent_span_id: context.parentSpanId,
    span_name: context.spanName,
    metadata: call.metadata,
    provider,
    virtual_key: call.target?.label ?? null,
    model: call.model,
    response_model: ended.responseModel ?? null,
    provider_request_id: ended.providerRequestId ?? null,
    stream: sent.relayed === undefined && sent.stream,
    status: ended.status,
    error_code: ended.errorCode,
    finish_reason: ended.finishReason ?? null,
    attempts: call.earlierAttempts.length + ended.attempts,
    started_at: new Date(call.startedAt),
    duration_ms: performance.now() - context.startedMs,
    first_event_ms: ended.firstEventMs ?? null,
    input_tokens: usage?.inputTokens ?? null,
    cached_tokens: usage?.cachedTokens ?? null,
    output_tokens: usage?.outputTokens ?? null,
    reasoning_tokens: usage?.reasoningTokens ?? null,
    batch_id: null,
    batch_line: null,
    last_used_option: call.isRouted ? call.leaf.path : null,
  });
  addLogFields(request, {
    provider,
    model: call.model,
    provider_status: ended.status,
    error_code: ended.errorCode ?? undefined,
    input_tokens: usage?.inputTokens,
    output_tokens: usage?.outputTokens,
  });
}
