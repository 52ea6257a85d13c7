import { sql, type Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import { listLogDays } from '#libs/request-log/write/log-partitions.ts';
import {
  cubesWithGrain,
  grainMs,
  metadataKeyPrefix,
  rollUpMinutes,
  rollupColumns,
  rolledUpKeys,
  wideMinutes,
  type Cube,
  type Grain,
} from '../aggregate-calls.ts';
import { bucketIn, exceptDeleted, readRollupState, recordedIn, reportChange, rollUp } from './roll-up.ts';
import { mergeRanges, type TimeRange } from '../time-ranges.ts';

export type CheckedDay = {
  /** In the form `YYYY-MM-DD`. */
  day: string;
  /** Rows of the rollups that were compared. */
  rows: number;
  /** Rows of the log and of the rollups that have no equal row in the other. */
  different: number;
};

export type RollupCheck = {
  days: CheckedDay[];
  different: number;
  /** Changes that still have to be rolled up. */ waiting: number;
};

/**
 * Computes the rollups of every day in the log again, and compares them with the stored ones. Minutes that wait to be
 * rolled up are left out, together with their hours and days. Uses one READ ONLY REPEATABLE READ transaction, one day
 * after the other.
 */
export async function checkRollups(db: Kysely<Database>, onDay: (day: string) => void): Promise<RollupCheck> {
  const transaction = db.transaction().setIsolationLevel('repeatable read').setAccessMode('read only');
  return await transaction.execute(async (tx) => {
    const state = await readRollupState(tx);
    if (!state) throw new Error('the table rollup_state has lost its row');
    const { rows: waiting } = await sql<{ first_at: Date; last_at: Date }>`
      select first_at, last_at from request_log_change`.execute(tx);
    const grains: { grain: Grain; from: number; to: number }[] = [
      { grain: 'minute', from: state.minutesFrom, to: Number.POSITIVE_INFINITY },
      { grain: 'ten_minutes', from: state.tensFrom, to: state.tensUntil },
      { grain: 'hour', from: state.hoursFrom, to: state.hoursUntil },
      { grain: 'day', from: state.daysFrom, to: state.daysUntil },
    ];
    const days: CheckedDay[] = [];
    for (const { day } of await listLogDays(tx)) {
      onDay(day);
      const begin = Date.parse(day);
      const checked: CheckedDay = { day, rows: 0, different: 0 };
      for (const { grain, from, to } of grains) {
        const length = grainMs[grain];
        const unsettled = mergeRanges(
          waiting.map(({ first_at, last_at }) => ({
            from: Math.floor(first_at.getTime() / length) * length,
            to: (Math.floor(last_at.getTime() / length) + 1) * length,
          })),
        );
        const range = { from: Math.max(begin, from), to: Math.min(begin + grainMs.day, to) };
        for (const part of without(range, unsettled)) {
          const compared: { rows: number; different: number }[] = [];
          for (const cube of cubesWithGrain(grain)) {
            compared.push(await compare(tx, cube, grain, part));
          }
          for (const { rows, different } of compared) {
            checked.rows += rows;
            checked.different += different;
          }
        }
      }
      days.push(checked);
    }
    return { days, different: days.reduce((sum, { different }) => sum + different, 0), waiting: waiting.length };
  });
}

/** Compares the rows of a cube and grain with the log, as far as they are complete. */
async function compare(
  tx: Kysely<Database>,
  cube: Cube,
  grain: Grain,
  range: TimeRange,
): Promise<{ rows: number; different: number }> {
  // Rollups of a key can include calls from before it was admitted or leave them out, but these are never read.
  const ofKey = sql`exists (
    select from rollup_key where rollup_key.workspace_id = made.workspace_id and from_at <= bucket
      and ${cube === 'value' ? sql`${sql.lit(metadataKeyPrefix)} || ` : sql``} rollup_key.key = made.key)`;
  const always = sql.join(rolledUpKeys.map((key) => sql.lit(cube === 'value' ? `${metadataKeyPrefix}${key}` : key)));
  const isComplete = {
    call: sql`true`,
    metadata: sql`(key in (${always}) or ${ofKey})`,
    value: sql`(key not like ${sql.lit(`${metadataKeyPrefix}%`)} or key in (${always}) or ${ofKey})`,
  }[cube];
  const isWhole = await exceptDeleted(tx, [range]);
  const wide = wideMinutes({ where: sql`${recordedIn(range)} and ${isWhole.record}` });
  const { rows } = await sql<{ rows: number; different: number }>`
    with computed as materialized (
        select ${rollupColumns(cube)} from (${rollUpMinutes(cube, grain, wide)}) as made where ${isComplete}),
      kept as materialized (
        select ${rollupColumns(cube)} from ${sql.table(`${cube}_rollup`)} as made
        where grain = ${sql.lit(grain)} and ${bucketIn(range)} and ${isComplete} and ${isWhole.bucket})
    select (select count(*) from kept) as rows, (
      select count(*) from (
        (table computed except all table kept) union all (table kept except all table computed)) as difference
    ) as different`.execute(tx);
  return rows[0] ?? { rows: 0, different: 0 };
}

/** The parts of a range that are in none of `others`, which are merged. */
function without(range: TimeRange, others: readonly TimeRange[]): TimeRange[] {
  const parts: TimeRange[] = [];
  let { from } = range;
  for (const other of others) {
    parts.push({ from, to: Math.min(other.from, range.to) });
    from = Math.max(from, other.to);
  }
  return [...parts, { from, to: range.to }].filter((part) => part.to > part.from);
}

/**
 * Rolls up all days of the log again, in parallel with the workers; returns the number of minutes that this process
 * did. Rollups of days that are no longer in the log stay unchanged.
 */
export async function rebuildRollups(
  db: Kysely<Database>,
  {
    nowMs,
    logRetentionMs,
    onProgress,
  }: { nowMs: number; logRetentionMs: number; onProgress: (minutes: number) => void },
): Promise<number> {
  const [oldest] = await listLogDays(db);
  if (oldest === undefined) return 0;
  await reportChange(db, Date.parse(oldest.day), nowMs);
  let minutes = 0;
  for (;;) {
    const pass = await rollUp(db, { nowMs, logRetentionMs });
    minutes += pass.minutes;
    onProgress(minutes);
    if (pass.state === 'done' && !pass.hasMore) break;
  }
  return minutes;
}
