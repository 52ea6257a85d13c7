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

/**
 * Recreates a missing partition that this process has seen before: a failover can lose transactions that were just
 * committed.
 */
export async function remakeResultsPartition(db: Kysely<Database>, bucket: string): Promise<void> {
  seenBuckets(db).delete(bucket);
  await ensureResultsPartition(db, bucket);
}

/**
 * Drops the result partitions of days before `before` whose batches have all ended, with the chunks of these batches; their
 * lines are in the files. Dropping whole partitions costs the same for a thousand rows and for a billion. Returns the days
 * dropped, how many batches of each workspace have lost their results, and the number of chunks deleted.
 */
export async function dropOldResults(
  db: Kysely<Database>,
  before: Date,
): Promise<{ days: string[]; batches: Map<string, number>; chunks: number }> {
  const { rows: old } = await sql<{ bucket: string; partition: string; open: boolean }>`
    select to_char(day, 'YYYY-MM-DD') as bucket, relname as partition, exists (
        select from batch where (created_at at time zone 'UTC')::date = day
          and status in ('validating', 'in_progress', 'finalizing', 'cancelling')
      ) as open
    from (
      select relname, to_date(right(relname, 8), 'YYYYMMDD') as day
      from pg_inherits join pg_class on pg_class.oid = inhrelid
      where inhparent = 'batch_result'::regclass
    ) as partitions
    where day < ${resultsBucket({ created_at: before })}::date
    order by day`.execute(db);
  const dropped = old.filter(({ open }) => !open);
  const batches = new Map<string, number>();
  for (const { bucket, partition } of dropped) {
    for (const { workspaceId, count } of await countBatches(db, bucket))
      batches.set(workspaceId, (batches.get(workspaceId) ?? 0) + count);
    await sql`drop table ${sql.table(partition)}`.execute(db);
    seenBuckets(db).delete(bucket);
  }
  const kept = old.filter(({ open }) => open).map(({ bucket }) => bucket);
  const chunks = await deleteOldChunks(db, before, kept);
  return { days: dropped.map((row) => row.bucket), batches, chunks };
}

async function countBatches(db: Kysely<Database>, bucket: string): Promise<{ workspaceId: string; count: number }[]> {
  const { rows } = await sql<{ workspaceId: string; count: number }>`
    select workspace_id as "workspaceId", count(*)::int as count from batch
    where (created_at at time zone 'UTC')::date = ${bucket}::date group by 1`.execute(db);
  return rows;
}

const deletedMax = 10_000;

/**
 * Deletes the chunks of batches that ended and are of days before `before`, except for days whose results are kept. Returns
 * their number.
 */
async function deleteOldChunks(db: Kysely<Database>, before: Date, kept: readonly string[]): Promise<number> {
  for (let deleted = 0; ;) {
    const { numAffectedRows = 0n } = await sql`
      delete from batch_chunk where ctid = any(array(
        select batch_chunk.ctid from batch_chunk join batch on batch.id = batch_chunk.batch_id
        where batch.created_at < ${resultsBucket({ created_at: before })}::date at time zone 'UTC'
          and (batch.created_at at time zone 'UTC')::date <> all(${kept}::date[])
          and batch.status in ('completed', 'failed', 'cancelled', 'expired')
        limit ${deletedMax}
      ))`.execute(db);
    deleted += Number(numAffectedRows);
    if (numAffectedRows < deletedMax) return deleted;
  }
}
