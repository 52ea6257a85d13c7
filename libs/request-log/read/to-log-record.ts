import type { LogRecord } from '#libs/contracts/logs.ts';
import { toDollars } from '#libs/prices/to-dollars.ts';
import { pathnameOf } from '../record/imported-call.ts';
import { outcomeOf } from '../row/call-outcome.ts';
import { timeOfLogUuid, toLogId } from '../row/log-id.ts';
import type { LogListRow } from './read-log.ts';

/** A row of the log as the API shows it. */
export function toLogRecord(row: LogListRow): LogRecord {
  const { input_tokens, cached_tokens, cache_write_tokens, audio_input_tokens } = row;
  const { output_tokens, reasoning_tokens, audio_output_tokens, duration_ms, upstream_ms, config_id } = row;
  const tokens = { input_tokens, cached_tokens, cache_write_tokens, audio_input_tokens };
  const usage = { ...tokens, output_tokens, reasoning_tokens, audio_output_tokens, details: row.usage_details };
  return {
    id: toLogId(row.id),
    object: 'log',
    created_at: new Date(timeOfLogUuid(row.id)).toISOString(),
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
    user_id: row.user_id,
    virtual_key: row.virtual_key,
    integration: row.integration,
    config: config_id === null ? null : { id: config_id, slug: row.config, version: row.config_version },
    mode: row.mode,
    prompt_slug: row.prompt_slug,
    prompt_version: row.prompt_version,
    method: row.method,
    path: pathOf(row),
    provider: row.provider,
    model: row.model,
    response_model: row.response_model,
    provider_request_id: row.provider_request_id,
    stream: row.stream,
    status: row.status,
    error_code: row.error_code,
    outcome: outcomeOf(row),
    finish_reason: row.finish_reason,
    attempts: row.attempts,
    retries: row.retries,
    fallbacks: row.fallbacks,
    cache_status: row.cache_status,
    duration_ms,
    upstream_ms,
    gateway_ms: upstream_ms === null ? null : Math.max(0, duration_ms - upstream_ms),
    first_event_ms: row.first_event_ms,
    usage: Object.values(usage).every((tokens) => tokens === null) ? null : usage,
    cost_usd: row.cost === null ? null : toDollars(row.cost),
    saved_cost_usd: row.saved_cost === null ? null : toDollars(row.saved_cost),
    is_estimate: row.is_estimate ?? false,
    price_version: row.price_version,
    batch_id: row.batch_id,
    batch_line: row.batch_line,
    last_used_option: row.last_used_option,
    process_id: row.process_id,
    sequence: row.sequence,
  };
}

/** Of a call that was made elsewhere, the path of its URL. */
const pathOf = ({ kind, path }: LogListRow): string | null =>
  kind === 'imported' && path !== null && URL.canParse(path) ? pathnameOf(new URL(path)) : path;
