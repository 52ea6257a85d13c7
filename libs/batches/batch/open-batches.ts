import { sql, type Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';

export type OpenBatches = {
  batches: number;
  /** Lines of validated batches without a result. */
  lines: number;
  /** Batches whose deadline has passed: they end as expired. */
  overdue: number;
};

const isOpen = sql`status in ('validating', 'in_progress', 'finalizing', 'cancelling')`;

/** Counts the batches of all workspaces that have not ended. */
export async function countOpenBatches(db: Kysely<Database>): Promise<OpenBatches> {
  const { rows } = await sql<OpenBatches>`
    select count(*) as batches, coalesce(sum(total - completed - failed), 0)::float8 as lines,
      count(*) filter (where expires_at <= clock_timestamp()) as overdue
    from batch where ${isOpen}`.execute(db);
  return rows[0] ?? { batches: 0, lines: 0, overdue: 0 };
}

/** The ids of open batches that read their lines from one of these files, in order. */
export async function findBatchesReading(db: Kysely<Database>, inputFileIds: readonly string[]): Promise<string[]> {
  const { rows } = await sql<{ id: string }>`
    select id from batch where input_file_id = any(${inputFileIds}::text[]) and ${isOpen} order by id`.execute(db);
  return rows.map(({ id }) => id);
}
