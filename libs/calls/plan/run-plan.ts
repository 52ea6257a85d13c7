import type { ForwardRequest, Outcome, Target } from '#libs/calls/call.ts';
import type { CallTarget } from '#libs/calls/call-target.ts';
import { attemptsOf, noAttempts, type Call } from '#libs/calls/planned-call.ts';
import { judge, type RetryPolicy } from '#libs/calls/retry.ts';
import { asGatewayError, type ErrorKind, type GatewayError } from '#libs/kernel/errors.ts';
import type { MemberEdits } from '#libs/kernel/json-members.ts';
import { chooseSticky } from './sticky.ts';
import { editParams } from './edit-params.ts';
import { plainLeaf } from './plain-plan.ts';
import type { Leaf, LeafRetry, PlanNode, WeightedOption } from './plan.ts';

/** Where a leaf's calls go; `model` is what its provider is asked for. */
export type Resolved = { target: Target; model: string | null };

/**
 * Resolves a leaf when its turn comes. `model` is the body's with the leaf's edits; `isLeafsModel`: the config chose it.
 * A promise only where something has to be looked up. Throws GatewayError.
 */
export type Resolve<Planned extends Call> = (
  call: Planned,
  leaf: Leaf,
  model: string | null,
  isLeafsModel: boolean,
) => Resolved | Promise<Resolved>;

export type PlanDeps = {
  callTarget: CallTarget['call'];
  /** Looks for an expression of a condition; one that takes too long counts as not found. */
  search: (
    rule: string,
    text: string,
    caller: { workspaceId: string; signal: AbortSignal },
  ) => boolean | Promise<boolean>;
  /** From 0 to 1. */
  random: () => number;
  now: () => number;
  /** The longest wait before the first repeat of a target's call; doubled each time. Default 1 s. */
  retryBaseMs?: number | undefined;
};

type Pass<Planned extends Call> = {
  resolve: Resolve<Planned>;
  /** No attempt starts after this moment. Default: retries are bounded by `retryWaitMsMax` alone. */
  deadlineAt?: number | undefined;
};

/** What the waits between the attempts of one target of a live call may come to (CONF-2). */
const retryWaitMsMax = 60_000;
const retryStatuses: readonly number[] = [429, 500, 502, 503, 504, 529];

/**
 * Runs a call by its plan, once from the top: decides which target it goes to, calls it, and goes on from there. Where it
 * went is in `call` afterwards. Never rejects.
 *
 * Fallback goes on to the next option when an answer's status is listed, or, without a list, when it is no 2xx; a call
 * without an answer counts as 502, 503 (a breaker, a full queue), or 504 and 408 (a timeout). A stream counts until its
 * first event: after that it is the answer. It does not go on when the gateway itself refused the call (a destination
 * that is not allowed, an unknown virtual key, a parameter that the provider does not support): that is a mistake in the
 * request or the config, and would only be hidden. Nor when the caller left. The last outcome is the answer.
 *
 * A target whose circuit breaker is open is passed over: by a fallback always, by a loadbalance for one of the others.
 */
export function runPlan<Planned extends Call>(deps: PlanDeps, call: Planned, pass: Pass<Planned>): Promise<Outcome> {
  const { root } = call.plan;
  // A plan of one target, as nearly every call has it, costs no promise of its own.
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
        const caller = { workspaceId: call.workspaceId, signal: call.request.signal };
        for (const { matches, node: option } of node.conditions) {
          const met = matches(call, (rule, text) => deps.search(rule, text, caller));
          if (met instanceof Promise ? await met : met) return await runNode(deps, option, call, pass);
        }
        return await runNode(deps, node.otherwise, call, pass);
      }
      case 'loadbalance': {
        const sticky = node.sticky && chooseSticky(node.options, node.sticky, call, deps.now());
        let chosen = sticky ?? chooseByWeight(node.options, deps.random());
        let { options } = node;
        for (;;) {
          const outcome = await runNode(deps, chosen.node, call, pass);
          if (!isOpen(outcome) || options.length === 1) return outcome;
          leave(call, outcome);
          const open = chosen;
          options = options.filter((option) => option !== open);
          chosen = chooseByWeight(options, deps.random());
        }
      }
      case 'fallback': {
        const [first, ...others] = node.options;
        let outcome = await runNode(deps, first as PlanNode, call, pass);
        for (const option of others) {
          if (call.request.signal.aborted || !leadsOn(outcome, node.statuses)) return outcome;
          leave(call, outcome);
          outcome = await runNode(deps, option, call, pass);
        }
        return outcome;
      }
    }
  } catch (error) {
    return failed(error);
  }
}

/** One leaf's turn. A promise that never rejects; without any waits in between, that of its target. */
function runLeaf<Planned extends Call>(
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
  try {
    const edited = leaf === plainLeaf ? unedited : editParams(leaf, call.params);
    const model = edited.model ?? call.modelOverride ?? request.model;
    const found = pass.resolve(call, leaf, model, edited.model !== null);
    if (found instanceof Promise) {
      return found.then((resolved) => callLeaf(deps, call, pass, resolved, edited.edits)).catch(failed);
    }
    const outcome = callLeaf(deps, call, pass, found, edited.edits);
    // A plain call has nothing around it that could reject.
    return leaf === plainLeaf ? outcome : outcome.catch(failed);
  } catch (error) {
    return Promise.resolve(failed(error));
  }
}

const unedited: ReturnType<typeof editParams> = { edits: {}, model: null };

const failed = (error: unknown): Outcome => ({ kind: 'failed', error: asGatewayError(error), attempts: noAttempts });

/** Calls the leaf of a call at its resolved target, with the leaf's edits and settings. */
function callLeaf<Planned extends Call>(
  deps: PlanDeps,
  call: Planned,
  { deadlineAt }: Pass<Planned>,
  { target, model }: Resolved,
  edits: MemberEdits,
): Promise<Outcome> {
  const { leaf, request } = call;
  if (model !== null) call.model = model;
  const isNamed = model === null || model === (target.model ?? request.model);
  call.target = isNamed ? target : { ...target, model };
  const policy = leaf.retry === null ? undefined : toPolicy(leaf.retry, deadlineAt, deps.retryBaseMs ?? 1_000);
  return deps.callTarget(call, leaf === plainLeaf ? request : requestOf(call, edits), policy);
}

function requestOf({ request, leaf, plan }: Call, edits: MemberEdits): ForwardRequest {
  const result: ForwardRequest = { ...request, strict: leaf.strict, unsupportedParams: leaf.unsupportedParams };
  if (Object.keys(edits).length > 0) result.edits = { ...request.edits, ...edits };
  if (leaf.timeouts !== null) result.timeouts = { ...request.timeouts, ...leaf.timeouts };
  if (leaf.forwardHeaders.length > 0) result.forwardHeaders = leaf.forwardHeaders;
  if (leaf.breaker !== null) result.breaker = leaf.breaker;
  // Where another target may take it, a batch line is rejected as a live call is, instead of waiting.
  if (plan.leaves.length > 1) delete result.backgroundUntil;
  return result;
}

/** The policy of a leaf's retries. */
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

/** Repeats of the last target's call: 0 none, -1 when its retries were used up in vain. */
export function retryAttemptsOf({ leaf }: Pick<Call, 'leaf'>, outcome: Outcome): number {
  const repeats = Math.max(0, outcome.attempts.length - 1);
  const inVain = repeats > 0 && leaf.retry !== null && judge(outcome, leaf.retry.statuses ?? retryStatuses) !== 'final';
  return inVain ? -1 : repeats;
}

function chooseByWeight(options: readonly WeightedOption[], random: number): WeightedOption {
  let left = random * options.reduce((sum, { weight }) => sum + weight, 0);
  const chosen = options.find(({ weight }) => {
    left -= weight;
    return left < 0;
  });
  const last = chosen ?? options.at(-1);
  if (last === undefined) throw new Error('a loadbalance without a weight above 0 was not refused');
  return last;
}

/** A target whose circuit breaker is open is passed over, whatever statuses are listed: it was not asked. */
const isOpen = (outcome: Outcome): boolean => outcome.kind === 'failed' && outcome.error.code === 'circuit_open';

function leadsOn(outcome: Outcome, statuses: ReadonlySet<number> | null): boolean {
  if (isOpen(outcome)) return true;
  if (outcome.kind === 'failed') {
    const counted = statusesOf(outcome.error);
    return counted.length > 0 && (statuses === null || counted.some((status) => statuses.has(status)));
  }
  return statuses === null ? outcome.status < 200 || outcome.status > 299 : statuses.has(outcome.status);
}

// What a call without an answer counts as; kinds that are not here are refusals, which no other target could mend.
const statusesByKind: Partial<Record<ErrorKind, readonly number[]>> = {
  provider_failed: [502],
  provider_timeout: [504, 408],
  unavailable: [503],
  rate_limited: [429],
};

/** Nor could it help that the caller left or that this process stops. */
const statusesOf = ({ kind, code }: GatewayError): readonly number[] =>
  code === 'call_aborted' || code === 'shutting_down' ? [] : (statusesByKind[kind] ?? []);

/** The call goes on elsewhere: a stream that is not used is cancelled at its provider. */
function leave(call: Call, outcome: Outcome): void {
  call.earlierAttempts = attemptsOf(call, outcome);
  if (outcome.kind === 'stream') void outcome.events[Symbol.asyncIterator]().return?.();
}
