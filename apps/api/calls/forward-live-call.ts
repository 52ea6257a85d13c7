import type { Request } from 'express';
import type { z } from 'zod';
import { checkCacheFlags } from '#libs/credentials/configs/call-options.ts';
import { credentialHeaders, readCredentials } from '#libs/credentials/requested.ts';
import { withoutConfig } from '#libs/credentials/configs/plan.ts';
import type { Routing } from '#libs/credentials/routing.ts';
import type { ForwardRequest, Outcome } from '#libs/calls/call.ts';
import type { Calls } from '#libs/calls/calls.ts';
import { abortCallWhenClientLeaves } from '#libs/http/client-signal.ts';
import { getJsonBody, type JsonBody } from '#libs/http/bodies/json-body.ts';
import { getCaller, getContext } from '#libs/http/request-context.ts';
import { plainPath, type Route, type RouteRequest, type RouteText } from '#libs/http/route.ts';
import { spliceMembers } from '#libs/kernel/json/json-members.ts';
import type { Operation } from '#libs/providers/provider.ts';
import { toRecord } from '#libs/providers/turns/json-value.ts';
import type { CallSignal } from '#libs/kernel/call-signal.ts';
import { createBodyCheck, type ContractName } from '#libs/validation/lines/check-body.ts';
import { createLiveCall, liveCourse } from './live-call.ts';
import { answerCall, type AnswerDeps } from './answer-call.ts';
import { refuseWhenUnlogged, makeCallTraceparent } from './record-call.ts';

export type LiveDeps = AnswerDeps & {
  routing: Pick<Routing, 'planOf' | 'resolveLeaf'>;
  calls: Pick<Calls, 'run'>;
};

/** The members of a body that determine how it is forwarded. All others pass untouched. */
export type LiveBody = {
  model?: string | null | undefined;
  stream?: boolean | null | undefined;
  stream_options?: { include_usage?: boolean | null | undefined } | null | undefined;
};

/** A body as it is forwarded: the client's bytes, or what they were converted to. */
export type LiveInput = { head: LiveBody; bytes: Buffer; parse: () => Json };

type Json = Readonly<Record<string, unknown>>;

export type LiveOperation = {
  operation: Exclude<Operation, 'models' | 'moderations' | 'images'>;
  /** For the document. Bodies are checked by `contract`, which is the same. */
  request: z.ZodType;
  path: string;
  contract: ContractName;
  /** Reads the call of a path or a body that is not in the form of the operation. Absent: it is, and is forwarded unchanged. */
  readInput?: (request: Request, json: JsonBody) => LiveInput;
  /** Members that the path has instead of the body, which is checked with them. `undefined` removes one. */
  readPath?: (request: Request, body: Json) => Json;
  /** Converts what the client gets. */
  convert?: (outcome: Outcome, input: LiveInput) => Outcome;
  /** The call runs no model and costs nothing. */
  isFree?: true;
  /** Absent: it has no query. */
  query?: Pick<RouteRequest, 'query'>;
} & RouteText &
  Pick<Route, 'operationId' | 'summary' | 'tag' | 'scope' | 'responses'>;

/** Headers of the agent session. */
export const sessionHeaders: readonly string[] = ['session-id', 'agent-id', 'parent-agent-id'];

// Headers for tracing, the cache, and the destination and credential of the call.
export const liveHeaders: readonly string[] = [
  'trace-id',
  'span-id',
  'parent-span-id',
  'span-name',
  ...sessionHeaders,
  'metadata',
  ...credentialHeaders,
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
 * A route of a live call: checks the body (CALL-1, CALL-2), finds its plan, sends the client's own bytes to its target,
 * and answers with the provider's. Without a config, there is only one provider call; clients retry themselves.
 */
export function liveRoute(deps: LiveDeps, live: LiveOperation): Route {
  const { operation, request: schema, query, contract, readPath, convert, isFree, ...rest } = live;
  const { readInput = readPath === undefined ? readOwnInput : readWithPath(readPath), ...route } = rest;
  const requireGoodBody = createBodyCheck(contract);
  const pathname = plainPath(route.path);
  const course = liveCourse(deps.routing);
  return {
    method: 'POST',
    ...route,
    request: {
      ...query,
      body: 'json-bytes',
      bodySchema: schema,
      ...(readPath === undefined ? { contract } : {}),
      headers: liveHeaders,
    },
    handler: async (request, response) => {
      const json = getJsonBody(request);
      if (readPath === undefined && !json.isChecked) requireGoodBody(json.value);
      const input = readInput(request, json);
      if (readPath !== undefined) requireGoodBody(input.parse());
      refuseWhenUnlogged(deps.requestLog);
      const { workspaceId, defaults, keyId, principal } = getCaller(request);
      const credentials = readCredentials(request.headers);
      checkCacheFlags(request.headers);
      const found = await deps.routing.planOf({
        workspaceId,
        credentials,
        headers: request.headers,
        defaults,
        model: input.head.model ?? null,
        caller: { keyId, role: principal.role },
      });
      const controller = abortCallWhenClientLeaves(response);
      // Without a config, the value of a large body is parsed when an adapter needs it. Most adapters send the bytes.
      const isRouted = found !== withoutConfig;
      const parsed = json.isChecked && !isRouted ? undefined : input.parse();
      const sent = toForward(operation, request, input.head, input.bytes, controller, parsed);
      if (isFree) sent.isFree = true;
      sent.traceparent = makeCallTraceparent(deps, request);
      const call = createLiveCall(request, found, { credentials, pathname, sent, isRouted });
      const made = await deps.calls.run(call, course);
      const outcome = convert === undefined ? made : convert(made, input);
      return answerCall(deps, { request, response, controller, call, outcome });
    },
  };
}

const readOwnInput = (_request: Request, json: JsonBody): LiveInput => ({
  head: json.head as LiveBody,
  bytes: json.bytes,
  parse: () => json.value as Json,
});

const readWithPath =
  (readPath: NonNullable<LiveOperation['readPath']>) =>
  (request: Request, json: JsonBody): LiveInput => {
    // The check of the contract says what else it should be.
    if (json.head === null) return readOwnInput(request, json);
    const members = readPath(request, toRecord(json.value));
    const value: Json = { ...toRecord(json.value), ...members };
    const edits = Object.entries(members).map(([name, member]) => [name, JSON.stringify(member)] as const);
    return { head: value, bytes: spliceMembers(json.bytes, Object.fromEntries(edits)), parse: () => value };
  };

/** Streams of these operations always have their usage. */
const alwaysWithUsage: ReadonlySet<Operation> = new Set<Operation>(['messages', 'responses', 'generate_content']);

export function toForward(
  operation: LiveOperation['operation'],
  request: Request,
  body: LiveBody,
  bytes: Buffer,
  signal: CallSignal,
  parsed: unknown,
): ForwardRequest {
  return {
    operation,
    body: bytes,
    parsed: parsed as Record<string, unknown> | undefined,
    model: body.model ?? null,
    stream: body.stream === true,
    includeUsage: alwaysWithUsage.has(operation) || body.stream_options?.include_usage === true,
    headers: request.headers as Record<string, string>,
    signal,
    memory: getContext(request).memory ?? undefined,
    traceId: getContext(request).traceId,
  };
}
