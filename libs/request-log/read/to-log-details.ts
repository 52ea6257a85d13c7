import type { LogDetails } from '#libs/contracts/logs/logs.ts';
import { organisationId } from '#libs/http/caller.ts';
import { versionId } from '#libs/records/traits/versions.ts';
import type { LogListRow } from './read-log.ts';
import type { RecordedTexts } from '../bodies/recorded-bodies.ts';
import { toLogRecord } from './to-log-record.ts';

/**
 * The data that is not part of a row. `baseUrl` is that of the gateway. `workspaceSlug`: null if the workspace no
 * longer has one.
 */
type LogContext = {
  baseUrl: string;
  workspaceSlug: string | null;
  /** The name of the API key; null: not known. */
  keyName: string | null;
  /** null: there is no prompt, or it no longer exists. */
  promptId: string | null;
  bodies: RecordedTexts | null;
};

/** One row of the log as GET /v1/logs/{id} shows it: the record, and the members that Portkey's clients read. */
export function toLogDetails(
  row: LogListRow,
  { baseUrl, workspaceSlug, keyName, promptId, bodies }: LogContext,
): LogDetails {
  const record = toLogRecord(row);
  const { id, created_at, usage } = record;
  const inputTokens = usage?.input_tokens ?? 0;
  const outputTokens = usage?.output_tokens ?? 0;
  const isSuccess = record.outcome === 'succeeded';
  const url = urlOf(row, baseUrl);
  const metadata = Object.entries(row.metadata ?? {});
  return {
    ...record,
    api_key_name: keyName,
    steps: row.steps as LogDetails['steps'],
    _id: id,
    organisation_id: organisationId,
    request: {
      url,
      method: row.method,
      headers: {},
      body: toBodyObject(bodies?.request),
      gatewayHeaders: gatewayHeadersOf(row),
    },
    response: {
      status: row.status ?? 0,
      headers: {},
      body: toBodyObject(bodies?.response),
      responseTime: Math.round(row.duration_ms),
      lastUsedOptionJsonPath: row.last_used_option ?? '',
    },
    metrics: {
      id,
      organisation_id: organisationId,
      organisation_name: organisationId,
      prompt_id: promptId,
      prompt_slug: row.prompt_slug,
      prompt_version_id:
        promptId === null || row.prompt_version === null ? null : versionId(promptId, row.prompt_version),
      config: row.config,
      config_id: row.config_id,
      config_version_id:
        row.config_id === null || row.config_version === null ? null : versionId(row.config_id, row.config_version),
      created_at,
      is_success: isSuccess,
      ai_org: row.provider,
      ai_model: row.response_model ?? row.model,
      req_units: inputTokens,
      res_units: outputTokens,
      total_units: inputTokens + outputTokens,
      cost: row.cost === null ? null : Number(row.cost),
      cost_currency: 'USD',
      request_url: url,
      request_method: row.method,
      response_status_code: row.status,
      response_time: Math.round(row.duration_ms),
      is_proxy_call: row.kind !== 'imported' && !translated.has(row.operation),
      cache_status: row.cache_status,
      cache_type: row.cache_status === null ? null : 'simple',
      stream_mode: row.stream ? 1 : 0,
      retry_success_count: isSuccess ? row.retries : 0,
      trace_id: row.trace_id,
      span_id: row.span_id,
      span_name: row.span_name,
      parent_span_id: row.parent_span_id,
      mode: row.mode,
      virtual_key: row.virtual_key,
      source: row.kind,
      last_used_option_index: optionIndex(row.last_used_option),
      runtime: null,
      runtime_version: null,
      sdk_version: null,
      internal_trace_id: row.request_id,
      workspace_slug: workspaceSlug,
      'metadata.key': metadata.map(([key]) => key),
      'metadata.value': metadata.map(([, value]) => value),
      api_key_id: row.key_id,
      request_parsing_time: null,
      pre_processing_time: null,
      cache_processing_time: row.cache_status === 'HIT' ? Math.round(row.duration_ms) : null,
      response_parsing_time: null,
      gateway_processing_time: Math.round(record.gateway_ms),
      upstream_response_time: Math.round(row.upstream_ms),
    },
  };
}

/** Operations that adapters translate. All others are passed through unchanged. */
const translated: ReadonlySet<string> = new Set(['chat', 'completions', 'embeddings', 'messages', 'models']);

/** The position of the target in the list of its config, such as 1 for `config.targets[1]`. */
function optionIndex(option: string | null): number | null {
  const [, index] = /\[(\d+)\]/.exec(option ?? '') ?? [];
  return index === undefined ? null : Number(index);
}

/** A recorded body as an object; `{ text }` if it is not a JSON object, or no longer one because of redactions. */
export function toBodyObject(text: string | null | undefined): Record<string, unknown> | null {
  if (text == null) return null;
  try {
    const value: unknown = JSON.parse(text);
    if (typeof value === 'object' && value !== null && !Array.isArray(value)) return value as Record<string, unknown>;
  } catch {
    // Otherwise it is shown as text.
  }
  return { text };
}

/** The path at this gateway, for a call that went through it. */
const urlOf = ({ path }: LogListRow, baseUrl: string): string => new URL(path, baseUrl).href;

/** The headers for the gateway that the request had according to the record. */
function gatewayHeadersOf(row: LogListRow): Record<string, string> {
  const headers = {
    'x-gateway-trace-id': row.trace_id,
    'x-gateway-span-id': row.span_id,
    'x-gateway-parent-span-id': row.parent_span_id,
    'x-gateway-span-name': row.span_name,
    'x-gateway-session-id': row.session_id,
    'x-gateway-agent-id': row.agent_id,
    'x-gateway-parent-agent-id': row.parent_agent_id,
    'x-gateway-virtual-key': row.virtual_key,
    'x-gateway-config': row.config,
    'x-gateway-metadata': row.metadata && JSON.stringify(row.metadata),
  };
  return Object.fromEntries(Object.entries(headers).filter((header): header is [string, string] => header[1] !== null));
}
