import { shuttingDown } from '#libs/calls/cancelled.ts';
import { toAbortSignal } from '#libs/kernel/call-signal.ts';
import type { Clock } from '#libs/kernel/clock.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { MemberEdits } from '#libs/kernel/json/json-members.ts';
import { chatDialect } from '#libs/providers/chat/index.ts';
import { findDialect, findTranslation } from '#libs/providers/dialects.ts';
import type { Call, Operation, Provider, Translation } from '#libs/providers/provider.ts';
import type { Resource } from '#libs/providers/turns/media.ts';
import { namesForHeader, pickHeaders } from './answers/answer-headers.ts';
import type { Attempt, ForwardRequest, Limits, Target } from '#libs/calls/call.ts';
import { mergeTimeouts, type Timeouts } from '#libs/calls/timeouts.ts';
import type { AttemptInput } from './attempt.ts';
import { authorize } from './authorize.ts';
import { checkOrigin, getSecrets } from './credential.ts';
import { editedBody } from './edited-body.ts';
import type { AnswerThreads } from './answers/answer-threads.ts';
import type { Egress } from './egress/egress.ts';
import { fetchResources } from './egress/fetch-resources.ts';
import { createHoldToJsonObject, type HoldToJsonObject } from './answers/hold-to-json-object.ts';
import { createLazyFaults } from './provider-faults.ts';
import { prepareRelay, type RelayInput } from './relay/relay.ts';

type Deps = {
  egress: Egress;
  clock: Clock;
  limits: Limits;
  /** The timeouts of the process. */
  timeouts: Timeouts;
  providers: (id: string) => Provider | undefined;
  threads: AnswerThreads | undefined;
  /** Aborted when this process starts no more calls. */
  stopping: AbortSignal;
};

const noEdits = {};
const noUrls: readonly string[] = [];
const modelsBytesMax = 4_194_304;
const noResources: ReadonlyMap<string, Resource> = new Map();

export type PreparedCall = {
  /** Returns the request of one attempt; a promise if a token or an image has to be fetched first. */
  nextInput: () => AttemptInput | RelayInput | Promise<AttemptInput>;
  /** Checks each outcome of a call that requests a JSON object in words. Such a call is never streamed. */
  hold: HoldToJsonObject | null;
  target: Target;
  /** The model that is requested from the provider. */
  model: string | null;
};

/**
 * Makes a call ready to be sent, as far as all of its attempts have that in common. Throws everything that can be
 * refused before a connection is opened: invalid_request, unsupported_operation, or `shutting_down`.
 */
export function prepareCall(
  deps: Deps,
  request: ForwardRequest,
  target: Target,
  attempts: readonly Attempt[],
): PreparedCall {
  if (deps.stopping.aborted) throw shuttingDown();
  const { relayed } = request;
  if (relayed === undefined) return new ModelCall(deps, request, target, attempts);
  const timeouts = mergeTimeouts(deps.timeouts, request.timeouts);
  const input = prepareRelay({ ...deps, timeouts, attempts }, { ...request, relayed }, target);
  return { target, model: target.model ?? request.model, nextInput: () => input, hold: null };
}

/** A prepared call of a model. A class because one is made for every call. */
class ModelCall implements PreparedCall {
  readonly hold: HoldToJsonObject | null;
  readonly target: Target;
  readonly model: string | null;
  readonly #clock: Clock;
  /** The parts that all attempts share. */
  readonly #shared: Omit<AttemptInput, 'call' | 'outbound'> & { request: ForwardRequest; secrets: string[] };
  readonly #call: Call;
  /** Of files that the request refers to and that the provider does not fetch itself. */
  readonly #urls: readonly string[];
  #fetched: Promise<Call> | undefined;

  constructor(deps: Deps, request: ForwardRequest, target: Target, attempts: readonly Attempt[]) {
    const { egress, clock, limits, providers, threads } = deps;
    const { provider, translation } = requireTranslation(providers, request, target);
    egress.check(target.baseUrl);
    const secrets = getSecrets(target);
    const faults = createLazyFaults(target.label, secrets);
    const wanted = toCall(request, target, provider);
    const isInWords = translation.asksForJsonInWords?.(wanted) === true;
    this.hold = isInWords ? createHoldToJsonObject(faults) : null;
    this.target = target;
    this.model = target.model ?? request.model;
    this.#clock = clock;
    this.#shared = {
      request,
      target,
      egress,
      limits: request.operation === 'models' ? { ...limits, jsonBytesMax: modelsBytesMax } : limits,
      provider,
      translation,
      timeouts: mergeTimeouts(deps.timeouts, request.timeouts),
      signal: request.signal,
      faults,
      secrets,
      workspaceId: target.workspaceId,
      memory: request.memory,
      threads,
      attempts,
    };
    this.#call = isInWords ? { ...wanted, stream: false, includeUsage: false } : wanted;
    this.#urls = translation.resourcesOf?.(this.#call) ?? noUrls;
  }

  nextInput(): AttemptInput | Promise<AttemptInput> {
    if (this.#urls.length === 0) return this.#encode(this.#call);
    this.#fetched ??= this.#fetchResources();
    return this.#fetched.then((call) => this.#encode(call));
  }

  async #fetchResources(): Promise<Call> {
    const { egress, signal, workspaceId, memory } = this.#shared;
    const options = { egress, signal: toAbortSignal(signal), workspaceId, memory };
    return { ...this.#call, resources: await fetchResources(this.#urls, options) };
  }

  #encode(call: Call): AttemptInput | Promise<AttemptInput> {
    const { target } = this;
    const { request, provider, translation } = this.#shared;
    const outbound = translation.encode(call, target);
    checkOrigin(target, outbound.origin);
    if (outbound.dropped?.length && request.unsupportedParams === 'refuse') throw cannotTake(target, outbound.dropped);
    outbound.headers.push('accept-encoding', 'identity', 'user-agent', 'sluice');
    if (request.traceparent !== undefined) outbound.headers.push('traceparent', request.traceparent);
    if (request.forwardHeaders) addForwarded(outbound.headers, request);
    const input = { ...this.#shared, call, outbound };
    if (!provider.authorize) return input;
    return authorize(provider, outbound, target, { ...this.#shared, clock: this.#clock }).then(() => input);
  }
}

function requireTranslation(
  providers: (id: string) => Provider | undefined,
  request: ForwardRequest,
  target: Target,
): { provider: Provider; translation: Translation } {
  const provider = providers(target.provider);
  if (!provider) {
    throw new GatewayError('invalid_request', 'unknown_provider', `There is no provider "${target.provider}".`);
  }
  const translation = findTranslation(provider, request.operation as Operation, requestedModel(request, target));
  if (!translation) {
    throw new GatewayError(
      'unsupported_operation',
      'unsupported_operation',
      `The provider ${provider.id} does not support ${request.operation}.`,
    );
  }
  return { provider, translation };
}

/** Adds the client's own headers that a config forwards. They never replace those of the adapter. */
function addForwarded(out: string[], { headers = {}, forwardHeaders = [] }: ForwardRequest): void {
  const taken = new Set(out.filter((_, index) => index % 2 === 0).map((name) => name.toLowerCase()));
  for (const name of forwardHeaders) {
    const value = headers[name];
    if (value === undefined || taken.has(name)) continue;
    taken.add(name);
    out.push(name, value);
  }
}

const cannotTake = (target: Target, dropped: readonly string[]): GatewayError =>
  new GatewayError(
    'invalid_request',
    'unsupported_parameter',
    `${target.label} (${target.provider}) does not support ${namesForHeader(dropped)}. Leave ${dropped.length > 1 ? 'them' : 'it'} out, or set unsupported_params of the config to 'drop'.`,
    { param: dropped[0] ?? null },
  );

/** The model that is requested from the target. '': none. */
function requestedModel({ edits, model }: ForwardRequest, target: Target): string {
  if (target.model !== undefined) return target.model;
  const set = edits?.['model'];
  return set === undefined ? (model ?? '') : String(JSON.parse(set));
}

function toCall(request: ForwardRequest, target: Target, provider: Provider): Call {
  const { operation, body, stream, includeUsage, memory } = request;
  let { parsed } = request;
  const renamed = target.model !== undefined && target.model !== request.model;
  const dialect = findDialect(operation as Operation);
  const given: MemberEdits = renamed
    ? { ...request.edits, model: JSON.stringify(target.model) }
    : (request.edits ?? noEdits);
  const edits = given === noEdits ? given : (dialect.adaptEdits?.(body, given) ?? given);
  return {
    operation: operation as Operation,
    dialect,
    model: requestedModel(request, target),
    body,
    edits,
    stream,
    includeUsage,
    strict: dialect === chatDialect && (request.strict ?? true),
    cacheBreakpoints: request.cacheBreakpoints,
    resources: noResources,
    headers: pickHeaders(request.headers, provider.clientHeaders),
    retain: memory && ((bytes) => memory.charge(bytes)),
    json: () => {
      parsed ??= JSON.parse(body.toString()) as Readonly<Record<string, unknown>>;
      return editedBody(body, edits, parsed);
    },
  };
}
