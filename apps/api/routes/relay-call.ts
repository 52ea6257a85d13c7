import { PassThrough } from 'node:stream';
import type { Request, Response } from 'express';
import { credentialsOf } from '#libs/access/request-credentials.ts';
import type { TargetRequest } from '#libs/access/resolve-target.ts';
import type { ResolvedTarget } from '#libs/access/target-of-credential.ts';
import type { Forwarder } from '#libs/calls/forward.ts';
import type { RelayAnswer } from '#libs/calls/upstream/relay.ts';
import { guardrailStatus } from '#libs/calls/protect/guardrails/guard-call.ts';
import type { Guardrails } from '#libs/calls/protect/guardrails/guardrails.ts';
import { abortWhenClientLeaves } from '#libs/http/client-signal.ts';
import { drainThenEnd, hasBody } from '#libs/http/drain-request.ts';
import { statusOf } from '#libs/http/error-response.ts';
import { callerOf, contextOf } from '#libs/http/request-context.ts';
import type { HttpMethod, Route } from '#libs/http/route.ts';
import { sendPieces } from '#libs/http/send-pieces.ts';
import { asGatewayError, GatewayError } from '#libs/kernel/errors.ts';
import type { RelayArea } from '#libs/providers/provider.ts';
import { metadataOf } from '../call-metadata.ts';
import { answerCall, withRetryAdvice } from './answer-call.ts';
import type { LiveDeps } from './forward-live-call.ts';
import { judgeRelayed } from './guard-relayed.ts';
import { recordCall, refuseWhenUnlogged, type Call } from './record-call.ts';
import { readRelayBody, type RelayBodyLimits } from './relay-body.ts';

export type RelayDeps = LiveDeps &
  RelayBodyLimits & {
    forwarder: Pick<Forwarder, 'relay'>;
    guardrails: Guardrails;
  };

/** One operation of a pass-through area; `path` is the route's, in Express form. */
export type RelayOperation = {
  area: RelayArea;
  method: Exclude<HttpMethod, 'PUT'>;
  path: string;
  operationId: string;
  summary: string;
  /** Its body is a form. */
  isForm: boolean;
  /** Of its answer. */
  answers: string;
};

/**
 * A route that forwards a call whole, in both directions, without holding bodies: only a JSON body, and a form as far as
 * its model, are read. The credential comes from the headers, or from the `@virtual-key/model` of the body.
 */
export function relayRoute(deps: RelayDeps, operation: RelayOperation): Route {
  const { area, method, path, operationId, summary } = operation;
  return {
    method,
    path,
    operationId,
    summary,
    tag: area,
    scope: `${area}.${method === 'GET' ? 'read' : 'write'}`,
    request: {
      query: 'relayed' as const,
      ...(method === 'POST' ? { body: 'relayed' as const } : {}),
      isForm: operation.isForm,
      headers: ['metadata', 'virtual-key', 'provider', 'config', 'custom-host'],
    },
    responses: { 200: { description: "The provider's answer, unchanged.", contentType: operation.answers } },
    handler: async (request, response) => {
      refuseWhenUnlogged(deps.requestLog);
      const providerPath = pathAtProvider(path, request);
      const controller = abortWhenClientLeaves(response);
      const { workspaceId, defaults } = callerOf(request);
      const credentials = credentialsOf(request.headers);
      const { virtualKey, provider, config } = credentials;
      const needsModel = virtualKey === null && provider === null && config === null && defaults.configId === null;
      const body = await readRelayBody(request, response, deps, needsModel);
      const { model } = body;
      const isUnread = body.isStreamed && model === null;
      const resolved = await resolve(deps, { workspaceId, credentials, model, defaults }, isUnread);
      const call: Call = {
        operation: area,
        stream: false,
        model: resolved.model,
        target: resolved.target,
        startedAt: Date.now(),
        option: null,
        attempts: null,
        isRecorded: false,
      };
      const { signal } = controller;
      const context = contextOf(request);
      // Of a request without a body, or with one that only passes.
      context.memory ??= deps.jsonBody.memory?.open(workspaceId) ?? null;
      const whole = body.isStreamed ? null : body.send(resolved.model);
      const judged =
        resolved.guardrails &&
        (await judgeRelayed(deps, resolved.guardrails, {
          method,
          path,
          body: whole?.body instanceof Buffer ? whole.body : null,
          stream: body.asksForStream,
          headers: request.headers as Record<string, string>,
          target: resolved.target,
          model: resolved.model,
          metadata: metadataOf(request),
          signal,
          memory: context.memory ?? undefined,
        }));
      if (judged?.outcome) {
        const told = { 'x-gateway-provider': resolved.target.provider };
        return answerCall(deps, request, response, call, judged.outcome, controller, told);
      }
      const sent = whole ?? body.send(resolved.model);
      response.setHeader('x-gateway-provider', resolved.target.provider);
      let answer: RelayAnswer;
      try {
        answer = await deps.forwarder.relay(
          {
            area,
            method,
            path: providerPath,
            accept: request.headers.accept ?? null,
            headers: request.headers as Record<string, string>,
            model: resolved.model,
            signal,
            memory: context.memory ?? undefined,
            onResent: () => (call.attempts = 2),
            ...sent,
          },
          resolved.target,
        );
      } catch (error) {
        // Nobody reads it any more; full, it would hold the rest of the request back that is still to be dropped.
        if (sent.body instanceof PassThrough) sent.body.destroy();
        recordFailure(deps, request, call, error, signal.aborted);
        throw error;
      }
      if (judged?.hasFailed === true && answer.status < 300) answer = { ...answer, status: guardrailStatus.failed };
      try {
        await sendRelayed(request, response, answer, controller, deps.stallTimeoutMs);
        await recordAnswer(deps, request, response, call, answer);
      } catch (error) {
        if (!call.isRecorded) recordFailure(deps, request, call, error, signal.aborted);
        answer.body.destroy();
        throw error;
      }
    },
  };
}

async function resolve(
  { resolveTarget, formModel }: RelayDeps,
  request: TargetRequest,
  isUnread: boolean,
): Promise<ResolvedTarget> {
  try {
    return await resolveTarget(request);
  } catch (error) {
    if (!isUnread || !(error instanceof GatewayError) || error.code !== 'missing_credentials') throw error;
    const message =
      `This body names no virtual key in its first ${formModel.readBytesMax} bytes: name it in the header ` +
      'x-gateway-virtual-key, or in the part model of a form, as @virtual-key/model, before the file.';
    const { param } = error;
    throw new GatewayError('invalid_request', 'missing_credentials', message, { param, cause: error });
  }
}

// Ids of resources as providers make them; nothing that could lead to another path of the provider than the route's.
const idShape = /^(?!\.{1,2}$)[\w.:-]{1,200}$/;

/** The path below the provider's base address: the route's own words, with the ids of the request, and its query. */
function pathAtProvider(path: string, request: Request): string {
  const segments = path.split('/').slice(2);
  const filled = segments.map((segment) => {
    if (!segment.startsWith(':')) return segment;
    const name = segment.slice(1);
    const value = String(request.params[name] ?? '');
    if (idShape.test(value)) return value;
    const message = `Nothing has an id like the '${name}' of this request.`;
    throw new GatewayError('not_found', null, message, { param: name });
  });
  const query = request.originalUrl.indexOf('?');
  return `/${filled.join('/')}${query === -1 ? '' : request.originalUrl.slice(query)}`;
}

/** Writes the answer as it comes. One that breaks off in the middle breaks the client's connection off as well. */
async function sendRelayed(
  request: Request,
  response: Response,
  answer: RelayAnswer,
  controller: AbortController,
  stallTimeoutMs: number,
): Promise<void> {
  const headers = withRetryAdvice(answer.headers);
  for (const name in headers) response.setHeader(name, headers[name] as string);
  response.statusCode = answer.status;
  if (answer.status >= 400 && !request.complete && hasBody(request)) {
    // Refused before the whole body was there.
    const chunks: Buffer[] = await answer.body.toArray();
    return drainThenEnd(request, response, Buffer.concat(chunks), { isSlow: false });
  }
  try {
    await sendPieces(response, answer.body as AsyncIterable<Buffer>, stallTimeoutMs);
  } catch {
    // Recorded by what `done` says.
  }
  if (response.writableEnded) return;
  controller.abort(new Error('the client left or stopped reading'));
  response.destroy();
}

function recordFailure(deps: RelayDeps, request: Request, call: Call, error: unknown, left: boolean): void {
  recordCall(deps, request, call, {
    status: left ? 499 : statusOf(error),
    errorCode: left ? 'client_closed_request' : asGatewayError(error).code,
    attempts: 1,
  });
}

async function recordAnswer(
  deps: RelayDeps,
  request: Request,
  response: Response,
  call: Call,
  answer: RelayAnswer,
): Promise<void> {
  const { usage, model, error } = await answer.done;
  const isBroken = error !== null;
  const isWhole = response.writableEnded;
  recordCall(deps, request, call, {
    status: isWhole ? answer.status : isBroken && error.code !== 'call_aborted' ? 502 : 499,
    errorCode: isWhole
      ? answer.status >= 400
        ? `http_${answer.status}`
        : null
      : (error?.code ?? 'client_disconnected'),
    attempts: 1,
    usage,
    responseModel: model,
    providerRequestId: answer.providerRequestId,
  });
}
