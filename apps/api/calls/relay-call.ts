import { PassThrough } from 'node:stream';
import type { Request, Response } from 'express';
import { credentialHeaders, readCredentials, splitSlug } from '#libs/credentials/requested.ts';
import type { ForwardRequest, Relayed } from '#libs/calls/call.ts';
import { abortCallWhenClientLeaves } from '#libs/http/client-signal.ts';
import { getCaller, getContext } from '#libs/http/request-context.ts';
import type { HttpMethod, Route, RouteText } from '#libs/http/route.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { operationPaths, type Operation, type RelayArea, type ScopedRelayArea } from '#libs/providers/provider.ts';
import { createLiveCall, liveCourse } from './live-call.ts';
import { answerCall } from './answer-call.ts';
import { estimateIfUnsupported } from './estimated-count.ts';
import { sessionHeaders, type LiveDeps } from './forward-live-call.ts';
import { makeCallTraceparent, refuseWhenUnlogged } from './record-call.ts';
import { noBody, readRelayBody, type RelayBody, type RelayBodyLimits } from './relay-body.ts';
import { toFirstTarget } from '#libs/calls/plan/plain-plan.ts';
import type { Plan } from '#libs/calls/plan/plan.ts';
import { mustHoldStream } from '#libs/calls/protect/guardrails/guard-stream.ts';

export type RelayDeps = LiveDeps & RelayBodyLimits;

/** The forwarded operation; `path` is the route's, in Express form. */
type Forwarded = { area: RelayArea; method: Exclude<HttpMethod, 'PUT'>; path: string };

/** One operation of a pass-through area. */
export type RelayOperation = Forwarded &
  RouteText & {
    area: ScopedRelayArea;
    operationId: string;
    summary: string;
    /** Whether its body is a form. */
    isForm: boolean;
    /** The content type of its answer. */
    answers: string;
  };

/** A route of a pass-through area, which forwards its calls by `relayHandler`. */
export function relayRoute(deps: RelayDeps, operation: RelayOperation): Route {
  const { area, method, path, operationId, summary, description, example, errors } = operation;
  const streamed =
    method === 'POST' && operation.answers === 'application/json' && streamedPaths.has(path) ? { streams: true } : {};
  return {
    method,
    path,
    operationId,
    summary,
    ...(description === undefined ? {} : { description }),
    ...(example === undefined ? {} : { example }),
    ...(errors === undefined ? {} : { errors }),
    tag: toAreaTag(area),
    ...(deprecatedAreas.has(area) ? { deprecated: true } : {}),
    scope: `${area}.${method === 'GET' ? 'read' : 'write'}`,
    request: {
      query: 'relayed' as const,
      ...(method === 'POST' ? { body: 'relayed' as const } : {}),
      isForm: operation.isForm,
      headers: [...sessionHeaders, 'metadata', ...credentialHeaders],
    },
    responses: {
      200: { description: "The provider's answer, unchanged.", contentType: operation.answers, ...streamed },
    },
    handler: relayHandler(deps, operation),
  };
}

/**
 * Forwards a call whole, in both directions, without storing bodies: only a JSON body, and a form up to its model, are
 * read. The credential comes from the headers, or from the `@virtual-key/model` of the body or of the path. A JSON call
 * that guardrails check before and after is made like an ordinary call.
 */
export function relayHandler(
  deps: RelayDeps,
  { area, method, path }: Forwarded,
): (request: Request, response: Response) => Promise<void> {
  const course = liveCourse(deps.routing);
  const hasBodies = area !== 'stored_objects';
  return async (request, response) => {
    refuseBrowserSession(request);
    refuseWhenUnlogged(deps.requestLog);
    const providerPath = pathAtProvider(path, request);
    const controller = abortCallWhenClientLeaves(response);
    const { workspaceId, defaults, keyId, principal } = getCaller(request);
    const credentials = readCredentials(request.headers);
    const { virtualKey, provider, config } = credentials;
    const needsModel = virtualKey === null && provider === null && config === null && defaults.configId === null;
    const body = hasBodies ? await readRelayBody(request, response, deps, needsModel) : noBody;
    const found = await deps.routing.planOf({
      workspaceId,
      credentials,
      headers: null,
      defaults,
      model: body.model,
      caller: { keyId, role: principal.role },
    });
    const { plan, isWhole, ...judged } = planRelayed(found.plan, { method, path, area, body });
    const context = getContext(request);
    // For a request without a body, or with one that passes unread.
    context.memory ??= deps.jsonBody.memory?.open(workspaceId) ?? null;
    const { relayed, drop } = relayedOf(request, method, providerPath, body);
    const sent: ForwardRequest = {
      ...judged,
      isFree: isFree({ method, path, area }, body.model),
      body: body.json ?? noBytes,
      model: modelOfPath(request) ?? body.model,
      stream: body.asksForStream,
      includeUsage: false,
      headers: request.headers as Record<string, string>,
      signal: controller,
      memory: context.memory ?? undefined,
      traceId: context.traceId,
      traceparent: makeCallTraceparent(deps, request),
      ...(isWhole ? {} : { relayed }),
    };
    const own = { credentials, pathname: path, sent, isRouted: false, modelOverride: publicTarget(found.plan) };
    const call = createLiveCall(request, { ...found, plan }, own);
    const made = await deps.calls.run(call, course);
    if (made.kind === 'failed') {
      drop();
      if (body.isStreamed && body.model === null) requireReadModel(made.error, deps.formModel.readBytesMax);
    }
    const outcome = path === countPath ? estimateIfUnsupported(made, sent.body, toResponseCount) : made;
    return answerCall(deps, { request, response, controller, call, outcome });
  };
}

/** The model of the first target of a public model. null: the call names no public model, and keeps its own model. */
function publicTarget({ leaves: [{ publicModel, overrides }] }: Plan): string | null {
  const raw = overrides.get('model');
  return publicModel === null || raw === undefined ? null : (JSON.parse(raw) as string);
}

/**
 * A relayed answer has the content type and the bytes of the provider. The console's origin must not serve them to a
 * browser that is signed in to it. The console itself calls only routes whose answers the gateway builds.
 */
function refuseBrowserSession(request: Request): void {
  if (!getContext(request).isBrowserSession) return;
  const message =
    "A browser session cannot be used for calls that relay a provider's answer. Send a gateway key in x-gateway-api-key.";
  throw new GatewayError('forbidden', 'use_a_key', message);
}

/** Counts the tokens of a response, which is estimated for providers without the Responses API. */
const countPath = '/v1/responses/input_tokens';
const toResponseCount = (tokens: number): object => ({ object: 'response.input_tokens', input_tokens: tokens });

/** OpenAI has replaced them by the Responses API. */
const deprecatedAreas: ReadonlySet<RelayArea> = new Set<RelayArea>(['assistants', 'threads']);

/** The operations that accept `stream`. */
const streamedPaths: ReadonlySet<string> = new Set([
  '/v1/images/generations',
  '/v1/images/edits',
  '/v1/audio/transcriptions',
  '/v1/threads/runs',
  '/v1/threads/:threadId/runs',
  '/v1/threads/:threadId/runs/:runId/submit_tool_outputs',
]);

/** The operations that run a model. All others list, read, store or change objects. */
const workPaths: ReadonlySet<string> = new Set([
  ...streamedPaths,
  '/v1/responses/compact',
  '/v1/moderations',
  '/v1/images/variations',
  '/v1/audio/speech',
  '/v1/audio/translations',
  '/v1/rerank',
]);

/** Moderations for which the provider chooses the model are free. */
const isFree = ({ method, path, area }: Forwarded, model: string | null): boolean =>
  method !== 'POST' || !workPaths.has(path) || (area === 'moderations' && model === null);

const noBytes = Buffer.alloc(0);

/** The request for the provider. `drop`: releases a body that is still arriving and will not be read any more. */
function relayedOf(
  request: Request,
  method: Forwarded['method'],
  path: string,
  { send }: RelayBody,
): { relayed: Relayed; drop: () => void } {
  let body: unknown = null;
  return {
    relayed: {
      method,
      path,
      accept: request.headers.accept ?? null,
      send(model) {
        const sent = send(model);
        ({ body } = sent);
        return sent;
      },
    },
    drop() {
      // If it is full, it would block the rest of the request, which must still be read and dropped.
      if (body instanceof PassThrough) body.destroy();
    },
  };
}

/** Explains where the virtual key must be in a body that was not read to its end. */
function requireReadModel(error: GatewayError, readBytesMax: number): void {
  if (error.code !== 'missing_credentials') return;
  const message = `The first ${readBytesMax} bytes of this body do not name a virtual key. Send it in the header x-gateway-virtual-key, or in the form part model, as @virtual-key/model, before the file.`;
  throw new GatewayError('invalid_request', 'missing_credentials', message, { param: error.param, cause: error });
}

// The form of IDs of resources at providers. It does not allow another path of the provider than the route's.
const idShape = /^(?!\.{1,2}$)[\w.:-]{1,200}$/;

/** The model that a path names, as the request contains it: `ft:gpt-5-mini:…` or `@virtual-key/ft:…`. */
const modelOfPath = ({ params }: Request): string | null =>
  params['model'] === undefined ? null : String(params['model']);

/** The path below the provider's base address: the route's own words, with the ids of the request, and its query. */
function pathAtProvider(path: string, request: Request): string {
  const segments = path.split('/').slice(2);
  const filled = segments.map((segment) => {
    if (!segment.startsWith(':')) return segment;
    const name = segment.slice(1);
    const value = String(request.params[name] ?? '');
    if (name === 'model') {
      const model = splitSlug(value)?.model ?? value;
      // Servers of open models have slashes in their names.
      if (model.split('/').every((part) => idShape.test(part))) return model.replaceAll('/', '%2F');
    } else if (idShape.test(value)) return value;
    const message = `The '${name}' of this request is not a valid ID.`;
    throw new GatewayError('not_found', null, message, { param: name });
  });
  const query = request.originalUrl.indexOf('?');
  return `/${filled.join('/')}${query === -1 ? '' : request.originalUrl.slice(query)}`;
}

/** `vector_stores`: Vector stores. */
export const toAreaTag = (area: RelayArea): string =>
  `${area.charAt(0).toUpperCase()}${area.slice(1).replaceAll('_', ' ')}`;

type Relay = { method: string; path: string; area: RelayArea; body: Pick<RelayBody, 'json' | 'asksForStream'> };

/**
 * `isWhole`: the answer is checked before it is sent, so the call is made as one of `operation` instead of being
 * relayed.
 */
type RelayPlan = { plan: Plan; operation: Operation | RelayArea; isWhole: boolean };

const checkableOperations: ReadonlyMap<string, Operation> = new Map(
  (['moderations', 'images'] as const).map((operation) => [`/v1${operationPaths[operation]}`, operation]),
);

/**
 * The plan of a pass-through call: the first target of its config with its guardrails. They check both input and output
 * of a call whose answer comes whole, and only the input of a stream. Throws unsupported_operation
 * (`guardrails_not_applicable`) if a guardrail cannot check the call, because guardrails are never skipped silently.
 */
function planRelayed(plan: Plan, { method, path, area, body }: Relay): RelayPlan {
  const { guarded, unguarded } = toFirstTarget(plan);
  const { inputGuardrails: input, outputGuardrails: output } = guarded.leaves[0];
  const relayed = { plan: unguarded, operation: area, isWhole: false };
  if (input.length === 0 && output.length === 0) return relayed;
  const operation = method === 'POST' ? checkableOperations.get(path) : undefined;
  if (operation === undefined || body.json === null) {
    const hasInput = method === 'POST' && input.length > 0;
    const hasOutput = method !== 'DELETE' && output.length > 0;
    if (hasInput || hasOutput) throw notApplicable(method, path);
    return relayed;
  }
  const { asksForStream } = body;
  if (asksForStream && mustHoldStream(output)) throw streamNotApplicable(path);
  return { plan: guarded, operation, isWhole: !asksForStream };
}

function notApplicable(method: string, path: string): GatewayError {
  const message = `The guardrails of the config cannot check ${method} ${path}. Guardrails check JSON calls of chat, completions, embeddings, messages, responses and ${[...checkableOperations.keys()].join(', ')}. Use a config without guardrails for this call.`;
  return new GatewayError('unsupported_operation', 'guardrails_not_applicable', message, { param: 'config' });
}

function streamNotApplicable(path: string): GatewayError {
  const message = `Guardrails check the whole answer of ${path} before it is sent, so it cannot be streamed. Send the request without "stream": true.`;
  return new GatewayError('unsupported_operation', 'guardrails_not_applicable', message, { param: 'stream' });
}
