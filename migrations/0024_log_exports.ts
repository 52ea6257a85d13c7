import { sql, type Kysely } from 'kysely';

/**
 * What an export of the request log has written so far: one row for each finished blob, in the order of the file. The next
 * worker goes on after `last_id` when one was killed.
 */
export async function up(db: Kysely<unknown>): Promise<void> {
  await sql`
    create table log_export_part (
      workspace_id text not null,
      export_id text not null,
      part integer not null,
      blob text not null,
      size_bytes bigint not null,
      -- Rows in this part; and rows that the export had passed over by its end because of its page.
      rows integer not null,
      skipped bigint not null,
      -- The row of the log that was read last.
      last_id uuid,
      created_at timestamptz not null default now(),
      primary key (export_id, part)
    )`.execute(db);
  // The sweep of blobs asks which of them are still needed.
  await sql`create index log_export_part_blob on log_export_part (blob)`.execute(db);
}
