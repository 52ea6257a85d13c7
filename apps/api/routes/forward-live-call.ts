import type { Request } from 'express';
import type { z } from 'zod';
import type { BatchEndpoint } from '#libs/contracts/batches.ts';
import type { ForwardRequest, Outcome, Target } from '#libs/calls/call.ts';
import { abortWhenClientLeaves } from '#libs/http/client-signal.ts';
import { jsonBodyOf } from '#libs/http/json-body.ts';
import { callerOf, contextOf } from '#libs/http/request-context.ts';
import type { Route } from '#libs/http/route.ts';
import type { Operation } from '#libs/providers/provider.ts';
import { checkCacheFlags, hasCallOptions } from '#libs/access/call-options.ts';
import { credentialsOf } from '#libs/access/request-credentials.ts';
import type { ResolveTarget } from '#libs/access/resolve-target.ts';
import { planHeaders } from '#libs/calls/plan/plan-headers.ts';
import { createBodyCheck } from '#libs/validation/check-body.ts';
import { metadataOf } from '../call-metadata.ts';
import { runLivePlan, type LivePlanDeps } from '../run-live-plan.ts';
import { answerCall, type AnswerDeps } from './answer-call.ts';
import { refuseWhenUnlogged, type Call } from './record-call.ts';

export type LiveDeps = LivePlanDeps &
  AnswerDeps & {
    forward: (request: ForwardRequest, target: Target) => Promise<Outcome>;
    resolveTarget: ResolveTarget;
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

// Tracing, cache, and where the call goes with which credential.
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
 * A route of a live call: checks the body (CALL-1, CALL-2), finds the target, forwards the client's
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
          return answerCall(deps, request, response, call, outcome, controller, planHeaders(run));
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
      return answerCall(deps, request, response, call, outcome, controller, {
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
