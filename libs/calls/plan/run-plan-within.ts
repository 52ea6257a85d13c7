import { createRetryBudget, judge, type RetryPolicy, type Verdict } from '#libs/calls/retry.ts';
import type { Attempt, Wait } from '#libs/calls/call.ts';
import type { Plan } from './plan.ts';
import { runPlan, type PlanRequest, type PlanRun, type RunDeps } from './run-plan.ts';

/**
 * Runs a plan again, whole, for as long as its answer can be retried and the policy allows: what a batch does with a
 * line, around the retries and fallbacks of its config. `attempts` are those of all passes. Rejects when the signal of
 * the request aborts between two passes, or when the request is not to go on after its wait.
 */
export async function runPlanWithin(
  deps: RunDeps & { sleep: (ms: number, signal: AbortSignal) => Promise<void> },
  plan: Plan,
  planned: PlanRequest,
  policy: RetryPolicy,
): Promise<PlanRun> {
  const attempts: Attempt[] = [];
  const { signal, aside } = planned.request;
  const budget = createRetryBudget(policy, deps.random);
  for (;;) {
    const run = await runPlan(deps, plan, { deadlineAt: policy.deadlineAt, ...planned });
    attempts.push(...run.attempts);
    const verdict = judge(run.outcome, null, policy.statuses);
    const waitMs = budget.next(verdict, run.outcome, deps.now());
    if (waitMs === null) return { ...run, attempts };
    const wait = (end: AbortSignal): Promise<void> => deps.sleep(waitMs, end);
    if (aside === undefined) await wait(signal);
    else await aside(whatWaits(run, verdict, policy, deps.now() + waitMs), wait);
    signal.throwIfAborted();
  }
}

function whatWaits({ outcome, target, model }: PlanRun, verdict: Verdict, policy: RetryPolicy, untilMs: number): Wait {
  const isOpen = outcome.kind === 'failed' && outcome.error.code === 'circuit_open';
  const isCounted = verdict !== 'rate_limited' || policy.countsRateLimited === true;
  const reason = isOpen ? 'circuit_open' : isCounted ? 'retry' : 'rate_limited';
  return { reason, label: target?.label ?? null, model, untilMs };
}
