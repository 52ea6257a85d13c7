import { formatAmount } from '#libs/kernel/amount.ts';
import { checkBudgets, isExplained, type BudgetCheck } from '#libs/policies/check-budgets.ts';
import { readCallGroups } from '#libs/request-log/read/call-groups.ts';
import { resourceKinds } from '#libs/resources/resource-kinds.ts';
import { createAccessSnapshot } from '#libs/snapshot/access-snapshot.ts';
import type { CheckContext, CheckOptions, CheckResult, Finding } from './check.ts';

/**
 * Compares the counters of all budgets with the request log. A repair only raises counters, and only for budgets without
 * running calls.
 */
export async function checkBudgetCounters(
  { db, logger }: CheckContext,
  { repair }: CheckOptions,
): Promise<CheckResult> {
  // Limits have no secrets, so the master key is not needed.
  const snapshot = createAccessSnapshot({ db, logger, listenConnectionString: null, secrets: { open: () => ({}) } });
  await snapshot.refresh();
  const records = [
    ...resourceKinds.filter((kind) => kind.cached?.limits !== undefined).map((kind) => snapshot.live(kind).records),
    snapshot.integrationLimits(),
  ];
  const rules = records.flatMap((ofKind) => [...ofKind.values()].flatMap(({ limits }) => limits));
  const credentialIdOf = (workspaceId: string, slug: string): string | null =>
    snapshot.findCredential(workspaceId, slug)?.id ?? null;
  const readGroups = (workspaceId: string, sinceMs: number) => readCallGroups(db, workspaceId, sinceMs);
  const counters = await checkBudgets({ db, rules, credentialIdOf, readGroups, nowMs: Date.now() }, { repair });
  const different = counters.filter(({ counted, logged }) => counted !== logged);
  return {
    counts: { counters: counters.length, different_counters: different.length },
    findings: different.map(toFinding),
  };
}

const howToReset =
  '--repair does not lower a counter, because these calls may have been charged. If they were not, reset it: ' +
  'PUT /v1/policies/usage-limits/{id}/entities/{id}/reset';

function toFinding(counter: BudgetCheck): Finding {
  const { counted, logged, assumed, unconfirmed, leased, unpriced, isRepaired } = counter;
  const unit = counter.measure === 'cost' ? 'US cents' : 'tokens';
  const isOk = isRepaired || isExplained(counter);
  const notes = [
    ...(assumed > 0n ? [`${formatAmount(assumed)} of it held by killed processes`] : []),
    ...(unconfirmed > 0n ? [`${formatAmount(unconfirmed)} of it for calls whose answers were lost`] : []),
    ...(leased > 0n ? [`${formatAmount(leased)} reserved by running calls`] : []),
    ...(unpriced > 0 ? [`${unpriced} calls without a price`] : []),
    ...(isRepaired ? ['raised to the log'] : []),
    ...(isOk ? [] : ['the log does not explain the difference']),
    ...(assumed + unconfirmed > 0n ? [howToReset] : []),
  ];
  return {
    state: isRepaired ? 'repaired' : isOk ? 'note' : 'problem',
    subject: `${counter.label} (${counter.workspaceId}), ${counter.valueKey}`,
    message: [`counted ${formatAmount(counted)} ${unit}, logged ${formatAmount(logged)}`, ...notes].join('; '),
  };
}
