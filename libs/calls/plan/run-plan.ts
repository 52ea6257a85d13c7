import type { Attempt, ForwardRequest, Outcome, Target } from '#libs/calls/call.ts';
import { judge, type RetryPolicy } from '#libs/calls/retry.ts';
import { asGatewayError, type ErrorKind, type GatewayError } from '#libs/kernel/errors.ts';
import { chooseSticky } from './sticky.ts';
import { editParams } from './edit-params.ts';
import type { Leaf, LeafRetry, PatternSearch, Plan, PlanCall, PlanNode, WeightedOption } from './plan.ts';

/** One leaf's turn: everything that its call needs. `request` has the leaf's edits, timeouts and flags. */
export type LeafCall = {
  leaf: Leaf;
  request: ForwardRequest;
  target: Target;
  /** What the provider is asked for. */
  model: string | null;
  policy: RetryPolicy | undefined;
  /** The caller's, as conditions see it. */
  metadata: PlanCall['metadata'];
};

export type RunDeps = {
  /**
   * Where a leaf's calls go, judged when its turn comes. `model` is the body's with the leaf's edits; `isLeafsModel`: the
   * config chose it. Throws GatewayError.
   */
  resolve: (
    leaf: Leaf,
    model: string | null,
    isLeafsModel: boolean,
  ) => { target: Target; model: string | null } | Promise<{ target: Target; model: string | null }>;
  /**
   * Calls a leaf: `forwarder.settle`, and around it whatever belongs to one target (guardrails, cache). Its outcome is
   * what fallbacks are decided on. Must not reject but for bugs.
   */
  callLeaf: (call: LeafCall) => Promise<Outcome>;
  /** Looks for an expression of a condition; one that takes too long counts as not found. */
  search: (rule: string, text: string, signal: AbortSignal) => boolean | Promise<boolean>;
  /** From 0 to 1. */
  random: () => number;
  now: () => number;
  /** The longest wait before the first repeat of a target's call; doubled each time. Default 1 s. */
  retryBaseMs?: number;
};

export type PlanRequest = {
  /** The client's call; `signal` ends the whole plan. Its `headers` are read when a leaf forwards some. */
  request: ForwardRequest;
  call: PlanCall;
  /** No attempt starts after this moment: a batch's expiry. Default: retries are bounded by `retryWaitMsMax` alone. */
  deadlineAt?: number;
  /** A leaf as this call wants it: what its headers say over the config. */
  adjust?: (leaf: Leaf) => Leaf;
  /** Asked for instead of the body's model, where no leaf says otherwise. */
  model?: string | null;
};

export type PlanRun = {
  outcome: Outcome;
  /** The last leaf that had its turn. */
  leaf: Leaf;
  /** null: refused before it was known where the call goes. */
  target: Target | null;
  model: string | null;
  /** Every call to every provider, oldest first; `outcome.attempts` are the last leaf's alone. */
  attempts: readonly Attempt[];
  /** Repeats of the last leaf's call: 0 none, -1 when its retries were used up in vain. */
  retryAttempts: number;
};

/** What the waits between the attempts of one target of a live call may come to (CONF-2). */
const retryWaitMsMax = 60_000;
const retryStatuses: readonly number[] = [429, 500, 502, 503, 504, 529];

/**
 * Runs a call by a plan. Never rejects.
 *
 * Fallback goes on to the next option when an answer's status is listed, or, without a list, when it is no 2xx; a call
 * without an answer counts as 502, 503 (a breaker, a full queue), or 504 and 408 (a timeout). A stream counts until its
 * first event: after that it is the answer. It does not go on when the gateway itself refused the call (a destination
 * that is not allowed, an unknown virtual key, a parameter that the provider cannot take): that is a mistake in the
 * request or the config, and would only be hidden. Nor when the caller left. The last outcome is the answer.
 *
 * A target whose circuit breaker is open is passed over: by a fallback always, by a loadbalance for one of the others.
 */
export async function runPlan(deps: RunDeps, plan: Plan, planned: PlanRequest): Promise<PlanRun> {
  const attempts: Attempt[] = [];
  try {
    return await runNode(deps, plan.root, planned, attempts);
  } catch (error) {
    const outcome: Outcome = { kind: 'failed', error: asGatewayError(error), attempts: [] };
    return { outcome, leaf: plan.leaves[0], target: null, model: null, attempts, retryAttempts: 0 };
  }
}

async function runNode(deps: RunDeps, node: PlanNode, planned: PlanRequest, attempts: Attempt[]): Promise<PlanRun> {
  switch (node.kind) {
    case 'leaf':
      return runLeaf(deps, node.leaf, planned, attempts);
    case 'conditional': {
      for (const { matches, node: option } of node.conditions) {
        const search: PatternSearch = (rule, text) => deps.search(rule, text, planned.request.signal);
        const met = matches(planned.call, search);
        if (met instanceof Promise ? await met : met) return runNode(deps, option, planned, attempts);
      }
      return runNode(deps, node.otherwise, planned, attempts);
    }
    case 'loadbalance': {
      const sticky = node.sticky && chooseSticky(node.options, node.sticky, planned.call, deps.now());
      let chosen = sticky ?? chooseByWeight(node.options, deps.random());
      let { options } = node;
      for (;;) {
        const run = await runNode(deps, chosen.node, planned, attempts);
        if (!isOpen(run.outcome) || options.length === 1) return run;
        const open = chosen;
        options = options.filter((option) => option !== open);
        chosen = chooseByWeight(options, deps.random());
      }
    }
    case 'fallback': {
      const [first, ...others] = node.options;
      let run = await runNode(deps, first as PlanNode, planned, attempts);
      for (const option of others) {
        if (planned.request.signal.aborted || !leadsOn(run.outcome, node.statuses)) return run;
        discard(run.outcome);
        run = await runNode(deps, option, planned, attempts);
      }
      return run;
    }
  }
}

async function runLeaf(deps: RunDeps, own: Leaf, planned: PlanRequest, attempts: Attempt[]): Promise<PlanRun> {
  const { request } = planned;
  const leaf = planned.adjust?.(own) ?? own;
  let target: Target | null = null;
  let model: string | null = null;
  let outcome: Outcome;
  const policy = leaf.retry === null ? undefined : toPolicy(leaf.retry, planned, deps.retryBaseMs ?? 1_000);
  try {
    const edited = editParams(leaf, planned.call.params);
    const found = deps.resolve(leaf, edited.model ?? planned.model ?? request.model, edited.model !== null);
    const resolved = found instanceof Promise ? await found : found;
    model = resolved.model;
    target = model === null ? resolved.target : { ...resolved.target, model };
    const leafRequest = requestOf(request, leaf, edited.edits);
    outcome = await deps.callLeaf({
      leaf,
      request: leafRequest,
      target,
      model,
      policy,
      metadata: planned.call.metadata,
    });
  } catch (error) {
    outcome = { kind: 'failed', error: asGatewayError(error), attempts: [] };
  }
  attempts.push(...outcome.attempts);
  const repeats = Math.max(0, outcome.attempts.length - 1);
  const inVain = repeats > 0 && policy !== undefined && judge(outcome, null, policy.statuses) !== 'final';
  return { outcome, leaf, target, model, attempts, retryAttempts: inVain ? -1 : repeats };
}

function requestOf(request: ForwardRequest, leaf: Leaf, edits: ForwardRequest['edits'] & object): ForwardRequest {
  const result: ForwardRequest = { ...request, strict: leaf.strict, unsupportedParams: leaf.unsupportedParams };
  if (Object.keys(edits).length > 0) result.edits = { ...request.edits, ...edits };
  if (leaf.timeouts !== null) result.timeouts = { ...request.timeouts, ...leaf.timeouts };
  if (leaf.forwardHeaders.length > 0) result.forwardHeaders = leaf.forwardHeaders;
  return result;
}

function toPolicy(retry: LeafRetry, { deadlineAt }: PlanRequest, baseDelayMs: number): RetryPolicy {
  return {
    attemptsMax: retry.attempts + 1,
    countsRateLimited: true,
    statuses: retry.statuses ?? retryStatuses,
    baseDelayMs,
    maxDelayMs: 16 * baseDelayMs,
    deadlineAt: deadlineAt ?? Number.POSITIVE_INFINITY,
    waitMsMax: retryWaitMsMax,
    obeysRetryAfter: retry.obeysRetryAfter,
    jitter: retry.jitter,
  };
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

/** A stream that is not used is cancelled at the provider. */
function discard(outcome: Outcome): void {
  if (outcome.kind === 'stream') void outcome.events[Symbol.asyncIterator]().return?.();
}
