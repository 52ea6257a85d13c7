import type { BatchTargets } from '#libs/access/batch-target.ts';
import type { BatchRow } from '#libs/batches/batch-model.ts';
import type { WhenPossible } from '#libs/batches/call-line.ts';
import type { ForwardRequest, Outcome } from '#libs/calls/call.ts';
import type { TextJudge } from '#libs/calls/protect/guardrails/text-judge.ts';
import type { RetryPolicy } from '#libs/calls/retry.ts';
import { sleep } from '#libs/kernel/sleep.ts';
import { runPlanWithin } from '#libs/calls/plan/run-plan-within.ts';
import type { LeafCall, PlanRun } from '#libs/calls/plan/run-plan.ts';
import { tagsOf } from './log-batch-line.ts';

type Deps = {
  batchTargets: Pick<BatchTargets, 'isPlanned' | 'planOf' | 'resolveLeaf'>;
  callLeaf: (call: LeafCall) => Promise<Outcome>;
  search: TextJudge['search'];
  policy: (batch: BatchRow) => RetryPolicy;
};

/**
 * Runs the lines of batches that have a config, or whose workspace has guardrails, as live calls are run; conditions see the line's own
 * parameters, the batch's metadata and its endpoint. The batch's retries are around it: another pass, from the top.
 */
export function createLineRunner({ batchTargets, callLeaf, search, policy }: Deps) {
  return (
    batch: BatchRow,
    request: ForwardRequest,
    model: string | null,
    whenPossible: WhenPossible,
  ): Promise<PlanRun> | null => {
    const { workspace_id: workspaceId, target } = batch;
    if (!batchTargets.isPlanned(workspaceId, target)) return null;
    const run = async (): Promise<PlanRun> => {
      const { plan } = await whenPossible(() => batchTargets.planOf(workspaceId, target));
      const parsed = JSON.parse(request.body.toString()) as Record<string, unknown>;
      return await runPlanWithin(
        {
          resolve: (leaf, leafModel, isLeafsModel) =>
            whenPossible(() => batchTargets.resolveLeaf(workspaceId, target, leaf, leafModel, isLeafsModel)),
          callLeaf,
          search: (rule, text, signal) => search(rule, text, { workspaceId, signal }),
          random: Math.random,
          now: Date.now,
          sleep,
        },
        plan,
        {
          request: { ...request, parsed },
          call: { params: parsed, metadata: tagsOf(batch), pathname: batch.endpoint },
          model,
        },
        policy(batch),
      );
    };
    return run();
  };
}
