import type { Attempt } from '#libs/calls/call.ts';
import { listAttempts } from '#libs/calls/planned-call.ts';
import { attemptSpanId, callSpanId, w3cTraceId } from '#libs/kernel/trace-ids.ts';
import { findProvider } from '#libs/providers/registry.ts';
import { getFailureCode } from '../row/call-outcome.ts';
import type { RequestLogEntry } from '../row/log-entry.ts';
import type { LoggedCall } from './logged-call.ts';

export type SpanAttributes = Record<string, string | number | boolean | string[]>;

/** A span of OpenTelemetry, ended. Times in epoch milliseconds. */
export type EndedSpan = {
  spanId: string;
  name: string;
  kind: 'server' | 'client' | 'internal' | 'consumer';
  startMs: number;
  endMs: number;
  attributes: SpanAttributes;
  /** The error of a failed span; null if it succeeded. */
  error: string | null;
};

/** A call with its attempts, as spans of one trace. */
export type CallSpans = {
  call: EndedSpan;
  attempts: EndedSpan[];
};

/** The columns of a record from which the attributes of its call follow. */
export type CallColumns = Omit<RequestLogEntry, 'bodies_blob'>;

/** The names of operations in the semantic conventions for generative AI. Other operations have our own names. */
const operationNames: Readonly<Record<string, string>> = {
  chat: 'chat',
  completions: 'text_completion',
  embeddings: 'embeddings',
  messages: 'chat',
  generate_content: 'generate_content',
  responses: 'chat',
};
/** A batch line can have hundreds of attempts. The last ones show how it ended. */
const attemptsMax = 32;
const spanIdShape = /^(?!0{16})[0-9a-f]{16}$/;

/**
 * `parentSpanId`: the caller's span, if it sent one; null: the trace begins here. Both are in the form in which they
 * were sent.
 */
export type SpanTrace = { traceId: string; parentSpanId: string | null };

/** The trace that a call belongs to. All lines and jobs of a batch belong to the same one. */
export const getCallTrace = ({ trace, requestId, batch }: LoggedCall): SpanTrace =>
  w3cTrace({ traceId: trace.traceId ?? batch?.id ?? requestId, parentSpanId: trace.parentSpanId });

/** The IDs in the form of W3C Trace Context. */
export const w3cTrace = ({ traceId, parentSpanId }: SpanTrace): SpanTrace => ({
  traceId: w3cTraceId(traceId),
  parentSpanId: parentSpanId !== null && spanIdShape.test(parentSpanId) ? parentSpanId : null,
});

/**
 * A logged call as spans, with the attributes of the semantic conventions for generative AI
 * (https://opentelemetry.io/docs/specs/semconv/gen-ai/). Never prompts, answers or credentials.
 */
export function toCallSpans({ call, requestId, end }: LoggedCall, entry: RequestLogEntry): CallSpans {
  const startMs = entry.started_at.getTime();
  const all = listAttempts(call, end);
  const first = Math.max(0, all.length - attemptsMax);
  const operation = toOperationName(entry);
  return {
    call: {
      spanId: callSpanId(requestId),
      name: entry.model === null ? operation : `${operation} ${entry.model}`,
      kind: entry.kind === 'live' ? 'server' : 'internal',
      startMs,
      endMs: startMs + entry.duration_ms,
      attributes: toCallAttributes(entry),
      error: getFailureCode(entry.status, entry.error_code),
    },
    attempts: all.slice(first).map((attempt, index) => toAttemptSpan(requestId, operation, attempt, first + index)),
  };
}

const toOperationName = ({ operation }: CallColumns): string => operationNames[operation] ?? operation;

/** The attributes of a call, by the same conventions. */
export function toCallAttributes(entry: CallColumns): SpanAttributes {
  const attributes: SpanAttributes = {
    'gen_ai.operation.name': toOperationName(entry),
    'sluice.request_id': entry.request_id,
    'sluice.workspace_id': entry.workspace_id,
    'sluice.kind': entry.kind,
    'sluice.attempts': entry.attempts,
  };
  const optional: Record<string, string | number | null> = {
    'gen_ai.provider.name': entry.provider === null ? null : providerName(entry.provider),
    'gen_ai.request.model': entry.model,
    'gen_ai.response.model': entry.response_model,
    'gen_ai.response.id': entry.provider_request_id,
    'gen_ai.conversation.id': entry.session_id,
    'gen_ai.agent.id': entry.agent_id,
    'gen_ai.usage.input_tokens': entry.input_tokens,
    'gen_ai.usage.output_tokens': entry.output_tokens,
    'http.response.status_code': entry.status,
    'error.type': getFailureCode(entry.status, entry.error_code),
    'sluice.trace_id': entry.trace_id,
    'sluice.virtual_key': entry.virtual_key,
    'sluice.config': entry.config,
    'sluice.cache': entry.cache_status,
    'sluice.batch_id': entry.batch_id,
    'sluice.batch_line': entry.batch_line,
    'sluice.cost_cents': entry.cost === null ? null : Number(entry.cost),
  };
  for (const [name, value] of Object.entries(optional)) if (value !== null) attributes[name] = value;
  if (entry.finish_reason !== null) attributes['gen_ai.response.finish_reasons'] = [entry.finish_reason];
  return attributes;
}

/** The name of a provider in these conventions. */
export const providerName = (provider: string): string => findProvider(provider)?.semanticName ?? provider;

function toAttemptSpan(requestId: string, operation: string, attempt: Attempt, index: number): EndedSpan {
  const { startedAt, durationMs, status, errorCode, to } = attempt;
  const error = getFailureCode(status, errorCode);
  return {
    spanId: attemptSpanId(requestId, index),
    name: to?.model == null ? operation : `${operation} ${to.model}`,
    kind: 'client',
    startMs: startedAt,
    endMs: startedAt + durationMs,
    attributes: {
      'gen_ai.operation.name': operation,
      ...(to === undefined ? {} : targetAttributes(to)),
      ...(status === null ? {} : { 'http.response.status_code': status }),
      ...(error === null ? {} : { 'error.type': error }),
      ...(index === 0 ? {} : { 'http.request.resend_count': index }),
    },
    error,
  };
}

const targetAttributes = ({ target, model }: NonNullable<Attempt['to']>): SpanAttributes => ({
  'gen_ai.provider.name': providerName(target.provider),
  'server.address': target.baseUrl.hostname,
  'sluice.target': target.label,
  ...(model === null ? {} : { 'gen_ai.request.model': model }),
});
