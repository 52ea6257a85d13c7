import { sql, type Kysely, type Transaction } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import { aggregateRollup, grainMs, rollUpLog, valuesOfRollups, type Grain } from './aggregate-calls.ts';
import {
  bucketIn,
  lockState,
  logKeptFrom,
  recordedIn,
  replace,
  writeCoarser,
  writeMinutes,
  type RollupState,
} from './roll-up.ts';
import { admitKeys } from './rollup-keys.ts';
import type { TimeRange } from './time-ranges.ts';

type Tx = Transaction<Database>;
const { ten_minutes: tenMinutes, hour, day } = grainMs;

/**
 * Makes a piece of what earlier releases have not, and moves `values_from` back to its beginning: ten minutes from the log,
 * with their hour and day when those are complete; of days that the log does not have any more, the rows of single values
 * from those of all columns. One transaction, of which a pass that failed leaves nothing. Returns whether there is more to do.
 */
export async function completeEarlier(
  db: Kysely<Database>,
  { nowMs, logRetentionMs }: { nowMs: number; logRetentionMs: number },
): Promise<boolean> {
  return await db.transaction().execute(async (tx) => {
    const state = await lockState(tx);
    // Earlier releases may go on until then, and an hour that is still open may have minutes of theirs.
    if (!state || state.valuesFrom === 0 || state.valuesFrom > Math.min(nowMs, state.hoursUntil)) return false;
    const keptFromMs = await logKeptFrom(tx, nowMs - logRetentionMs);
    const valuesFrom =
      (await completeFromLog(tx, state, { keptFromMs, nowMs })) ?? (await completeFromRollups(tx, state));
    await sql`update rollup_state set values_from = ${
      valuesFrom === null ? sql`'-infinity'` : new Date(valuesFrom)
    }`.execute(tx);
    return valuesFrom !== null;
  });
}

/** Returns the beginning of what is complete now; null when the log has no earlier calls. */
async function completeFromLog(
  tx: Tx,
  { valuesFrom, daysUntil, minutesFrom }: RollupState,
  { keptFromMs, nowMs }: { keptFromMs: number; nowMs: number },
): Promise<number | null> {
  const isInHour = valuesFrom % hour !== 0;
  const from = isInHour
    ? valuesFrom - (valuesFrom % hour)
    : await lastBucket(tx, 'hour', { from: keptFromMs, to: valuesFrom });
  if (from === null) return null;
  const end = isInHour ? valuesFrom : from + hour;
  const piece = { from: end - tenMinutes, to: end };
  if (piece.from >= minutesFrom) await writeMinutes(tx, [piece], nowMs);
  else await admitKeys(tx, recordedIn(piece), nowMs);
  await replace(tx, 'value', 'ten_minutes', [piece], rollUpLog('value', 'ten_minutes', recordedIn(piece)));
  if (piece.from > from) return piece.from;
  // Not from minutes, which may have been deleted between two pieces.
  const range = { from, to: from + hour };
  for (const cube of ['call', 'metadata'] as const) {
    await replace(tx, cube, 'hour', [range], rollUpLog(cube, 'hour', recordedIn(range)));
  }
  const ofTens = sql`grain = 'ten_minutes' and ${bucketIn(range)}`;
  await replace(tx, 'value', 'hour', [range], aggregateRollup('value', 'hour', ofTens));
  const dayFrom = Math.floor(from / day) * day;
  if ((await lastBucket(tx, 'hour', { from: dayFrom, to: from })) !== null) return from;
  if (dayFrom < daysUntil) await writeCoarser(tx, 'day', [{ from: dayFrom, to: dayFrom + day }]);
  return dayFrom;
}

async function completeFromRollups(tx: Tx, state: RollupState): Promise<number | null> {
  const from = await lastBucket(tx, 'day', { from: 0, to: Math.min(state.valuesFrom, state.daysUntil) });
  if (from === null) return null;
  const range = { from, to: from + day };
  for (const grain of ['hour', 'day'] as const) {
    if (grain === 'hour' && from < state.hoursFrom) continue;
    const where = sql`grain = ${sql.lit(grain)} and ${bucketIn(range)}`;
    await replace(tx, 'value', grain, [range], valuesOfRollups(grain, where));
  }
  return from;
}

/** The last bucket of a grain that has calls, of those that begin in a range (epoch milliseconds). */
async function lastBucket(tx: Tx, grain: Grain, range: TimeRange): Promise<number | null> {
  if (range.to <= range.from) return null;
  const { rows } = await sql<{ bucket: Date | null }>`
    select max(bucket) as bucket from call_rollup where grain = ${sql.lit(grain)} and ${bucketIn(range)}`.execute(tx);
  return rows[0]?.bucket?.getTime() ?? null;
}
