import { sql, type Kysely } from 'kysely';

/** What a workspace has open and stored is counted by an index; which try of a call an answer was given to is kept. */
export async function up(db: Kysely<unknown>): Promise<void> {
  await sql`
    create index batch_workspace_open on batch (workspace_id)
    where status in ('validating', 'in_progress', 'finalizing', 'cancelling')`.execute(db);
  // Deleted files count until their bytes are swept. All that is asked is in the index.
  await sql`create index file_stored on file (workspace_id, deleted_at) include (bytes)`.execute(db);
  await sql`alter table command_result add column retry_count smallint not null default 0`.execute(db);
}
