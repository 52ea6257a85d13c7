import type { ForwardRequest, Outcome, Target } from '#libs/calls/call.ts';
import type { CallTarget } from '#libs/calls/call-target.ts';
import { listAttempts, noAttempts, type Call } from '#libs/calls/planned-call.ts';
import { retryVerdict, type RetryPolicy } from '#libs/calls/retry.ts';
import { toAbortSignal } from '#libs/kernel/call-signal.ts';
import { asGatewayError, type ErrorKind, type GatewayError } from '#libs/kernel/errors.ts';
import type { MemberEdits } from '#libs/kernel/json/json-members.ts';
import { chooseSticky } from './sticky.ts';
import { editParams } from './edit-params.ts';
import { plainLeaf } from './plain-plan.ts';
import { recoverStream } from './recover-stream.ts';
import { editByPrompt, type RenderPrompt } from './render-prompt.ts';
import type { Leaf, LeafRetry, PlanNode, WeightedOption } from './plan.ts';

/** Where the calls of a leaf go. `model` is the one that is requested from the provider. */
export type Resolved = { target: Target; model: string | null };

/**
 * Resolves a leaf when it is about to be called. `model` is that of the body with the leaf's edits; `isLeafsModel`: the
 * config chose it. Throws GatewayError.
 */
export type Resolve<Planned extends Call> = (
  call: Planned,
  leaf: Leaf,
  model: string | null,
  isLeafsModel: boolean,
) => Resolved | Promise<Resolved>;

export type PlanDeps = {
  callTarget: CallTarget['call'];
  /** Searches for the expression of a condition. An expression that takes too long counts as not found. */
  search: (
    rule: string,
    text: string,
    caller: { workspaceId: string; signal: AbortSignal },
  ) => boolean | Promise<boolean>;
  /** Absent: no leaf has a prompt. */
  renderPrompt?: RenderPrompt | undefined;
  /** Returns a number from 0 to 1. */
  random: () => number;
  now: () => number;
  /** The longest wait before the first retry at a target; doubled each time. Default 1 s. */
  retryBaseMs?: number | undefined;
};

type Pass<Planned extends Call> = {
  resolve: Resolve<Planned>;
  /** Edits to the client's request, for the rest of an answer that broke off. */
  edits?: MemberEdits | undefined;
  /** No attempt starts after this time. Default: only `retryWaitMsMax` limits the retries. */
  deadlineAt?: number | undefined;
};

/** The maximum sum of the waits between the attempts of a live call at one target (CONF-2). */
const retryWaitMsMax = 60_000;
const retryStatuses: readonly number[] = [429, 500, 502, 503, 504, 529];

/**
 * Runs a call with its plan, once from the top: chooses a target, calls it, and continues with others if the plan says
 * so. Afterwards, `call` has the target that it went to. Never rejects.
 *
 * Fallback continues with the next option when the status of the answer is listed, or, without a list, when it is not
 * 2xx. A call without an answer counts as 502, 503 (an open circuit, a full queue), 504 and 408 (a timeout), or 424 and
 * 503 (a secret that its secret manager does not return). A stream counts until its first content; from then on it is the
 * answer. Fallback does not continue when the gateway itself refused the call (a forbidden destination, an unknown
 * virtual key, an unsupported parameter), because that is a mistake in the request or the config, which a fallback
 * would hide. Nor does it continue when the caller has left. The last outcome is the answer.
 *
 * A target whose circuit is open is skipped: a fallback always continues with the next one, and a loadbalance chooses
 * another one, also while a target waits for a rate limit. A sticky caller, or a conversation, has the same second choice
 * each time, and returns to its first one.
 */
export function runPlan<Planned extends Call>(deps: PlanDeps, call: Planned, pass: Pass<Planned>): Promise<Outcome> {
  const { root } = call.plan;
  return root.kind === 'leaf' ? runLeaf(deps, root.leaf, call, pass) : runNode(deps, root, call, pass);
}

async function runNode<Planned extends Call>(
  deps: PlanDeps,
  node: PlanNode,
  call: Planned,
  pass: Pass<Planned>,
): Promise<Outcome> {
  try {
    switch (node.kind) {
      case 'leaf':
        return await runLeaf(deps, node.leaf, call, pass);
      case 'conditional': {
        const caller = { workspaceId: call.workspaceId, signal: toAbortSignal(call.request.signal) };
        for (const { matches, node: option } of node.conditions) {
          const isMet = await matches(call, (rule, text) => deps.search(rule, text, caller));
          if (isMet) return await runNode(deps, option, call, pass);
        }
        return await runNode(deps, node.otherwise, call, pass);
      }
      case 'loadbalance': {
        let { options } = node;
        for (;;) {
          const sticky = node.sticky && chooseSticky(options, node.sticky, call, deps.now());
          const chosen = sticky ?? chooseByWeight(options, deps.random());
          const outcome = await runNode(deps, chosen.node, call, pass);
          if (!(isOpen(outcome) || isRateLimited(outcome)) || options.length === 1) return outcome;
          leave(call, outcome);
          options = options.filter((option) => option !== chosen);
        }
      }
      case 'fallback':
        return await runInOrder(deps, node, 0, call, pass);
    }
  } catch (error) {
    return failed(error);
  }
}

/** Runs the options of a fallback from `index` on. The remaining ones can continue its stream. */
async function runInOrder<Planned extends Call>(
  deps: PlanDeps,
  node: Extract<PlanNode, { kind: 'fallback' }>,
  index: number,
  call: Planned,
  pass: Pass<Planned>,
): Promise<Outcome> {
  const { options, statuses, continuesStreams } = node;
  const outcome = await runNode(deps, options[index] as PlanNode, call, pass);
  if (index + 1 >= options.length) return outcome;
  const isOver = (found: Outcome): boolean => call.request.signal.aborted || !leadsOn(found, statuses);
  const runNext = (left: Outcome, edits = pass.edits): Promise<Outcome> => {
    leave(call, left);
    return runInOrder(deps, node, index + 1, call, { ...pass, edits });
  };
  if (!isOver(outcome)) return runNext(outcome);
  if (outcome.kind !== 'stream') return outcome;
  const { request, leaf } = call;
  return recoverStream(outcome, {
    request,
    edits: pass.edits ?? {},
    // Guardrails would see only the rest of the answer, and a prompt would replace the conversation.
    continuesText: continuesStreams && leaf.outputGuardrails.length === 0 && leaf.prompt === null,
    callNext: async (broken, error, edits) =>
      isOver({ kind: 'failed', error, attempts: broken.attempts }) ? null : runNext(broken, edits),
  });
}

/** Calls one leaf. Never rejects. */
async function runLeaf<Planned extends Call>(
  deps: PlanDeps,
  own: Leaf,
  call: Planned,
  pass: Pass<Planned>,
): Promise<Outcome> {
  const { request, adjust } = call;
  const leaf = adjust === null ? own : adjust(own);
  call.leaf = leaf;
  call.target = null;
  call.model = request.model;
  call.prompt = call.promptInput === null ? null : call.promptInput.prompt;
  try {
    const { edits, model: edited, isLeafsModel } = await editRequest(deps, leaf, call);
    const model = (isLeafsModel ? edited : (call.modelOverride ?? edited)) ?? request.model;
    return await callLeaf(deps, call, pass, await pass.resolve(call, leaf, model, isLeafsModel), edits);
  } catch (error) {
    return failed(error);
  }
}

/** Returns the changes that a leaf makes to a request, and the resulting model: null if it is the caller's. */
function editRequest(deps: PlanDeps, leaf: Leaf, call: Call): EditedByLeaf | Promise<EditedByLeaf> {
  const { prompt } = leaf;
  if (leaf === plainLeaf) return unedited;
  if (prompt === null) {
    const edited = editParams(leaf, call.params);
    return { ...edited, isLeafsModel: edited.model !== null };
  }
  if (deps.renderPrompt === undefined) throw new Error('prompts are not rendered here');
  return editByPrompt(deps.renderPrompt, call, { ...leaf, prompt });
}

type EditedByLeaf = Awaited<ReturnType<typeof editByPrompt>>;
const unedited: EditedByLeaf = { edits: {}, model: null, isLeafsModel: false };

const failed = (error: unknown): Outcome => ({ kind: 'failed', error: asGatewayError(error), attempts: noAttempts });

/** Calls the resolved target of a leaf, with the leaf's edits and settings. */
function callLeaf<Planned extends Call>(
  deps: PlanDeps,
  call: Planned,
  { deadlineAt, edits: more }: Pass<Planned>,
  { target, model }: Resolved,
  edits: MemberEdits,
): Promise<Outcome> {
  const { leaf, request } = call;
  if (model !== null) call.model = model;
  const isNamed = model === null || model === (target.model ?? request.model);
  const price = leaf.publicModel?.price ?? null;
  const priced = price === null ? target : { ...target, ownPrice: price };
  call.target = isNamed ? priced : { ...priced, model };
  const policy = leaf.retry === null ? undefined : toPolicy(leaf.retry, deadlineAt, deps.retryBaseMs ?? 1_000);
  const made = leaf === plainLeaf ? request : requestOf(call, more === undefined ? edits : { ...edits, ...more });
  return deps.callTarget(call, made, policy);
}

function requestOf({ request, leaf, plan }: Call, edits: MemberEdits): ForwardRequest {
  const result: ForwardRequest = { ...request, strict: leaf.strict, unsupportedParams: leaf.unsupportedParams };
  if (Object.keys(edits).length > 0) result.edits = { ...request.edits, ...edits };
  if (leaf.timeouts !== null) result.timeouts = { ...request.timeouts, ...leaf.timeouts };
  if (leaf.forwardHeaders.length > 0) result.forwardHeaders = leaf.forwardHeaders;
  if (leaf.cacheBreakpoints) result.cacheBreakpoints = true;
  if (leaf.breaker !== null) result.breaker = leaf.breaker;
  // If there is another target to try, a batch line is rejected like a live call, instead of waiting.
  if (plan.leaves.length > 1) delete result.isBackground;
  return result;
}

/** The retry policy of a leaf. */
function toPolicy(retry: LeafRetry, deadlineAt = Number.POSITIVE_INFINITY, baseDelayMs: number): RetryPolicy {
  return {
    attemptsMax: retry.attempts + 1,
    countsRateLimited: true,
    statuses: retry.statuses ?? retryStatuses,
    baseDelayMs,
    maxDelayMs: 16 * baseDelayMs,
    deadlineAt,
    waitMsMax: retryWaitMsMax,
    obeysRetryAfter: retry.obeysRetryAfter,
    jitter: retry.jitter,
  };
}

/** The number of retries at the last target: 0 for none, -1 when all were used up without success. */
export function countRetries({ leaf }: Pick<Call, 'leaf'>, outcome: Outcome): number {
  const repeats = Math.max(0, outcome.attempts.length - 1);
  const inVain =
    repeats > 0 && leaf.retry !== null && retryVerdict(outcome, leaf.retry.statuses ?? retryStatuses) !== 'final';
  return inVain ? -1 : repeats;
}

function chooseByWeight(options: readonly WeightedOption[], random: number): WeightedOption {
  let left = random * options.reduce((sum, { weight }) => sum + weight, 0);
  const chosen = options.find(({ weight }) => {
    left -= weight;
    return left < 0;
  });
  const last = chosen ?? options.at(-1);
  if (last === undefined) throw new Error('a loadbalance without a weight above 0 was not rejected');
  return last;
}

/** A target whose circuit is open is skipped, whatever statuses are listed, because it was not called. */
const isOpen = (outcome: Outcome): boolean => outcome.kind === 'failed' && outcome.error.code === 'circuit_open';

/** The target was not called, because it waits for a rate limit of its provider. */
const isRateLimited = (outcome: Outcome): boolean =>
  outcome.kind === 'failed' && outcome.error.code === 'provider_rate_limited';

function leadsOn(outcome: Outcome, statuses: ReadonlySet<number> | null): boolean {
  if (isOpen(outcome)) return true;
  if (outcome.kind === 'failed') {
    const counted = statusesOf(outcome.error);
    return counted.length > 0 && (statuses === null || counted.some((status) => statuses.has(status)));
  }
  return statuses === null ? outcome.status < 200 || outcome.status > 299 : statuses.has(outcome.status);
}

// The status that a call without an answer counts as. Kinds that are not listed are refusals, which would be the same
// at any target.
const statusesByKind: Partial<Record<ErrorKind, readonly number[]>> = {
  provider_failed: [502],
  provider_timeout: [504, 408],
  unavailable: [503],
  // An unavailable secret of one target has no effect on the secrets of the others.
  dependency_failed: [424, 503],
  rate_limited: [429],
  budget_exceeded: [412],
};

/** Other targets do not help either if the caller has left or this process is stopping. */
const statusesOf = ({ kind, code }: GatewayError): readonly number[] =>
  code === 'call_aborted' || code === 'shutting_down' ? [] : (statusesByKind[kind] ?? []);

/** The call continues at another target, so a stream that is not used is cancelled at its provider. */
function leave(call: Call, outcome: Outcome): void {
  call.fallbacks += 1;
  call.retries += Math.max(0, outcome.attempts.length - 1);
  call.earlierAttempts = listAttempts(call, outcome);
  if (outcome.kind === 'stream') void outcome.events[Symbol.asyncIterator]().return?.();
}
