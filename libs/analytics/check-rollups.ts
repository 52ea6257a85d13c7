import { sql, type Kysely, type RawBuilder } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import { listLogDays } from '#libs/request-log/log-partitions.ts';
import { aggregateLog, aggregateValues, grainMs, rollupColumns, type Cube, type Grain } from './aggregate-calls.ts';
import { bucketIn, readRollupState, recordedIn, reportChange, rollUp } from './roll-up.ts';
import { mergeRanges, type TimeRange } from './time-ranges.ts';

export type CheckedDay = {
  /** `YYYY-MM-DD`. */
  day: string;
  /** Rows of the rollups that were compared. */
  rows: number;
  /** Of the log and of the rollups, those without an equal one in the other. */
  different: number;
};

export type RollupCheck = {
  days: CheckedDay[];
  different: number;
  /** Changes that are still to be rolled up. */ waiting: number;
};

/**
 * Computes the rollups of every day that the log has again, and compares them with those that are there. Minutes that wait
 * to be rolled up are left out, with their hours and days. One READ ONLY REPEATABLE READ transaction, a day at a time.
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
          const log = (cube: 'call' | 'metadata') => aggregateLog({ cube, bucketMs: length, where: recordedIn(part) });
          const compared = [
            await compare(tx, 'call', grain, part, log('call')),
            await compare(tx, 'metadata', grain, part, log('metadata')),
          ];
          const withValues = { ...part, from: Math.max(part.from, state.valuesFrom) };
          if (grain !== 'minute' && withValues.from < withValues.to) {
            // From the wide rows, which have just been compared with the log.
            const values = aggregateValues(grain, sql`grain = ${sql.lit(grain)} and ${bucketIn(withValues)}`);
            compared.push(await compare(tx, 'value', grain, withValues, values));
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

async function compare(
  tx: Kysely<Database>,
  cube: Cube,
  grain: Grain,
  range: TimeRange,
  computed: RawBuilder<unknown>,
): Promise<{ rows: number; different: number }> {
  const { rows } = await sql<{ rows: number; different: number }>`
    with computed as materialized (select ${rollupColumns(cube)} from (${computed}) as computed),
      kept as materialized (
        select ${rollupColumns(cube)} from ${sql.table(`${cube}_rollup`)}
        where grain = ${sql.lit(grain)} and ${bucketIn(range)})
    select (select count(*) from kept) as rows, (
      select count(*) from (
        (table computed except all table kept) union all (table kept except all table computed)) as difference
    ) as different`.execute(tx);
  return rows[0] ?? { rows: 0, different: 0 };
}

/** What of a range lies in none of `others`, which are merged. */
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
 * Rolls up all days of the log again, beside the workers; returns the number of minutes that this process did. Rollups of
 * days that the log does not have any more stay as they are.
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
  // Hours and days of the whole log have been written by a process that knows these rows.
  await sql`
    update rollup_state set values_from = least(values_from, ${new Date(Date.parse(oldest.day))})`.execute(db);
  return minutes;
}
