import type { Attempt } from '#libs/calls/call.ts';
import { attemptsOf } from '#libs/calls/planned-call.ts';
import type { Units, Usage } from '#libs/prices/usage.ts';
import type { CallCosts } from './call-costs.ts';
import type { CallEnd, CallPlace, LoggedCall } from './logged-call.ts';
import type { RequestLogEntry } from '../row/log-entry.ts';
import { stepsOf } from './call-steps.ts';
import { unitsOfRequest } from './request-units.ts';

/** The row of a call in the request log: the only place where one is made, of live, pass-through and batch calls alike. */
export function toLogEntry(costs: CallCosts, logged: LoggedCall): RequestLogEntry {
  const { kind, operation, call, trace, batch, end } = logged;
  const { target, config = null, prompt = null, earlierAttempts, retries = 0, fallbacks = 0 } = call;
  const { attempts } = end;
  const usage = end.usage ?? null;
  const units = end.units ?? (isMade(end) ? unitsOfRequest(logged) : null);
  const cost = costs.of({ ...logged, end: units === null ? end : { ...end, units } });
  return {
    workspace_id: call.workspaceId,
    key_id: call.keyId,
    kind,
    operation,
    request_id: logged.requestId,
    trace_id: trace.traceId,
    span_id: trace.spanId,
    parent_span_id: trace.parentSpanId,
    span_name: trace.spanName,
    metadata: call.metadata,
    provider: target?.provider ?? null,
    // A call that was made elsewhere used none of here.
    virtual_key: kind === 'imported' ? null : (target?.label ?? null),
    model: call.model,
    response_model: end.responseModel ?? null,
    provider_request_id: end.providerRequestId ?? null,
    stream: logged.stream,
    status: end.status,
    error_code: end.errorCode,
    finish_reason: end.finishReason ?? null,
    attempts: earlierAttempts.length + attempts.length,
    started_at: new Date(logged.startedAtMs),
    duration_ms: logged.durationMs,
    first_event_ms: end.firstEventMs ?? null,
    input_tokens: usage?.inputTokens ?? null,
    cached_tokens: usage?.cachedTokens ?? null,
    output_tokens: usage?.outputTokens ?? null,
    reasoning_tokens: usage?.reasoningTokens ?? null,
    batch_id: batch?.id ?? null,
    batch_line: batch?.line ?? null,
    last_used_option: logged.option,
    user_id: logged.userId,
    method: logged.method,
    path: logged.url ?? call.pathname,
    mode: modeOf(call),
    config_id: config?.id ?? null,
    config: config?.slug ?? null,
    config_version: config?.version ?? null,
    integration: target?.integration ?? null,
    prompt_slug: prompt?.slug ?? null,
    prompt_version: prompt?.version ?? null,
    cache_status: end.cacheStatus ?? null,
    retries: retries + Math.max(0, attempts.length - 1),
    fallbacks,
    upstream_ms: upstreamMs(earlierAttempts) + upstreamMs(attempts) + (end.streamedMs ?? 0),
    cache_write_tokens: usage?.cacheWriteTokens ?? null,
    audio_input_tokens: usage?.audioInputTokens ?? null,
    audio_output_tokens: usage?.audioOutputTokens ?? null,
    usage_details: detailsOf(usage, units),
    cost: cost.cents,
    saved_cost: cost.savedCents,
    is_estimate: cost.isEstimate,
    price_version: cost.version,
    bodies_blob: null,
    steps: stepsOf(logged.startedAtMs, attemptsOf(call, end), call.guardrailRuns),
  };
}

/** How the config of a call chooses among its targets. */
function modeOf({ plan }: CallPlace): string {
  const kind = plan?.root.kind;
  return kind === undefined || kind === 'leaf' ? 'single' : kind;
}

function upstreamMs(attempts: readonly Attempt[]): number {
  let sum = 0;
  for (const { durationMs } of attempts) sum += durationMs;
  return sum;
}

/** What was counted beyond the columns; null: nothing. */
function detailsOf(usage: Usage | null, units: Units | null): RequestLogEntry['usage_details'] {
  const details: Record<string, unknown> = { ...units };
  if (usage !== null) {
    for (const [name, member] of otherDetails) if (usage[name] !== undefined) details[member] = usage[name];
  }
  return Object.keys(details).length === 0 ? null : details;
}

/** Those without a column. */
const otherDetails = [
  ['serviceTier', 'service_tier'],
  ['searches', 'searches'],
  ['cacheWriteHourTokens', 'cache_write_1h_tokens'],
  ['cachedAudioTokens', 'cached_audio_tokens'],
  ['imageInputTokens', 'image_input_tokens'],
  ['imageOutputTokens', 'image_output_tokens'],
  ['isImplausible', 'usage_implausible'],
] as const satisfies (readonly [keyof Usage, string])[];

/** Whether a provider made what was asked for: it charges for nothing else. */
const isMade = ({ attempts }: CallEnd): boolean => (attempts.at(-1)?.status ?? 500) < 400;
