import type { CalledLine } from '#libs/batches/call-line.ts';
import type { RequestLog } from '#libs/request-log/request-log.ts';

/** Writes the request-log row of a batch line, with the trace and metadata headers of the call that created the batch. */
export function logBatchLine(requestLog: RequestLog, called: CalledLine): void {
  const { batch, answer, target } = called;
  const usage = answer?.usage ?? null;
  requestLog.record({
    workspace_id: batch.workspace_id,
    key_id: null,
    kind: 'batch',
    operation: called.operation,
    request_id: called.requestId,
    trace_id: batch.headers['trace_id'] ?? null,
    span_id: null,
    parent_span_id: batch.headers['span_id'] ?? null,
    span_name: batch.headers['span_name'] ?? null,
    metadata: called.metadata,
    provider: target?.provider ?? null,
    virtual_key: target?.label ?? null,
    model: called.model,
    response_model: answer?.model ?? null,
    provider_request_id: answer?.providerRequestId ?? null,
    stream: false,
    status: answer?.status ?? null,
    error_code: called.errorCode,
    finish_reason: answer?.finishReason ?? null,
    attempts: called.attempts,
    started_at: new Date(called.startedAtMs),
    duration_ms: called.durationMs,
    first_event_ms: null,
    input_tokens: usage?.inputTokens ?? null,
    cached_tokens: usage?.cachedTokens ?? null,
    output_tokens: usage?.outputTokens ?? null,
    reasoning_tokens: usage?.reasoningTokens ?? null,
    batch_id: batch.id,
    batch_line: called.line,
    last_used_option: called.option,
  });
}
