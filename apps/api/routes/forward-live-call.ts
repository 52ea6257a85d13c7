import type { Request, Response } from 'express';
import type { z } from 'zod';
import type { BatchEndpoint } from '#libs/contracts/batches.ts';
import type {
  Answer,
  Failure,
  ForwardRequest,
  JsonAnswer,
  Outcome,
  StreamAnswer,
  StreamSummary,
  Target,
} from '#libs/forwarding/answer.ts';
import { readRetryAfter } from '#libs/forwarding/retry-after.ts';
import { abortWhenClientLeaves } from '#libs/http/client-signal.ts';
import { statusOf } from '#libs/http/error-response.ts';
import { jsonBodyOf } from '#libs/http/json-body.ts';
import { addLogFields, callerOf, contextOf } from '#libs/http/request-context.ts';
import type { Route } from '#libs/http/route.ts';
import { sendTogether } from '#libs/http/send-together.ts';
import { sendEventStream } from '#libs/http/sse.ts';
import { asGatewayError, GatewayError } from '#libs/kernel/errors.ts';
import type { Logger } from '#libs/kernel/logger.ts';
import type { Operation, RelayArea } from '#libs/providers/provider.ts';
import type { RequestLog } from '#libs/request-log/request-log.ts';
import { checkCacheFlags, hasCallOptions } from '#libs/access/call-options.ts';
import { credentialsOf } from '#libs/access/request-credentials.ts';
import type { ResolveTarget } from '#libs/access/resolve-target.ts';
import { planHeaders } from '#libs/routing/plan-headers.ts';
import { createBodyCheck } from '#libs/validation/check-body.ts';
import { metadataOf } from '../call-metadata.ts';
import { runLivePlan, type LivePlanDeps } from '../run-live-plan.ts';

export type LiveDeps = LivePlanDeps & {
  forward: (request: ForwardRequest, target: Target) => Promise<Outcome>;
  resolveTarget: ResolveTarget;
  requestLog: RequestLog;
  /** A client that takes nothing of its answer for so long is cut off. */
  stallTimeoutMs: number;
  logger: Logger;
};

/** What of a body decides how it is forwarded; everything else passes untouched. */
type LiveBody = {
  model: string;
  stream?: boolean | null | undefined;
  stream_options?: { include_usage?: boolean | null | undefined } | null | undefined;
};

type LiveOperation = {
  operation: Extract<Operation, 'chat' | 'completions' | 'embeddings'>;
  /** For the document; bodies are checked by the contract of `path`, which is this one. */
  request: z.ZodType<LiveBody>;
  path: BatchEndpoint;
} & Pick<Route, 'operationId' | 'summary' | 'tag' | 'scope' | 'responses'>;

// The tracing and cache headers of gateway-api.md and the credentials of its "Authentication".
const headers = [
  'trace-id',
  'span-id',
  'parent-span-id',
  'span-name',
  'metadata',
  'virtual-key',
  'provider',
  'config',
  'custom-host',
  'request-timeout',
  'retry-count',
  'forward-headers',
  'strict-open-ai-compliance',
  'cache',
  'cache-ttl',
  'cache-namespace',
  'cache-force-refresh',
  'debug',
];

/**
 * A route of a live call: checks the body against the specification's bounds, finds the target, forwards the client's
 * own bytes, and answers with the provider's. Without a config one provider call; clients retry by themselves.
 */
export function liveRoute(deps: LiveDeps, { operation, request: schema, ...route }: LiveOperation): Route {
  const requireGoodBody = createBodyCheck(route.path);
  return {
    method: 'POST',
    ...route,
    request: { body: 'json-bytes', bodySchema: schema, contract: route.path, headers },
    handler: async (request, response) => {
      const json = jsonBodyOf(request);
      if (!json.isChecked) requireGoodBody(json.value);
      const body = json.head as LiveBody;
      refuseWhenUnlogged(deps.requestLog);
      const { workspaceId, defaults } = callerOf(request);
      const credentials = credentialsOf(request.headers);
      checkCacheFlags(request.headers);
      const stream = body.stream === true;
      const hasPlan =
        credentials.config !== null ||
        defaults.configId !== null ||
        hasCallOptions(request.headers) ||
        deps.routing.isGuarded(workspaceId);
      if (hasPlan) {
        const plan = await deps.routing.planOf({ workspaceId, credentials, headers: request.headers, defaults });
        if (plan !== null) {
          const startedAt = Date.now();
          const controller = abortWhenClientLeaves(response);
          const run = await runLivePlan(deps, plan, {
            workspaceId,
            credentials,
            metadata: metadataOf(request),
            pathname: route.path,
            request: toForward(operation, request, body, controller.signal, json.value),
          });
          const { target, model, leaf, attempts, outcome } = run;
          const call: Call = {
            operation,
            stream,
            model: model ?? body.model,
            target,
            startedAt,
            option: leaf.path,
            attempts: attempts.length,
            isRecorded: false,
          };
          return answer(deps, request, response, call, outcome, controller, planHeaders(run));
        }
      }
      const found = deps.resolveTarget({ workspaceId, credentials, model: body.model, defaults });
      // In the usual case it is there at once, and a turn of the event loop is saved.
      const resolved = found instanceof Promise ? await found : found;
      const { target, model } = resolved;
      const call: Call = {
        operation,
        stream,
        model,
        target,
        startedAt: Date.now(),
        option: null,
        attempts: null,
        isRecorded: false,
      };
      const controller = abortWhenClientLeaves(response);
      // The value of a large body is made when an adapter needs it; most send the bytes.
      const parsed = json.isChecked ? undefined : json.value;
      const outcome = await deps.forward(toForward(operation, request, body, controller.signal, parsed), target);
      return answer(deps, request, response, call, outcome, controller, {
        // As for a call with a config, which may also have been tried again, elsewhere, or not at all.
        'x-gateway-provider': target.provider,
        'x-gateway-retry-attempt-count': '0',
      });
    },
  };
}

function toForward(
  operation: LiveOperation['operation'],
  request: Request,
  body: LiveBody,
  signal: AbortSignal,
  parsed: unknown,
): ForwardRequest {
  return {
    operation,
    body: jsonBodyOf(request).bytes,
    parsed: parsed as Record<string, unknown> | undefined,
    model: body.model,
    stream: body.stream === true,
    includeUsage: body.stream_options?.include_usage === true,
    headers: request.headers as Record<string, string>,
    signal,
    memory: contextOf(request).memory ?? undefined,
  };
}

/**
 * Sends what came of a call, with the headers `told` about it, and records it, also when it cannot be sent; a promise only
 * where there is something to wait for.
 */
export function answer(
  deps: LiveDeps,
  request: Request,
  response: Response,
  call: Call,
  outcome: Outcome,
  controller: AbortController,
  told: Readonly<Record<string, string>>,
): void | Promise<void> {
  try {
    const sending = send(deps, request, response, call, outcome, controller, told);
    return sending?.catch((error: unknown) => lost(deps, request, call, outcome, error));
  } catch (error) {
    return lost(deps, request, call, outcome, error);
  }
}

/** A call that could not be answered as it ended; its provider was asked all the same. */
function lost(
  deps: Pick<LiveDeps, 'requestLog'>,
  request: Request,
  call: Call,
  outcome: Outcome,
  error: unknown,
): never {
  if (!call.isRecorded) {
    const answered = outcome.kind === 'failed' ? null : outcome;
    record(deps, request, call, {
      status: statusOf(error),
      errorCode: asGatewayError(error).code,
      attempts: outcome.attempts.length,
      ...paidFor(answered),
    });
  }
  throw error;
}

/** What is known of an answer, for its row. */
const paidFor = (answered: Answer | null | undefined): Partial<Recorded> =>
  answered
    ? {
        usage: answered.usage,
        responseModel: answered.model,
        finishReason: answered.finishReason,
        providerRequestId: answered.providerRequestId,
      }
    : {};

function send(
  deps: LiveDeps,
  request: Request,
  response: Response,
  call: Call,
  outcome: Outcome,
  controller: AbortController,
  told: Readonly<Record<string, string>>,
): void | Promise<void> {
  const headers: Readonly<Record<string, string>> =
    outcome.kind === 'failed'
      ? told
      : { ...told, 'x-gateway-cache-status': 'DISABLED', ...withRetryAdvice(outcome.headers) };
  if (outcome.kind === 'json') return sendJson(deps, request, response, call, outcome, headers);
  for (const name in headers) response.setHeader(name, headers[name] as string);
  if (outcome.kind === 'failed') return failed(deps, request, call, outcome, controller.signal);
  return sendStream(deps, request, response, call, outcome, controller);
}

// openai-python gives up on a longer wait, and openai-node 6 would sleep through any, however long; both obey
// x-should-retry first.
const sleepMsMax = 60_000;

const isWaitTold = (headers: Record<string, string>): boolean =>
  headers['retry-after'] !== undefined ||
  headers['retry-after-ms'] !== undefined ||
  headers['x-ms-retry-after-ms'] !== undefined;

/**
 * A provider's headers without a Retry-After that says nothing (SDKs take -5 for "at once"). One beyond a minute stays as
 * it is, for whoever plans by it, and SDKs are told not to sleep so long.
 */
export function withRetryAdvice(headers: Record<string, string>): Record<string, string> {
  if (!isWaitTold(headers)) return headers;
  const waitMs = readRetryAfter(headers, Date.now());
  if (waitMs !== null) return waitMs <= sleepMsMax ? headers : { ...headers, 'x-should-retry': 'false' };
  const { 'retry-after': _after, 'retry-after-ms': _ms, 'x-ms-retry-after-ms': _azure, ...others } = headers;
  return others;
}

export type Call = {
  operation: Operation | RelayArea;
  stream: boolean;
  model: string | null;
  /** null: refused before it was known. */
  target: Target | null;
  startedAt: number;
  /** The config's target that answered. */
  option: string | null;
  /** Calls to all of the config's targets; null: those of the outcome. */
  attempts: number | null;
  /** It has its row in the request log. */
  isRecorded: boolean;
};

/** A call whose record could not be kept is refused before it costs anything. */
export function refuseWhenUnlogged(requestLog: RequestLog): void {
  if (!requestLog.isFull()) return;
  const message = 'The request log cannot be written now, and calls are not made without a record. Try again shortly.';
  throw new GatewayError('unavailable', 'request_log_full', message, { retryAfterMs: 2_000 });
}

function failed(
  deps: LiveDeps,
  request: Request,
  call: Call,
  { error, attempts, lostAnswer }: Failure,
  signal: AbortSignal,
): never {
  const left = signal.aborted;
  record(deps, request, call, {
    status: left ? 499 : statusOf(error),
    errorCode: left ? 'client_closed_request' : error.code,
    attempts: attempts.length,
    ...paidFor(lostAnswer),
  });
  throw error;
}

function sendJson(
  deps: LiveDeps,
  request: Request,
  response: Response,
  call: Call,
  answer: JsonAnswer,
  headers: Readonly<Record<string, string>>,
): void {
  // One list: a header that is set by itself costs three times as much.
  const head: string[] = [];
  for (const name in headers) head.push(name, headers[name] as string);
  head.push('content-type', answer.contentType, 'content-length', String(answer.body.length));
  response.writeHead(answer.status, head);
  sendTogether(response, answer.body, deps.stallTimeoutMs);
  const { status, usage, model, finishReason, providerRequestId, attempts } = answer;
  record(deps, request, call, {
    status,
    errorCode: status >= 400 ? `http_${status}` : null,
    attempts: attempts.length,
    usage,
    responseModel: model,
    finishReason,
    providerRequestId,
  });
}

async function sendStream(
  deps: LiveDeps,
  request: Request,
  response: Response,
  call: Call,
  answer: StreamAnswer,
  controller: AbortController,
): Promise<void> {
  const ended = await sendEventStream(request, response, answer.events, {
    controller,
    logger: deps.logger,
    status: answer.status,
    stallTimeoutMs: deps.stallTimeoutMs,
  });
  const summary: StreamSummary = await answer.done;
  const gone = ended === 'disconnected' || ended === 'stalled';
  record(deps, request, call, {
    status: gone ? 499 : answer.status,
    errorCode: gone ? `client_${ended}` : (summary.error?.code ?? (summary.complete ? null : 'upstream_truncated')),
    attempts: answer.attempts.length,
    usage: summary.usage,
    responseModel: summary.model,
    finishReason: summary.finishReason,
    providerRequestId: answer.providerRequestId,
    firstEventMs: summary.firstEventMs,
  });
}

type Recorded = {
  status: number;
  errorCode: string | null;
  attempts: number;
  usage?: StreamSummary['usage'];
  responseModel?: string | null;
  finishReason?: string | null;
  providerRequestId?: string | null;
  firstEventMs?: number;
};

/** After the answer: the row of the request log, and the fields of the request's one log line. */
export function record(deps: Pick<LiveDeps, 'requestLog'>, request: Request, call: Call, ended: Recorded): void {
  call.isRecorded = true;
  const context = contextOf(request);
  const { workspaceId, keyId } = callerOf(request);
  const provider = call.target?.provider ?? null;
  const usage = ended.usage ?? null;
  deps.requestLog.record({
    workspace_id: workspaceId,
    key_id: keyId,
    kind: 'live',
    operation: call.operation,
    request_id: context.requestId,
    trace_id: context.traceId,
    span_id: context.spanId,
    parent_span_id: context.parentSpanId,
    span_name: context.spanName,
    metadata: metadataOf(request),
    provider,
    virtual_key: call.target?.label ?? null,
    model: call.model,
    response_model: ended.responseModel ?? null,
    provider_request_id: ended.providerRequestId ?? null,
    stream: call.stream,
    status: ended.status,
    error_code: ended.errorCode,
    finish_reason: ended.finishReason ?? null,
    attempts: call.attempts ?? ended.attempts,
    started_at: new Date(call.startedAt),
    duration_ms: performance.now() - context.startedMs,
    first_event_ms: ended.firstEventMs ?? null,
    input_tokens: usage?.inputTokens ?? null,
    cached_tokens: usage?.cachedTokens ?? null,
    output_tokens: usage?.outputTokens ?? null,
    reasoning_tokens: usage?.reasoningTokens ?? null,
    batch_id: null,
    batch_line: null,
    last_used_option: call.option,
  });
  addLogFields(request, {
    provider,
    model: call.model,
    provider_status: ended.status,
    error_code: ended.errorCode ?? undefined,
    input_tokens: usage?.inputTokens,
    output_tokens: usage?.outputTokens,
  });
}
