import type { RequestLogEntry } from '#libs/request-log/log-entry.ts';

/** An entry of the request log with the fields that a test does not care about filled in. */
export function logEntry(given: Partial<RequestLogEntry> = {}): RequestLogEntry {
  return {
    workspace_id: 'ws_1',
    key_id: 'key_1',
    kind: 'live',
    operation: 'chat',
    request_id: 'req_1',
    trace_id: 'trace_1',
    span_id: null,
    parent_span_id: null,
    span_name: null,
    metadata: null,
    provider: 'openai',
    virtual_key: 'openai-main',
    model: 'gpt-5-mini',
    response_model: 'gpt-5-mini-2026-01-01',
    provider_request_id: 'req_upstream',
    stream: false,
    status: 200,
    error_code: null,
    finish_reason: 'stop',
    attempts: 1,
    started_at: new Date('2026-11-21T10:00:00.123Z'),
    duration_ms: 812.25,
    first_event_ms: null,
    input_tokens: 812,
    cached_tokens: 0,
    output_tokens: 144,
    reasoning_tokens: null,
    batch_id: null,
    batch_line: null,
    last_used_option: null,
    ...given,
  };
}
