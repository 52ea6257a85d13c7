import type { FoundPlan, Routing } from '#libs/access/routing.ts';
import { withOptions } from '#libs/access/call-options.ts';
import type { RequestCredentials } from '#libs/access/request-credentials.ts';
import type { ForwardRequest, Outcome } from '#libs/calls/call.ts';
import type { TextJudge } from '#libs/calls/protect/guardrails/text-judge.ts';
import { runPlan, type LeafCall, type PlanRun } from '#libs/calls/plan/run-plan.ts';

export type LivePlanDeps = {
  routing: Routing;
  /** Calls one target of a config; guardrails and cache are put around this. */
  callLeaf: (call: LeafCall) => Promise<Outcome>;
  /** Looks for the expressions of conditions. */
  search: TextJudge['search'];
};

/** Runs a live call by its config, with the caller's credentials where a target has none of its own. */
export function runLivePlan(
  { routing, callLeaf, search }: LivePlanDeps,
  { plan, param, options }: FoundPlan,
  call: {
    workspaceId: string;
    credentials: RequestCredentials;
    metadata: Readonly<Record<string, string>> | null;
    pathname: string;
    request: ForwardRequest;
  },
): Promise<PlanRun> {
  const { workspaceId, credentials, metadata, pathname, request } = call;
  return runPlan(
    {
      resolve: (leaf, model, isLeafsModel) =>
        routing.resolveLeaf({ workspaceId, credentials, leaf, param, model, isLeafsModel }),
      callLeaf,
      search: (rule, text, signal) => search(rule, text, { workspaceId, signal }),
      random: Math.random,
      now: Date.now,
    },
    plan,
    {
      request,
      call: { params: request.parsed ?? {}, metadata, pathname },
      ...(options === null ? {} : { adjust: (leaf) => withOptions(leaf, options) }),
    },
  );
}
