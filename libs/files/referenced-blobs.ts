import { sql, type Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';

/** SQL for rows of `file` whose blob is needed: by readers of the file, or by a batch or fine-tuning job that has not ended. */
export const fileIsNeeded = sql`(
      deleted_at is null
      or exists (
        select from batch where input_file_id = file.id
          and status in ('validating', 'in_progress', 'finalizing', 'cancelling')
      )
      or exists (select from fine_tuning_job where training_file_id = file.id and finished_at is null)
      or exists (select from fine_tuning_job where validation_file_id = file.id and finished_at is null)
    )`;

/**
 * Returns those of the blobs that are still needed: by a file that is neither deleted nor expired, by a batch or
 * fine-tuning job that has not ended and reads its input from it, by an export of the request log, by recorded bodies, by an
 * upload that is not complete, or by results of lines.
 */
export async function findReferencedBlobs(
  db: Kysely<Database>,
  blobs: readonly string[],
): Promise<ReadonlySet<string>> {
  const { rows } = await sql<{ blob: string }>`
    select blob from file where blob = any(${blobs}::text[]) and ${fileIsNeeded}
    union all select blob from log_export_part where blob = any(${blobs}::text[])
    union all select blob from upload_part where blob = any(${blobs}::text[])
    union all select blob from recorded_bodies where blob = any(${blobs}::text[])
    union all select segment from batch_result where segment = any(${blobs}::text[])`.execute(db);
  return new Set(rows.map((row) => row.blob));
}
