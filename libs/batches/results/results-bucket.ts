import { sql, type Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';

/** The partition key of a batch's result rows: the UTC day on which the batch was created, `YYYY-MM-DD`. */
export function resultsBucket(batch: { created_at: Date }): string {
  return batch.created_at.toISOString().slice(0, 10);
}

// Per database, because a test process has several.
const seen = new WeakMap<Kysely<Database>, Set<string>>();

function seenBuckets(db: Kysely<Database>): Set<string> {
  const buckets = seen.get(db) ?? new Set();
  seen.set(db, buckets);
  return buckets;
}

/**
 * Creates the partition for a bucket if it is missing. It is created as a table and then attached, because CREATE TABLE …
 * PARTITION OF would block every settle while it waits for the longest reader. Once a process has seen the partition, this
 * costs nothing.
 */
export async function ensureResultsPartition(db: Kysely<Database>, bucket: string): Promise<void> {
  if (seenBuckets(db).has(bucket)) return;
  if (!/^\d{4}-\d{2}-\d{2}$/.test(bucket)) throw new Error(`not a bucket: ${bucket}`);
  const name = `batch_result_${bucket.replaceAll('-', '')}`;
  const table = sql.table(name);
  await db.transaction().execute(async (tx) => {
    // Otherwise two processes that see a new day at the same time would create it twice.
    await sql`select pg_advisory_xact_lock(hashtextextended('batch_result partitions', 0))`.execute(tx);
    const { rows } = await sql`
      select from pg_inherits join pg_class on pg_class.oid = inhrelid
      where inhparent = 'batch_result'::regclass and relname = ${name}`.execute(tx);
    if (rows.length > 0) return;
    await sql`create table ${table} (like batch_result including all)`.execute(tx);
    // Lines are written once and read once, so compressing them costs more than the space is worth.
    await sql`alter table ${table} alter column data set storage external`.execute(tx);
    await sql`alter table batch_result attach partition ${table} for values in (${sql.lit(bucket)})`.execute(tx);
  });
  seenBuckets(db).add(bucket);
}

/** To be called when a partition was dropped. */
export const forgetResultsPartition = (db: Kysely<Database>, bucket: string): boolean => seenBuckets(db).delete(bucket);

/**
 * Recreates a missing partition that this process has seen before: a failover can lose transactions that were just
 * committed.
 */
export async function remakeResultsPartition(db: Kysely<Database>, bucket: string): Promise<void> {
  forgetResultsPartition(db, bucket);
  await ensureResultsPartition(db, bucket);
}
