import { sql, type Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import { utcDay } from '../row/log-id.ts';

const dayMs = 86_400_000;
/** The tables of the log. Both have a partition for each day. */
export const logTables = ['request_log_row', 'request_log_pack'] as const;
export type LogTable = (typeof logTables)[number];
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
    for (const table of logTables) {
      const name = partitionName(day, table);
      if ((await listPartitions(tx, table)).includes(name)) continue;
      const partition = sql.table(name);
      await sql`create table if not exists ${partition} (like ${sql.table(table)} including all)`.execute(tx);
      await sql`alter table ${sql.table(table)} attach partition ${partition}
        for values from (${sql.lit(day)}) to (${sql.lit(nextDay(day))})`.execute(tx);
    }
  });
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
