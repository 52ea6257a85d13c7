import { sql, type Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';

/** The partition key of a batch's result rows: the UTC day on which the batch was created, `YYYY-MM-DD`. */
export function resultsBucket(batch: { created_at: Date }): string {
  return batch.created_at.toISOString().slice(0, 10);
}

// By database: a process may work on several (tests do), and each has its own partitions.
const ensured = new WeakMap<Kysely<Database>, Set<string>>();

/**
 * Makes the partition for a bucket when it is not there. Outside any transaction: attaching a partition locks the
 * parent, and no settle may wait behind a long one. Once a process has seen it, this costs nothing.
 */
export async function ensureResultsPartition(db: Kysely<Database>, bucket: string): Promise<void> {
  const known = ensured.get(db) ?? new Set();
  if (known.has(bucket)) return;
  if (!/^\d{4}-\d{2}-\d{2}$/.test(bucket)) throw new Error(`not a bucket: ${bucket}`);
  const table = sql.table(`batch_result_${bucket.replaceAll('-', '')}`);
  await db.transaction().execute(async (tx) => {
    // Two processes that see a new day at once would otherwise fail on the catalogue's unique index.
    await sql`select pg_advisory_xact_lock(hashtextextended('batch_result partitions', 0))`.execute(tx);
    await sql`create table if not exists ${table} partition of batch_result for values in (${sql.lit(bucket)})`.execute(
      tx,
    );
    // Lines are inserted once and read once: compressing them costs more than the space is worth.
    await sql`alter table ${table} alter column data set storage external`.execute(tx);
  });
  ensured.set(db, known.add(bucket));
}
