import { createAccessSnapshot } from '#libs/access/access-snapshot.ts';
import { createDatabase } from '#libs/database/pool.ts';
import type { Logger } from '#libs/kernel/logger.ts';
import { checkBudgets, type BudgetCheck } from '#libs/policies/check-budgets.ts';
import { readCallGroups } from '#libs/request-log/call-groups.ts';
import { resourceKinds } from '#libs/resources/resource-kinds.ts';
import { withMigratedPool } from './migrated-pool.ts';

/** Compares the counters of all budgets with the request log; with `repair`, idle counters get what the log says. */
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

export const isUnequal = ({ counted, logged, isRepaired }: BudgetCheck): boolean => !isRepaired && !counted.eq(logged);

/** The result as text, one line for each counter that differs, and a sum. */
export function describePolicies(checks: readonly BudgetCheck[]): string[] {
  const lines = checks
    .filter(({ counted, logged }) => !counted.eq(logged))
    .map((check) => {
      const unit = check.measure === 'cost' ? 'US cents' : 'tokens';
      const notes = [
        ...(check.assumed.gt(0) ? [`${check.assumed.toFixed()} of it assumed of killed processes`] : []),
        ...(check.leased.gt(0) ? [`${check.leased.toFixed()} reserved by calls under way`] : []),
        ...(check.unpriced > 0 ? [`${check.unpriced} calls without a price`] : []),
        ...(check.isRepaired ? ['repaired'] : []),
      ];
      const what = `${check.label} (${check.workspaceId}), ${check.valueKey}`;
      const noted = notes.length === 0 ? '' : ` (${notes.join('; ')})`;
      return `${what}: counted ${check.counted.toFixed()} ${unit}, logged ${check.logged.toFixed()}${noted}`;
    });
  const [differing, left] = [lines.length, checks.filter(isUnequal).length];
  const sum = `checked ${checks.length} counters of budgets: ${differing === 0 ? 'all equal to the request log' : `${differing} differ`}`;
  const repaired = differing === left ? '' : `, ${differing - left} of them repaired`;
  return [...lines, sum + repaired];
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
    leased: check.leased.toFixed(),
    unpriced: check.unpriced,
    is_repaired: check.isRepaired,
  });
