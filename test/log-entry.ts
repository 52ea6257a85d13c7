import { columnList } from '#libs/request-log/columns.ts';
import type { RequestLogEntry } from '#libs/request-log/row/log-entry.ts';

const emptyValues = { text: '', integer: 0, float: 0, boolean: false } as Record<string, unknown>;
const empty = Object.fromEntries(
  columnList.flatMap(([name, { type, isRequired, from }]) =>
    from === undefined ? [] : [[name, isRequired ? emptyValues[type] : null]],
  ),
);

/** Returns an entry of the request log with defaults for the fields that a test does not care about. */
export function logEntry(given: Partial<RequestLogEntry> = {}): RequestLogEntry {
  const typical: Partial<RequestLogEntry> = {
    workspace_id: 'ws_1',
    key_id: 'key_1',
    kind: 'live',
    operation: 'chat',
    request_id: 'req_1',
    trace_id: 'trace_1',
    provider: 'openai',
    virtual_key: 'openai-main',
    model: 'gpt-5-mini',
    response_model: 'gpt-5-mini-2026-01-01',
    provider_request_id: 'req_upstream',
    status: 200,
    finish_reason: 'stop',
    attempts: 1,
    started_at: new Date('2026-11-21T10:00:00.123Z'),
    duration_ms: 812.25,
    input_tokens: 812,
    cached_tokens: 0,
    output_tokens: 144,
    method: 'POST',
    path: '/v1/chat/completions',
    mode: 'single',
    upstream_ms: 800.5,
    cost: '0.3913',
    price_version: '2026-01-01.0123456789ab',
  };
  return { ...(empty as RequestLogEntry), ...typical, ...given };
}
