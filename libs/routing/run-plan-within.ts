import { createRetryBudget, judge, type RetryPolicy } from '#libs/forwarding/retry.ts';
import type { Attempt } from '#libs/forwarding/answer.ts';
import type { Plan } from './plan.ts';
import { runPlan, type PlanRequest, type PlanRun, type RunDeps } from './run-plan.ts';

/**
 * Runs a plan again, whole, for as long as its answer can be retried and the policy allows: what a batch does with a
 * line, around the retries and fallbacks of its config. `attempts` are those of all passes. Rejects when the signal of
 * the request aborts between two passes.
 */
export async function runPlanWithin(
  deps: RunDeps & { sleep: (ms: number, signal: AbortSignal) => Promise<void> },
  plan: Plan,
  planned: PlanRequest,
  policy: RetryPolicy,
): Promise<PlanRun> {
  const attempts: Attempt[] = [];
  const { signal } = planned.request;
  const budget = createRetryBudget(policy, deps.random);
  for (;;) {
    const run = await runPlan(deps, plan, { deadlineAt: policy.deadlineAt, ...planned });
    attempts.push(...run.attempts);
    const waitMs = budget.next(judge(run.outcome, null, policy.statuses), run.outcome, deps.now());
    if (waitMs === null) return { ...run, attempts };
    await deps.sleep(waitMs, signal);
    signal.throwIfAborted();
  }
}
