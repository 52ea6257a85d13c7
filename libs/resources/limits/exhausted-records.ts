import type { Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import { findExhausted } from '#libs/limits/counter-store.ts';
import type { LimitRule } from '#libs/limits/limit-rule.ts';

/** The ids of the records that have a budget of which nothing is left. Rates do not count: there is soon more of them. */
export async function exhaustedRecords(
  db: Kysely<Database>,
  rules: readonly LimitRule[],
  nowMs: number,
): Promise<Set<string>> {
  const budgets = rules.filter(({ kind }) => kind === 'budget');
  const exhausted = await findExhausted(db, budgets, nowMs);
  return new Set(budgets.filter(({ limitId }) => exhausted.has(limitId)).map(({ recordId }) => recordId));
}
