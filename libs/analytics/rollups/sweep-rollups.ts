import { sql, type Kysely, type RawBuilder } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import { deleteUnheld, isHeld } from '#libs/people/retention.ts';
import { cubesWithGrain, grainMs, type Grain } from '../aggregate-calls.ts';
import { forgetUnusedKeys } from './rollup-keys.ts';

/**
 * How long buckets of each grain, and feedback, are retained, in milliseconds. Ten minutes are retained as long as the
 * log.
 */
export type RollupRetention = Readonly<Record<Exclude<Grain, 'ten_minutes'>, number>>;

const chunkRows = 5_000;

/**
 * Deletes expired buckets, and feedback that is not under legal hold, a few thousand rows at a time. Hours are retained at least as long as the
 * request log, because a late row changes its day, which is made from hours; minutes are made again from the log.
 * Queries stop reading old buckets before the first of them is deleted. Returns how many rows of rollups and of feedback
 * were deleted.
 */
export async function sweepRollups(
  db: Kysely<Database>,
  { retention, logRetentionMs, nowMs }: { retention: RollupRetention; logRetentionMs: number; nowMs: number },
): Promise<{ rollups: number; feedback: number }> {
  const beginOf = (ageMs: number, bucketMs: number): Date =>
    new Date(Math.max(0, Math.floor((nowMs - ageMs) / bucketMs) * bucketMs));
  const keptFrom = {
    minute: beginOf(retention.minute, grainMs.hour),
    tens: beginOf(Math.max(retention.minute, logRetentionMs + grainMs.day), grainMs.day),
    hour: beginOf(Math.max(retention.hour, logRetentionMs + grainMs.day), grainMs.day),
    day: beginOf(retention.day, grainMs.day),
  };
  // Buckets from which the next coarser grain must still be made are not deleted.
  const { rows } = await sql<Record<Grain, Date>>`
    update rollup_state set minutes_from = greatest(minutes_from, least(${keptFrom.minute}, hours_until)),
      tens_from = greatest(tens_from, least(${keptFrom.tens}, hours_until)),
      hours_from = greatest(hours_from, least(${keptFrom.hour}, days_until)),
      days_from = greatest(days_from, ${keptFrom.day})
    returning minutes_from as minute, tens_from as ten_minutes, hours_from as hour, days_from as day`.execute(db);
  let rollups = 0;
  for (const [grain, from] of Object.entries(rows[0] ?? {}) as [Grain, Date][]) {
    for (const cube of cubesWithGrain(grain))
      rollups += await deleteBefore(db, `${cube}_rollup_${grain}`, 'bucket', from);
  }
  await forgetUnusedKeys(db, nowMs);
  return {
    rollups,
    feedback: await deleteBefore(db, 'feedback', 'created_at', keptFrom.day, sql`not ${isHeld('workspace_id')}`),
  };
}

async function deleteBefore(
  db: Kysely<Database>,
  table: string,
  column: string,
  before: Date,
  condition: RawBuilder<unknown> = sql`true`,
): Promise<number> {
  for (let sum = 0; ;) {
    const { numAffectedRows } = await deleteUnheld(db, (tx) =>
      sql`
        delete from ${sql.table(table)} where ctid = any (array(
          select ctid from ${sql.table(table)} where ${sql.ref(column)} < ${before} and ${condition}
          limit ${chunkRows}))`.execute(tx),
    );
    const deleted = Number(numAffectedRows ?? 0);
    sum += deleted;
    if (deleted < chunkRows) return sum;
  }
}
