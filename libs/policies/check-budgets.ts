import type { Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import { parseAmount, type Amount } from '#libs/kernel/amount.ts';
import { advanceCounter } from '#libs/limits/counter.ts';
import { raiseUsed, readCounters, toCounter } from '#libs/limits/counter-store.ts';
import { findCounter, matches, type CallFacts, type LimitRule } from '#libs/limits/limit-rule.ts';

/** A counter of a budget in its present period, compared with the calls in the request log to which it applies. */
export type BudgetCheck = {
  id: string;
  label: string;
  workspaceId: string;
  valueKey: string;
  /** `cost` in US cents, or `tokens`. */
  measure: string;
  max: Amount;
  counted: Amount;
  /** The part of `counted` that killed processes held. Their calls may have used it. */
  assumed: Amount;
  /** The part of `counted` that was reserved by calls whose answers were lost. The log does not contain it. */
  unconfirmed: Amount;
  logged: Amount;
  /** Calls in the log whose cost is not known. */
  unpriced: number;
  /** The reservations of running calls, which are neither counted nor logged yet. */
  leased: Amount;
  isRepaired: boolean;
};

type Deps = {
  db: Kysely<Database>;
  rules: readonly LimitRule[];
  /** The ID of the stored credential that has this slug now. */
  credentialIdOf: (workspaceId: string, slug: string) => string | null;
  /** The calls of a workspace in the request log from this time on. */
  readGroups: (workspaceId: string, sinceMs: number) => Promise<LoggedGroup[]>;
  nowMs: number;
};

/** The minimum that a counter must have counted. */
const leastOf = ({ logged, unconfirmed }: Pick<BudgetCheck, 'logged' | 'unconfirmed'>): Amount => logged + unconfirmed;

/**
 * Whether the log explains the counter. Calls of killed processes can be in the log and in the leases of these
 * processes, so the correct count is anywhere between the two.
 */
export function isExplained(check: Pick<BudgetCheck, 'counted' | 'logged' | 'unconfirmed' | 'assumed'>): boolean {
  const least = leastOf(check);
  return check.counted >= least && check.counted <= least + check.assumed;
}

/**
 * Compares the counters of budgets with the request log. With `repair`, counters that have counted less than the log
 * are raised to it, if no call is running. None is lowered, because a call that is missing from the log may have
 * reached its provider. Answers that were paid for and then rejected by a retry count in a budget of tokens and are not
 * in the log's sum of tokens; costs are complete in both.
 */
export async function checkBudgets(deps: Deps, { repair }: { repair: boolean }): Promise<BudgetCheck[]> {
  const checks: BudgetCheck[] = [];
  for (const rule of deps.rules) if (rule.kind === 'budget') checks.push(...(await checkRule(deps, rule, repair)));
  return checks;
}

async function checkRule(deps: Deps, rule: LimitRule, repair: boolean): Promise<BudgetCheck[]> {
  const rows = await readCounters(deps.db, rule.limitId);
  const counters = rows.map((row) => {
    const counter = advanceCounter(toCounter(row), rule.terms, deps.nowMs);
    const sinceMs = Math.max(counter.periodStartMs, row.created_at.getTime(), row.reset_at?.getTime() ?? 0);
    return { row, counter, sinceMs };
  });
  const [first] = counters.map(({ sinceMs }) => sinceMs).toSorted((a, b) => a - b);
  if (first === undefined) return [];
  const sums = await sumLog(deps, rule, first);
  const checks: BudgetCheck[] = [];
  for (const { row, counter, sinceMs } of counters) {
    // A counter that was reset manually restarted in the middle of the period.
    const own = row.reset_at !== null && sinceMs === row.reset_at.getTime() ? await sumLog(deps, rule, sinceMs) : sums;
    const { logged, unpriced } = own.get(row.id) ?? { logged: 0n, unpriced: 0 };
    const leased = Object.values(counter.leases).reduce(
      (sum, { amount, isAssumed }) => (isAssumed ? sum : sum + amount),
      0n,
    );
    const { used: counted, assumed, unconfirmed } = counter;
    const least = leastOf({ logged, unconfirmed });
    const isRepaired = repair && counted < least && leased === 0n && (await raiseUsed(deps.db, row, counter, least));
    checks.push({
      id: row.id,
      label: rule.label,
      workspaceId: rule.workspaceId,
      valueKey: row.value_key,
      measure: rule.measure,
      max: rule.terms.max,
      counted,
      assumed,
      unconfirmed,
      logged,
      unpriced,
      leased,
      isRepaired,
    });
  }
  return checks;
}

type Sum = { logged: Amount; unpriced: number };

/** Calls of the request log that a limit cannot distinguish, and their use. Sums are exact decimals. */
export type LoggedGroup = {
  key_id: string | null;
  provider: string | null;
  virtual_key: string | null;
  model: string | null;
  public_model: string | null;
  config_id: string | null;
  config: string | null;
  prompt_slug: string | null;
  metadata: Record<string, string> | null;
  cost: string;
  tokens: string;
  unpriced: number;
};

/**
 * The use that the log contains for calls of a rule that were recorded at or after a time, by the IDs of their
 * counters.
 */
async function sumLog(deps: Deps, rule: LimitRule, sinceMs: number): Promise<Map<string, Sum>> {
  const sums = new Map<string, Sum>();
  for (const group of await deps.readGroups(rule.workspaceId, sinceMs)) {
    const facts = factsOf(group, rule.workspaceId, deps.credentialIdOf);
    if (!isInScope(rule, facts) || !matches(rule, facts)) continue;
    const { id } = findCounter(rule, facts);
    const { logged, unpriced } = sums.get(id) ?? { logged: 0n, unpriced: 0 };
    const amount = rule.measure === 'cost' ? group.cost : group.tokens;
    sums.set(id, { logged: logged + parseAmount(amount), unpriced: unpriced + group.unpriced });
  }
  return sums;
}

function factsOf(group: LoggedGroup, workspaceId: string, credentialIdOf: Deps['credentialIdOf']): CallFacts {
  const { virtual_key: credential, config_id: configId, config, prompt_slug: prompt } = group;
  return {
    workspaceId,
    keyId: group.key_id,
    metadata: group.metadata,
    credentialId: credential === null ? null : credentialIdOf(workspaceId, credential),
    credential: credential ?? '',
    provider: group.provider ?? '',
    model: group.model,
    publicModel: group.public_model,
    config: configId === null ? null : { id: configId, slug: config ?? configId },
    // The log has no ID for it. A condition that names one by its ID does not match here.
    prompt: prompt === null ? null : { id: prompt, slug: prompt },
  };
}

function isInScope({ scope }: LimitRule, { keyId, credentialId }: CallFacts): boolean {
  if (scope.of === 'workspace') return true;
  return scope.id === (scope.of === 'api_key' ? keyId : credentialId);
}
