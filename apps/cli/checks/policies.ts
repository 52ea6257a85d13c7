import { createAccessSnapshot } from '#libs/snapshot/access-snapshot.ts';
import { createDatabase } from '#libs/database/pool.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import { checkBudgets, isExplained, type BudgetCheck } from '#libs/policies/check-budgets.ts';
import { readCallGroups } from '#libs/request-log/read/call-groups.ts';
import { resourceKinds } from '#libs/resources/resource-kinds.ts';
import { withMigratedPool } from '../operate/migrated-pool.ts';

/** Compares the counters of all budgets with the request log; with `repair`, idle counters that lack calls are raised. */
export async function checkPolicies(
  { connectionString, repair }: { connectionString: string; repair: boolean },
  logger: Logger,
): Promise<BudgetCheck[]> {
  const options = { connectionString, applicationName: 'sluice-check-policies' };
  return await withMigratedPool(options, logger, async (pool) => {
    const db = createDatabase(pool);
    // Limits have no secrets, so the master key is not needed.
    const snapshot = createAccessSnapshot({ db, logger, listenConnectionString: null, secrets: { open: () => ({}) } });
    await snapshot.refresh();
    const records = [
      ...resourceKinds.filter((kind) => kind.limits !== undefined).map((kind) => snapshot.live(kind).records),
      snapshot.integrationLimits(),
    ];
    const rules = records.flatMap((ofKind) => [...ofKind.values()].flatMap(({ limits }) => limits));
    const credentialIdOf = (workspaceId: string, slug: string): string | null =>
      snapshot.findCredential(workspaceId, slug)?.id ?? null;
    const readGroups = (workspaceId: string, sinceMs: number) => readCallGroups(db, workspaceId, sinceMs);
    return await checkBudgets({ db, rules, credentialIdOf, readGroups, nowMs: Date.now() }, { repair });
  });
}

export const isUnequal = (check: BudgetCheck): boolean => !check.isRepaired && !isExplained(check);

const notTakenBack =
  'Calls of killed processes and calls without an answer may have been charged, so --repair does not take them back. If ' +
  'you know that they were not, reset the counter: PUT /v1/policies/usage-limits/{id}/entities/{id}/reset.';

/** The result as text, one line for each counter that differs, and a sum. */
export function describePolicies(checks: readonly BudgetCheck[]): string[] {
  const lines = checks
    .filter(({ counted, logged }) => !counted.eq(logged))
    .map((check) => {
      const unit = check.measure === 'cost' ? 'US cents' : 'tokens';
      const notes = [
        ...(check.assumed.gt(0) ? [`${check.assumed.toFixed()} of it held by killed processes`] : []),
        ...(check.unconfirmed.gt(0) ? [`${check.unconfirmed.toFixed()} of it for calls whose answers were lost`] : []),
        ...(check.leased.gt(0) ? [`${check.leased.toFixed()} reserved by calls under way`] : []),
        ...(check.unpriced > 0 ? [`${check.unpriced} calls without a price`] : []),
        ...(check.isRepaired ? ['raised to the log'] : isExplained(check) ? [] : ['not explained by the log']),
      ];
      const what = `${check.label} (${check.workspaceId}), ${check.valueKey}`;
      const noted = notes.length === 0 ? '' : ` (${notes.join('; ')})`;
      return `${what}: counted ${check.counted.toFixed()} ${unit}, logged ${check.logged.toFixed()}${noted}`;
    });
  const [left, raised] = [checks.filter(isUnequal).length, checks.filter(({ isRepaired }) => isRepaired).length];
  const result =
    lines.length === 0 ? 'all equal to the request log' : `${lines.length} differ, ${left} without explanation`;
  const repaired = raised === 0 ? '' : `, ${raised} raised to the log`;
  const kept = checks.some(({ assumed, unconfirmed }) => assumed.plus(unconfirmed).gt(0)) ? [notTakenBack] : [];
  return [...lines, `checked ${checks.length} counters of budgets: ${result}${repaired}`, ...kept];
}

/** The result as JSON, one line for each counter. Amounts are texts, because they are exact. */
export const policyCheckToJson = (check: BudgetCheck): string =>
  JSON.stringify({
    id: check.id,
    workspace_id: check.workspaceId,
    limit: check.label,
    value_key: check.valueKey,
    measure: check.measure,
    max: check.max.toFixed(),
    counted: check.counted.toFixed(),
    logged: check.logged.toFixed(),
    assumed: check.assumed.toFixed(),
    unconfirmed: check.unconfirmed.toFixed(),
    leased: check.leased.toFixed(),
    unpriced: check.unpriced,
    is_explained: isExplained(check),
    is_repaired: check.isRepaired,
  });
