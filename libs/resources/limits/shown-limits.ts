import type { UsageLimit } from '#libs/contracts/people/limits.ts';
import { periodAt, resetOf } from '#libs/limits/period.ts';

type Budgets = UsageLimit | readonly UsageLimit[];

/** Each budget with the time at which its use next starts again at 0, ISO 8601; null for never. */
export function shownLimits<Limits extends Budgets>(limits: Limits, createdAt: Date, nowMs: number): Limits;
export function shownLimits<Limits extends Budgets>(
  limits: Limits | null | undefined,
  createdAt: Date,
  nowMs: number,
): Limits | null;
export function shownLimits(limits: Budgets | null | undefined, createdAt: Date, nowMs: number): Budgets | null {
  if (limits === null || limits === undefined) return null;
  if (isList(limits)) return limits.map((limit) => shownLimits(limit, createdAt, nowMs));
  const { endMs } = periodAt(resetOf(limits, createdAt.getTime()), nowMs);
  return { ...limits, next_usage_reset_at: endMs === Number.POSITIVE_INFINITY ? null : new Date(endMs).toISOString() };
}

/** Budgets as they are stored: the next reset is computed, and clients send back what they were answered. */
export function storedLimits<Limits extends Budgets | null | undefined>(limits: Limits): Limits {
  if (limits === null || limits === undefined) return limits;
  if (isList(limits)) return limits.map((limit) => storedLimits(limit)) as unknown as Limits;
  const { next_usage_reset_at: _computed, ...rest } = limits;
  return rest as Limits;
}

const isList = (limits: Budgets): limits is readonly UsageLimit[] => Array.isArray(limits);
