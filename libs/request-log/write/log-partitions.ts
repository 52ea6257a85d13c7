import { sql, type Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import { utcDay } from '../row/log-id.ts';

const dayMs = 86_400_000;
const partitionShape = /^request_log_(\d{4})(\d{2})(\d{2})$/;

/** The table of a day (`YYYY-MM-DD`) of the request log. */
export const partitionName = (day: string): string => `request_log_${day.replaceAll('-', '')}`;

/** The day after a day, both `YYYY-MM-DD`. */
export const nextDay = (day: string): string => utcDay(Date.parse(day) + dayMs);

/**
 * Creates the partition of a day (`YYYY-MM-DD`) if it is missing. Any number of processes can do this concurrently. It
 * is created as a table and then attached: CREATE TABLE … PARTITION OF would lock out every reader and writer of the
 * log, and would itself wait for the longest of them.
 */
export async function ensureLogPartition(db: Kysely<Database>, day: string): Promise<void> {
  const name = partitionName(day);
  if (!partitionShape.test(name)) throw new Error(`not a day: ${day}`);
  await db.transaction().execute(async (tx) => {
    await sql`select pg_advisory_xact_lock(hashtextextended('request_log partitions', 0))`.execute(tx);
    if ((await listPartitions(tx)).includes(name)) return;
    await sql`create table if not exists ${sql.table(name)} (like request_log including all)`.execute(tx);
    await sql`alter table request_log attach partition ${sql.table(name)}
      for values from (${sql.lit(day)}) to (${sql.lit(nextDay(day))})`.execute(tx);
  });
}

/**
 * Applies retention: drops the partitions of days that ended more than `olderThanDays` days ago, oldest first, and
 * returns their names. No row of the log is read or deleted individually, so time and memory do not depend on the
 * number of rows. The reports of processes about those days are deleted too. Throws Postgres's lock timeout (55P03)
 * when another session reads the log for longer than 2 s, because writers would wait behind this transaction.
 * Partitions that were dropped before stay dropped; call again later.
 */
export async function dropRequestLogPartitions(
  db: Kysely<Database>,
  olderThanDays: number,
  nowMs: number,
): Promise<string[]> {
  if (!Number.isInteger(olderThanDays) || olderThanDays < 1) {
    throw new RangeError(`the request log must be kept for a whole number of days, at least 1, not ${olderThanDays}`);
  }
  const keptFrom = utcDay(nowMs - olderThanDays * dayMs);
  const old = (await listPartitions(db)).filter((name) => partitionShape.test(name) && name < partitionName(keptFrom));
  for (const name of old) {
    await db.transaction().execute(async (tx) => {
      await sql`set local lock_timeout = '2s'`.execute(tx);
      await sql`drop table if exists ${sql.table(name)}`.execute(tx);
    });
  }
  await forgetProcesses(db, keptFrom);
  return old;
}

/**
 * Deletes the reports of processes about deleted days. A process whose last report is more than a day older is deleted
 * as well; the extra day is needed because the times of its rows come from its own clock.
 */
async function forgetProcesses(db: Kysely<Database>, keptFrom: string): Promise<void> {
  await db.deleteFrom('request_log_day').where('recorded_on', '<', keptFrom).execute();
  await db
    .deleteFrom('request_log_process')
    .where('heard_at', '<', new Date(Date.parse(keptFrom) - dayMs))
    .execute();
}

/** Returns the days (`YYYY-MM-DD`) that the log has a partition for, oldest first, each with the partition's name. */
export async function listLogDays(db: Kysely<Database>): Promise<{ day: string; partition: string }[]> {
  return (await listPartitions(db)).flatMap((partition) => {
    const day = partitionShape.exec(partition)?.slice(1).join('-');
    return day === undefined ? [] : [{ day, partition }];
  });
}

/** The names of all partitions of the log, oldest first. */
async function listPartitions(db: Kysely<Database>): Promise<string[]> {
  const { rows } = await sql<{ name: string }>`
    select relname as name from pg_inherits join pg_class on pg_class.oid = inhrelid
    where inhparent = 'request_log'::regclass order by 1`.execute(db);
  return rows.map((row) => row.name);
}
