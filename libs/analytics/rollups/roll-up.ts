import { sql, type Kysely, type RawBuilder, type Transaction } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import { packMs } from '#libs/request-log/read/read-log.ts';
import { lowestLogUuid, utcDay } from '#libs/request-log/row/log-id.ts';
import { listLogDays } from '#libs/request-log/write/log-partitions.ts';
import {
  aggregateRollup,
  cubes,
  cubesWithGrain,
  sourceGrain,
  grainMs,
  rollUpMinutes,
  rollupColumns,
  wideMinutes,
  type Cube,
  type Grain,
} from '../aggregate-calls.ts';
import { admitKeys } from './rollup-keys.ts';
import { mergeRanges, splitOffLast, type TimeRange } from '../time-ranges.ts';

type Tx = Transaction<Database>;

type RollUpResult = {
  /** `busy`: another process holds the lease. */
  state: 'done' | 'busy';
  minutes: number;
  /** Whether changes are left for the next pass. */
  hasMore: boolean;
};

/** The maximum of changes in one pass: those of several busy processes in some seconds. */
const changesMax = 2_000;
/** An hour is rolled up this long after its end, when nearly all of its rows exist. Later rows change it again. */
const hourDelayMs = 60_000;
/**
 * The maximum of hours and days that one pass closes after a standstill, and of hours whose ten-minute buckets it
 * closes.
 */
const closedMax = 24;

/**
 * Updates the rollups with rows of the request log that were written since the last pass. The minutes of new rows are
 * computed again from all of their rows, so the result does not depend on the number of passes, the order of rows, or
 * crashes. One transaction passes the reports of changes on to the seal of calls, writes the minutes, and writes the hours
 * and days that have ended and whose minutes changed. The lock on `rollup_state` is the lease: only one process can hold it, and it ends
 * with the session of a killed one. `minutesMax` limits the work of a pass; the newest minutes come first.
 */
export async function rollUp(
  db: Kysely<Database>,
  { nowMs, logRetentionMs, minutesMax = 30 }: { nowMs: number; logRetentionMs: number; minutesMax?: number },
): Promise<RollUpResult> {
  return await db.transaction().execute(async (tx) => {
    const state = await lockState(tx);
    if (!state) return { state: 'busy', minutes: 0, hasMore: false };
    const { rows: changes } = await sql<{ first_at: Date; last_at: Date }>`
      with taken as (
        delete from request_log_change where id in (
          select id from request_log_change order by id limit ${changesMax} for update skip locked)
        returning first_at, last_at
      ), passed as (
        insert into call_seal_due (first_at, last_at)
        select lower(merged), upper(merged) from (
          select unnest(range_agg(tstzrange(date_trunc('minute', first_at), date_trunc('minute', last_at) + interval '1 minute')))
          from taken) as minutes (merged)
      )
      select first_at, last_at from taken`.execute(tx);
    const keptFromMs = await logKeptFrom(tx, nowMs - logRetentionMs);
    const changed = mergeRanges(changes.map((change) => minutesOf(change, keptFromMs, nowMs)));
    // If the minutes of an hour were deleted, all of them are needed to make the hour. Such hours are processed one at
    // a time, after all others.
    const { minutesFrom } = state;
    const recent = changed.map(({ from, to }) => ({ from: Math.max(from, minutesFrom), to }));
    const old = changed
      .filter(({ from }) => from < minutesFrom)
      .map(({ from, to }) => widen({ from, to: Math.min(to, minutesFrom) }, grainMs.hour));
    const lately = splitOffLast(mergeRanges(recent), minutesMax * grainMs.minute);
    const before = splitOffLast(mergeRanges(old), lately.left.length === 0 ? grainMs.hour : 0);
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
 * Since when the log is complete (epoch milliseconds). A late row can create a new partition for a day before the end
 * of retention. The rollups still contain the calls that are missing there.
 */
export async function logKeptFrom(db: Kysely<Database>, retainedFromMs: number): Promise<number> {
  const [oldest] = await listLogDays(db);
  if (oldest === undefined) return Number.POSITIVE_INFINITY;
  return Math.max(Date.parse(oldest.day), Math.floor(retainedFromMs / grainMs.day) * grainMs.day);
}

/** Whether a pass has anything to do. It uses no transaction ID, so every worker can call it all the time. */
export async function hasWork(db: Kysely<Database>): Promise<boolean> {
  const { rows } = await sql<{ has_work: boolean }>`
    select exists (select from request_log_change)
      or hours_until < clock_timestamp() - interval '61 minutes'
      or tens_until < clock_timestamp() - interval '11 minutes' as has_work
    from rollup_state`.execute(db);
  return rows[0]?.has_work === true;
}

/** Causes the minutes of a time to be rolled up again, both bounds included (epoch milliseconds). */
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

/** The progress of the rollups, in epoch milliseconds. */
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

/** A change as whole minutes, without times that were dropped from the log or that clocks far ahead produced. */
function minutesOf(
  { first_at, last_at }: { first_at: Date; last_at: Date },
  keptFromMs: number,
  nowMs: number,
): TimeRange {
  const from = Math.max(first_at.getTime(), keptFromMs);
  const to = Math.min(last_at.getTime(), nowMs + grainMs.day) + 1;
  return widen({ from, to: Math.max(from, to) }, grainMs.minute);
}

/** The range of whole buckets that contains a range. */
const widen = ({ from, to }: TimeRange, bucketMs: number): TimeRange => ({
  from: Math.floor(from / bucketMs) * bucketMs,
  to: Math.ceil(to / bucketMs) * bucketMs,
});

const lengthOf = (ranges: readonly TimeRange[]): number => ranges.reduce((sum, { from, to }) => sum + to - from, 0);

/** The buckets to write: those of changed minutes that were closed already, and those that are closed now. */
const rangesToWrite = (minutes: readonly TimeRange[], grain: Grain, closed: number, end: number): TimeRange[] =>
  mergeRanges([
    ...minutes.map((range) => widen(range, grainMs[grain])).map(({ from, to }) => ({ from, to: Math.min(to, closed) })),
    { from: closed, to: end },
  ]);

/**
 * The times until which ten minutes, hours and days are closed. No bucket is closed before those that it is made from.
 */
function closedUntil(state: RollupState, nowMs: number): { tens: number; hours: number; days: number } {
  const tens = closeUntil(state.tensUntil, nowMs, 'ten_minutes');
  const hours = closeUntil(state.hoursUntil, Math.min(nowMs, tens), 'hour');
  return { tens, hours, days: closeUntil(state.daysUntil, hours, 'day') };
}

/**
 * The end of the buckets that have ended by `nowMs`, at most `closedMax` of them (for ten minutes: in as many hours).
 */
function closeUntil(fromMs: number, nowMs: number, grain: Grain): number {
  const lengthMs = grainMs[grain];
  const most = closedMax * Math.max(lengthMs, grainMs.hour);
  return Math.max(fromMs, Math.min(Math.floor(nowMs / lengthMs) * lengthMs, fromMs + most));
}

async function writeMinutes(tx: Tx, minutes: readonly TimeRange[], nowMs: number): Promise<void> {
  for (const ranges of inPieces(minutes, 'minute')) {
    const isWhole = await exceptDeleted(tx, ranges);
    const records = {
      rows: sql`${anyOf(ranges.map((range) => minutesIn('id', range)))} and ${isWhole.record}`,
      packs: sql`${anyOf(ranges.map((range) => minutesIn('last_id', range)))} and ${isWhole.record}`,
    };
    await admitKeys(tx, records, nowMs);
    for (const cube of cubes) await deleteBuckets(tx, cube, 'minute', isWhole.bucket, ranges);
    // One statement reads the records once for all cubes.
    const wide = wideMinutes(records);
    const made = { call: sql`select * from wide_call`, metadata: sql`select * from wide_metadata` };
    const inserts = cubes.map((cube) => insertRows(cube, 'minute', rollUpMinutes(cube, 'minute', made)));
    await sql`
      with wide_call as materialized (${wide.call}), wide_metadata as materialized (${wide.metadata}),
        ${sql.join(inserts.map((insert, index) => sql`${sql.ref(`cube_${index}`)} as (${insert})`))}
      select`.execute(tx);
  }
}

/** Makes the buckets of a grain from finer ones. */
async function writeCoarser(tx: Tx, to: Grain, buckets: readonly TimeRange[]): Promise<void> {
  for (const ranges of inPieces(buckets, to)) {
    const isWhole = await exceptDeleted(tx, ranges);
    for (const cube of cubesWithGrain(to)) {
      const where = sql`
        grain = ${sql.lit(sourceGrain(cube, to))} and ${anyOf(ranges.map(bucketIn))} and ${isWhole.bucket}`;
      await deleteBuckets(tx, cube, to, isWhole.bucket, ranges);
      await insertRows(cube, to, aggregateRollup(cube, to, where)).execute(tx);
    }
  }
}

/**
 * Divides ranges of whole buckets into pieces of an hour, or of one longer bucket, because a statement needs memory for
 * its rows.
 */
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

async function deleteBuckets(
  tx: Tx,
  cube: Cube,
  grain: Grain,
  isWhole: RawBuilder<unknown>,
  ranges: readonly TimeRange[],
): Promise<void> {
  await sql`
    delete from ${sql.table(`${cube}_rollup`)}
    where grain = ${sql.lit(grain)} and ${anyOf(ranges.map(bucketIn))} and ${isWhole}`.execute(tx);
}

/**
 * Conditions on records and on buckets that leave out the days of workspaces whose calls retention has deleted
 * (libs/request-log/write/delete-old-calls.ts). Their rollups stay as they are, because they can no longer be computed.
 */
export async function exceptDeleted(
  db: Kysely<Database>,
  ranges: readonly TimeRange[],
): Promise<Record<'record' | 'bucket', RawBuilder<unknown>>> {
  const days = ranges.map(({ from, to }) => sql`recorded_on between ${utcDay(from)} and ${utcDay(to - 1)}`);
  const { rows } = await sql<{ workspace: string; day: string }>`
    select distinct workspace_id as workspace, recorded_on as day from request_log_deleted where ${anyOf(days)}`.execute(
    db,
  );
  if (rows.length === 0) return { record: sql`true`, bucket: sql`true` };
  const isWhole = (day: RawBuilder<unknown>): RawBuilder<unknown> => sql`(workspace_id, ${day}) not in (
    select * from unnest(${rows.map((row) => row.workspace)}::text[], ${rows.map((row) => row.day)}::date[]) as deleted)`;
  return { record: isWhole(sql`recorded_on`), bucket: isWhole(sql`(bucket at time zone 'UTC')::date`) };
}

const insertRows = (cube: Cube, grain: Grain, rows: RawBuilder<unknown>): RawBuilder<unknown> => sql`
  insert into ${sql.table(`${cube}_rollup`)} (grain, ${rollupColumns(cube)})
  select ${sql.lit(grain)}, ${rollupColumns(cube)} from (${rows}) as rolled_up
  ${cube === 'value' ? sql`order by workspace_id, key` : sql``}`;

/** Records of the request log in a range. */
export const recordedIn = ({ from, to }: TimeRange): RawBuilder<unknown> => sql`
  recorded_on between ${utcDay(from)} and ${utcDay(to - 1)} and id >= ${lowestLogUuid(from)} and id < ${lowestLogUuid(to)}
  and last_id >= ${lowestLogUuid(from)} and last_id < ${lowestLogUuid(to + packMs)}`;

/** Rows of whole minutes by their ID, or packs, which have lines of one minute, by that of their last line. */
const minutesIn = (column: 'id' | 'last_id', { from, to }: TimeRange): RawBuilder<unknown> => sql`
  recorded_on between ${utcDay(from)} and ${utcDay(to - 1)}
  and ${sql.ref(column)} >= ${lowestLogUuid(from)} and ${sql.ref(column)} < ${lowestLogUuid(to)}`;

/** Buckets that begin in a range. */
export const bucketIn = ({ from, to }: TimeRange): RawBuilder<unknown> =>
  sql`bucket >= ${new Date(from)} and bucket < ${new Date(to)}`;
