import { sql, type Kysely, type RawBuilder, type Transaction } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import { lowestLogUuid, utcDay } from '#libs/request-log/row/log-id.ts';
import { listLogDays } from '#libs/request-log/write/log-partitions.ts';
import {
  aggregateRollup,
  cubes,
  cubesOf,
  finerOf,
  grainMs,
  rollUpLog,
  rollupColumns,
  type Cube,
  type Grain,
} from '../aggregate-calls.ts';
import { admitKeys } from './rollup-keys.ts';
import { mergeRanges, takeLast, type TimeRange } from '../time-ranges.ts';

type Tx = Transaction<Database>;

type RollUpResult = {
  /** `busy`: another process holds the lease. */
  state: 'done' | 'busy';
  minutes: number;
  /** Whether changes are left for the next pass. */
  hasMore: boolean;
};

/** Changes that one pass takes: those of some seconds of several busy processes. */
const changesMax = 2_000;
/** An hour is rolled up this long after its end, when nearly all of its rows are there. Later ones change it again. */
const hourDelayMs = 60_000;
/** Hours and days that one pass closes after a standstill, and hours of ten minutes. */
const closedMax = 24;

/**
 * Brings the rollups up to date with rows of the request log that were written since. The minutes of new rows are computed
 * again from all of their rows, so it makes no difference how often that happens, in which order rows came, or what was
 * killed when. One transaction: it deletes the reports of changes, writes the minutes, and the hours and days that have
 * ended and have other minutes now. The lock on `rollup_state` is the lease: one process at a time, and it ends with the
 * session of a killed one. `minutesMax` bounds the work of a pass; the newest minutes come first.
 */
export async function rollUp(
  db: Kysely<Database>,
  { nowMs, logRetentionMs, minutesMax = 30 }: { nowMs: number; logRetentionMs: number; minutesMax?: number },
): Promise<RollUpResult> {
  return await db.transaction().execute(async (tx) => {
    const state = await lockState(tx);
    if (!state) return { state: 'busy', minutes: 0, hasMore: false };
    const { rows: changes } = await sql<{ first_at: Date; last_at: Date }>`
      delete from request_log_change where id in (
        select id from request_log_change order by id limit ${changesMax} for update skip locked)
      returning first_at, last_at`.execute(tx);
    const keptFromMs = await logKeptFrom(tx, nowMs - logRetentionMs);
    const changed = mergeRanges(changes.map((change) => minutesOf(change, keptFromMs, nowMs)));
    // Of hours without minutes, all minutes are needed to make the hour: those are taken one at a time, after all others.
    const { minutesFrom } = state;
    const recent = changed.map(({ from, to }) => ({ from: Math.max(from, minutesFrom), to }));
    const old = changed
      .filter(({ from }) => from < minutesFrom)
      .map(({ from, to }) => widen({ from, to: Math.min(to, minutesFrom) }, grainMs.hour));
    const lately = takeLast(mergeRanges(recent), minutesMax * grainMs.minute);
    const before = takeLast(mergeRanges(old), lately.left.length === 0 ? grainMs.hour : 0);
    const minutes = mergeRanges([...before.taken, ...lately.taken]);
    const left = [...before.left, ...lately.left];
    await writeMinutes(tx, minutes, nowMs);
    const until = closedUntil(state, nowMs - hourDelayMs);
    await writeCoarser(tx, 'ten_minutes', rangesToWrite(minutes, 'ten_minutes', state.tensUntil, until.tens));
    await writeCoarser(tx, 'hour', rangesToWrite(minutes, 'hour', state.hoursUntil, until.hours));
    await writeCoarser(tx, 'day', rangesToWrite(minutes, 'day', state.daysUntil, until.days));
    for (const { from, to } of left) await reportChange(tx, from, to - 1);
    await sql`
      update rollup_state set tens_until = ${new Date(until.tens)}, hours_until = ${new Date(until.hours)},
        days_until = ${new Date(until.days)},
        rolled_up_at = clock_timestamp()`.execute(tx);
    return {
      state: 'done',
      minutes: lengthOf(minutes) / grainMs.minute,
      hasMore: left.length > 0 || changes.length === changesMax,
    };
  });
}

/**
 * Since when the log is complete (epoch milliseconds). Of days before the retention's end a late row may have made a new
 * partition; what that one lacks, rollups keep.
 */
export async function logKeptFrom(db: Kysely<Database>, retainedFromMs: number): Promise<number> {
  const [oldest] = await listLogDays(db);
  if (oldest === undefined) return Number.POSITIVE_INFINITY;
  return Math.max(Date.parse(oldest.day), Math.floor(retainedFromMs / grainMs.day) * grainMs.day);
}

/** Whether a pass has anything to do; costs no transaction id, so that every worker may ask all the time. */
export async function hasWork(db: Kysely<Database>): Promise<boolean> {
  const { rows } = await sql<{ has_work: boolean }>`
    select exists (select from request_log_change)
      or hours_until < clock_timestamp() - interval '61 minutes'
      or tens_until < clock_timestamp() - interval '11 minutes' as has_work
    from rollup_state`.execute(db);
  return rows[0]?.has_work === true;
}

/** Has the minutes of a time rolled up again, both bounds included (epoch milliseconds). */
export async function reportChange(db: Kysely<Database>, firstMs: number, lastMs: number): Promise<void> {
  await db
    .insertInto('request_log_change')
    .values({ first_at: new Date(firstMs), last_at: new Date(lastMs) })
    .execute();
}

export type RollupState = {
  minutesFrom: number;
  hoursFrom: number;
  hoursUntil: number;
  daysFrom: number;
  daysUntil: number;
  tensFrom: number;
  tensUntil: number;
};

/** How far the rollups are, in epoch milliseconds. */
export async function readRollupState(
  db: Kysely<Database>,
  lock: RawBuilder<unknown> = sql``,
): Promise<RollupState | null> {
  const { rows } = await sql<Record<keyof RollupState, number>>`
    select ${epochMs('minutes_from')} as "minutesFrom", ${epochMs('hours_from')} as "hoursFrom",
      ${epochMs('hours_until')} as "hoursUntil", ${epochMs('days_from')} as "daysFrom",
      ${epochMs('days_until')} as "daysUntil",
      ${epochMs('tens_from')} as "tensFrom", ${epochMs('tens_until')} as "tensUntil"
    from rollup_state ${lock}`.execute(db);
  return rows[0] ?? null;
}

const lockState = (tx: Tx): Promise<RollupState | null> => readRollupState(tx, sql`for update skip locked`);

const epochMs = (column: string): RawBuilder<unknown> =>
  sql`greatest(extract(epoch from ${sql.ref(column)}), 0)::float8 * 1000`;

/** A change as whole minutes, without what was dropped from the log and what clocks that are far ahead have made up. */
function minutesOf(
  { first_at, last_at }: { first_at: Date; last_at: Date },
  keptFromMs: number,
  nowMs: number,
): TimeRange {
  const from = Math.max(first_at.getTime(), keptFromMs);
  const to = Math.min(last_at.getTime(), nowMs + grainMs.day) + 1;
  return widen({ from, to: Math.max(from, to) }, grainMs.minute);
}

/** The range of whole buckets that a range lies in. */
const widen = ({ from, to }: TimeRange, bucketMs: number): TimeRange => ({
  from: Math.floor(from / bucketMs) * bucketMs,
  to: Math.ceil(to / bucketMs) * bucketMs,
});

const lengthOf = (ranges: readonly TimeRange[]): number => ranges.reduce((sum, { from, to }) => sum + to - from, 0);

/** The buckets to write: of changed minutes, those that were closed already, and those that are closed now. */
const rangesToWrite = (minutes: readonly TimeRange[], grain: Grain, closed: number, end: number): TimeRange[] =>
  mergeRanges([
    ...minutes.map((range) => widen(range, grainMs[grain])).map(({ from, to }) => ({ from, to: Math.min(to, closed) })),
    { from: closed, to: end },
  ]);

/** Until when ten minutes, hours and days are closed by a time. None is closed before those that it is made from. */
function closedUntil(state: RollupState, nowMs: number): { tens: number; hours: number; days: number } {
  const tens = closeUntil(state.tensUntil, nowMs, 'ten_minutes');
  const hours = closeUntil(state.hoursUntil, Math.min(nowMs, tens), 'hour');
  return { tens, hours, days: closeUntil(state.daysUntil, hours, 'day') };
}

/** The end of the buckets that have ended by `nowMs`, at most `closedMax` of them (of ten minutes: of as many hours). */
function closeUntil(fromMs: number, nowMs: number, grain: Grain): number {
  const lengthMs = grainMs[grain];
  const most = closedMax * Math.max(lengthMs, grainMs.hour);
  return Math.max(fromMs, Math.min(Math.floor(nowMs / lengthMs) * lengthMs, fromMs + most));
}

async function writeMinutes(tx: Tx, minutes: readonly TimeRange[], nowMs: number): Promise<void> {
  for (const ranges of inPieces(minutes, 'minute')) {
    const where = anyOf(ranges.map(recordedIn));
    await admitKeys(tx, where, nowMs);
    for (const cube of cubes) await replace(tx, cube, 'minute', ranges, rollUpLog(cube, 'minute', where));
  }
}

/** Makes the buckets of a grain from finer ones. */
async function writeCoarser(tx: Tx, to: Grain, buckets: readonly TimeRange[]): Promise<void> {
  for (const ranges of inPieces(buckets, to)) {
    for (const cube of cubesOf(to)) {
      const where = sql`grain = ${sql.lit(finerOf(cube, to))} and ${anyOf(ranges.map(bucketIn))}`;
      await replace(tx, cube, to, ranges, aggregateRollup(cube, to, where));
    }
  }
}

/** Divides ranges of whole buckets into pieces of an hour, or of one longer bucket: a statement takes memory for its rows. */
function inPieces(ranges: readonly TimeRange[], grain: Grain): TimeRange[][] {
  const pieceMs = Math.max(grainMs[grain], grainMs.hour);
  const pieces: TimeRange[][] = [];
  let room = 0;
  for (const { from, to } of ranges) {
    for (let at = from; at < to;) {
      if (room === 0) {
        pieces.push([]);
        room = pieceMs;
      }
      const end = Math.min(to, at + room);
      pieces.at(-1)?.push({ from: at, to: end });
      room -= end - at;
      at = end;
    }
  }
  return pieces;
}

const anyOf = (conditions: readonly RawBuilder<unknown>[]): RawBuilder<unknown> =>
  sql`((${sql.join(conditions, sql`) or (`)}))`;

async function replace(
  tx: Tx,
  cube: Cube,
  grain: Grain,
  ranges: readonly TimeRange[],
  rows: RawBuilder<unknown>,
): Promise<void> {
  const table = sql.table(`${cube}_rollup`);
  await sql`delete from ${table} where grain = ${sql.lit(grain)} and ${anyOf(ranges.map(bucketIn))}`.execute(tx);
  await sql`
    insert into ${table} (grain, ${rollupColumns(cube)})
    select ${sql.lit(grain)}, ${rollupColumns(cube)} from (${rows}) as rolled_up
    ${cube === 'value' ? sql`order by workspace_id, key` : sql``}`.execute(tx);
}

/** Rows of the request log that were recorded in a range. */
export const recordedIn = ({ from, to }: TimeRange): RawBuilder<unknown> => sql`
  recorded_on between ${utcDay(from)} and ${utcDay(to - 1)} and id >= ${lowestLogUuid(from)} and id < ${lowestLogUuid(to)}`;

/** Buckets that begin in a range. */
export const bucketIn = ({ from, to }: TimeRange): RawBuilder<unknown> =>
  sql`bucket >= ${new Date(from)} and bucket < ${new Date(to)}`;
