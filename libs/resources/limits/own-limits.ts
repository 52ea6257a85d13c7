import type { Kysely } from 'kysely';
import type { RateLimit, UsageLimit } from '#libs/contracts/people/limits.ts';
import type { Database } from '#libs/database/schema.ts';
import { findExhausted } from '#libs/limits/counter-store.ts';
import { makeRecordRules, type LimitRule } from '#libs/limits/limit-rule.ts';
import { periodAt, toReset } from '#libs/limits/period.ts';
import type { ResourceRow } from '#libs/records/resource-row.ts';

/** The IDs of the records with an exhausted budget. Rates do not count, because they become available again soon. */
export async function exhaustedRecords(
  db: Kysely<Database>,
  rules: readonly LimitRule[],
  nowMs: number,
): Promise<Set<string>> {
  const budgets = rules.filter(({ kind }) => kind === 'budget');
  const exhausted = await findExhausted(db, budgets, nowMs);
  return new Set(budgets.filter(({ limitId }) => exhausted.has(limitId)).map(({ recordId }) => recordId));
}

type LimitedData = {
  usage_limits?: readonly UsageLimit[] | UsageLimit | null | undefined;
  rate_limits?: readonly RateLimit[] | null | undefined;
  usage_reset_at?: string | undefined;
};

/** The budget and the rates of the record itself. `of`: which calls count; `label`: the name of the record in messages. */
export const rulesOfRow = (
  { id, workspace_id: workspaceId, data, created_at: createdAt }: ResourceRow<LimitedData>,
  { noun, label, of }: { noun: string; label: string; of: 'api_key' | 'credential' },
): LimitRule[] =>
  makeRecordRules(
    {
      id,
      noun,
      workspaceId,
      label,
      createdAtMs: createdAt.getTime(),
      scope: { of, id },
      usageResetAtMs: data.usage_reset_at === undefined ? 0 : Date.parse(data.usage_reset_at),
    },
    data,
  );

type Budgets = UsageLimit | readonly UsageLimit[];

/** Adds to each budget the time of its next reset, ISO 8601; null for never. */
export function shownLimits<Limits extends Budgets>(limits: Limits, createdAt: Date, nowMs: number): Limits;
export function shownLimits<Limits extends Budgets>(
  limits: Limits | null | undefined,
  createdAt: Date,
  nowMs: number,
): Limits | null;
export function shownLimits(limits: Budgets | null | undefined, createdAt: Date, nowMs: number): Budgets | null {
  if (limits === null || limits === undefined) return null;
  if (isList(limits)) return limits.map((limit) => shownLimits(limit, createdAt, nowMs));
  const { endMs } = periodAt(toReset(limits, createdAt.getTime()), nowMs);
  return { ...limits, next_usage_reset_at: endMs === Number.POSITIVE_INFINITY ? null : new Date(endMs).toISOString() };
}

/**
 * Budgets in their stored form: without the next reset, which is computed but which clients send back from earlier answers.
 */
export function storedLimits<Limits extends Budgets | null | undefined>(limits: Limits): Limits {
  if (limits === null || limits === undefined) return limits;
  if (isList(limits)) return limits.map((limit) => storedLimits(limit)) as unknown as Limits;
  const { next_usage_reset_at: _computed, ...rest } = limits;
  return rest as Limits;
}

const isList = (limits: Budgets): limits is readonly UsageLimit[] => Array.isArray(limits);
