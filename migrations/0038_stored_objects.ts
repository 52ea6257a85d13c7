import { sql, type Kysely } from 'kysely';

/**
 * Which workspace created which object at a provider whose account several workspaces share. An object without a row belongs to
 * no workspace.
 */
export async function up(db: Kysely<unknown>): Promise<void> {
  await sql`
    create table stored_object (
      -- The id of the integration that holds the credential.
      account_id text not null,
      object_id text not null,
      workspace_id text not null,
      kind text not null,
      created_at timestamptz not null default clock_timestamp(),
      primary key (account_id, object_id)
    )`.execute(db);
  await sql`create index stored_object_by_age on stored_object (workspace_id, account_id, kind, created_at)`.execute(
    db,
  );
}
