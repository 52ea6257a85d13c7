import type { CalledLine } from '#libs/batches/call-line.ts';
import type { RequestLog } from '#libs/request-log/request-log.ts';

/** The row of the request log for a batch line, with the trace and metadata headers of the call that made the batch. */
export function logBatchLine(requestLog: RequestLog, called: CalledLine): void {
  const { batch, answer, target } = called;
  requestLog.record({
    workspaceId: batch.workspace_id,
    keyId: null,
    kind: 'batch',
    operation: called.operation,
    requestId: called.requestId,
    traceId: batch.headers['trace_id'] ?? null,
    spanId: null,
    parentSpanId: batch.headers['span_id'] ?? null,
    spanName: batch.headers['span_name'] ?? null,
    metadata: batch.metadata,
    provider: target?.provider ?? null,
    virtualKey: target?.label ?? null,
    model: called.model,
    responseModel: answer?.model ?? null,
    providerRequestId: answer?.providerRequestId ?? null,
    stream: false,
    status: answer?.status ?? null,
    errorCode: called.errorCode,
    finishReason: answer?.finishReason ?? null,
    attempts: called.attempts,
    startedAtMs: called.startedAtMs,
    durationMs: called.durationMs,
    firstEventMs: null,
    usage: answer?.usage ?? null,
    batchId: batch.id,
    batchLine: called.line,
  });
}
