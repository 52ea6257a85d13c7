import { sql, type Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import { utcDay } from '../row/log-id.ts';

const dayMs = 86_400_000;
/** The tables of the log. Both have a partition for each day. */
const tables = ['request_log_row', 'request_log_pack'] as const;
type LogTable = (typeof tables)[number];
const partitionShape = /^request_log_row_(\d{4})(\d{2})(\d{2})$/;

/** The partition of a day (`YYYY-MM-DD`) of a table of the request log. */
export const partitionName = (day: string, table: LogTable = 'request_log_row'): string =>
  `${table}_${day.replaceAll('-', '')}`;

/** The day after a day, both `YYYY-MM-DD`. */
export const nextDay = (day: string): string => utcDay(Date.parse(day) + dayMs);

/**
 * Creates the partitions of a day (`YYYY-MM-DD`) if they are missing. Any number of processes can do this concurrently.
 * They are created as tables and then attached: CREATE TABLE … PARTITION OF would lock out every reader and writer of
 * the log, and would itself wait for the longest of them.
 */
export async function ensureLogPartition(db: Kysely<Database>, day: string): Promise<void> {
  if (!partitionShape.test(partitionName(day))) throw new Error(`not a day: ${day}`);
  await db.transaction().execute(async (tx) => {
    await sql`select pg_advisory_xact_lock(hashtextextended('request_log partitions', 0))`.execute(tx);
    for (const table of tables) {
      const name = partitionName(day, table);
      if ((await listPartitions(tx, table)).includes(name)) continue;
      const partition = sql.table(name);
      await sql`create table if not exists ${partition} (like ${sql.table(table)} including all)`.execute(tx);
      await sql`alter table ${sql.table(table)} attach partition ${partition}
        for values from (${sql.lit(day)}) to (${sql.lit(nextDay(day))})`.execute(tx);
    }
  });
}

/**
 * Applies retention: drops the partitions of days that ended more than `olderThanDays` days ago, oldest first, and
 * returns their names. No row of the log is read or deleted individually, so time and memory do not depend on the
 * number of rows. The reports of processes about those days are deleted too. Throws Postgres's lock timeout (55P03)
 * when another session reads the log for longer than 2 s, because writers would wait behind this transaction.
 * Partitions that were dropped before stay dropped; call again later. `onDropped` is called after each day.
 */
export async function dropRequestLogPartitions(
  db: Kysely<Database>,
  olderThanDays: number,
  nowMs: number,
  onDropped: () => Promise<void> = () => Promise.resolve(),
): Promise<string[]> {
  if (!Number.isInteger(olderThanDays) || olderThanDays < 1) {
    throw new RangeError(`the request log must be kept for a whole number of days, at least 1, not ${olderThanDays}`);
  }
  const keptFrom = utcDay(nowMs - olderThanDays * dayMs);
  const old = (await listLogDays(db)).filter(({ day }) => day < keptFrom);
  for (const { day } of old) {
    await db.transaction().execute(async (tx) => {
      await sql`set local lock_timeout = '2s'`.execute(tx);
      const partitions = tables.map((table) => sql.table(partitionName(day, table)));
      await sql`drop table if exists ${sql.join(partitions)}`.execute(tx);
    });
    await onDropped();
  }
  await forgetProcesses(db, keptFrom);
  return old.map(({ partition }) => partition);
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

/** The names of all partitions of a table of the log, oldest first. */
async function listPartitions(db: Kysely<Database>, table: LogTable = 'request_log_row'): Promise<string[]> {
  const { rows } = await sql<{ name: string }>`
    select relname as name from pg_inherits join pg_class on pg_class.oid = inhrelid
    where inhparent = ${table}::regclass order by 1`.execute(db);
  return rows.map((row) => row.name);
}
