import type { CalledLine, LineCost } from '#libs/batches/lines/call-line.ts';
import { withoutLineBreaks } from '#libs/batches/results/result-line.ts';
import { digestBodies } from '#libs/request-log/record/body-digests.ts';
import type { CallCosts } from '#libs/request-log/record/call-costs.ts';
import { jobSpanId } from '#libs/kernel/trace-ids.ts';
import { toLogEntry } from '#libs/request-log/record/call-entry.ts';
import type { LoggedCall } from '#libs/request-log/record/logged-call.ts';
import type { RequestLog } from '#libs/request-log/write/request-log.ts';
import type { Telemetry } from '../platform/operations/telemetry.ts';

type LogDeps = {
  requestLog: RequestLog;
  costs: CallCosts;
  telemetry: Telemetry | null;
  /** Whether a workspace asks for digests of bodies. */
  hashesBodies: (workspaceId: string) => boolean;
};

/**
 * Writes the request-log row of a batch line, with the trace and metadata headers of the call that created the batch.
 * Returns its cost, so that the batch and the log agree.
 */
export function logBatchLine({ requestLog, costs, telemetry, hashesBodies }: LogDeps, called: CalledLine): LineCost {
  const { batch, line, answer, call, attempts, outcome } = called;
  const { headers } = batch;
  const logged: LoggedCall = {
    kind: 'batch',
    operation: called.operation,
    method: 'POST',
    requestId: called.requestId,
    userId: headers['user_id'] ?? null,
    trace: {
      traceId: headers['trace_id'] ?? null,
      spanId: null,
      parentSpanId: headers['span_id'] ?? null,
      spanName: headers['span_name'] ?? null,
    },
    call,
    stream: false,
    option: called.option,
    batch: { id: batch.id, line },
    startedAtMs: called.startedAtMs,
    durationMs: called.durationMs,
    end: {
      status: answer?.status ?? null,
      errorCode: called.errorCode,
      attempts,
      usage: answer?.usage ?? null,
      responseModel: answer?.model ?? null,
      finishReason: answer?.finishReason ?? null,
      providerRequestId: answer?.providerRequestId ?? null,
      cacheStatus: answer?.headers['x-gateway-cache-status'],
    },
  };
  const entry = toLogEntry(costs, logged);
  if (hashesBodies(batch.workspace_id)) {
    const sent = outcome.kind === 'response' ? withoutLineBreaks(outcome.body) : null;
    Object.assign(entry, digestBodies(called.body, sent));
  }
  requestLog.record(entry);
  telemetry?.record(logged, entry, called.job === undefined ? undefined : jobSpanId(called.job));
  const { cost, price_version } = entry;
  return { cost, price_version };
}
