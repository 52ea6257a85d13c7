import type { LogRecord } from '#libs/contracts/logs.ts';
import { timeOfLogUuid, toLogId } from './log-id.ts';
import type { LogListRow } from './read-log.ts';

/** A row of the log as the API shows it. */
export function toLogRecord(row: LogListRow): LogRecord {
  const { input_tokens, cached_tokens, output_tokens, reasoning_tokens } = row;
  const usage = { input_tokens, cached_tokens, output_tokens, reasoning_tokens };
  return {
    id: toLogId(row.id),
    object: 'log',
    created_at: Math.floor(timeOfLogUuid(row.id) / 1_000),
    started_at: row.started_at.toISOString(),
    kind: row.kind,
    operation: row.operation,
    request_id: row.request_id,
    trace_id: row.trace_id,
    span_id: row.span_id,
    parent_span_id: row.parent_span_id,
    span_name: row.span_name,
    metadata: row.metadata,
    api_key_id: row.key_id,
    virtual_key: row.virtual_key,
    provider: row.provider,
    model: row.model,
    response_model: row.response_model,
    provider_request_id: row.provider_request_id,
    stream: row.stream,
    status: row.status,
    error_code: row.error_code,
    finish_reason: row.finish_reason,
    attempts: row.attempts,
    duration_ms: row.duration_ms,
    first_event_ms: row.first_event_ms,
    usage: Object.values(usage).every((tokens) => tokens === null) ? null : usage,
    batch_id: row.batch_id,
    batch_line: row.batch_line,
    last_used_option: row.last_used_option,
    process_id: row.process_id,
    sequence: row.sequence,
  };
}
