import { sql, type Kysely } from 'kysely';

/**
 * Files that clients send in parts. What is not complete is no file: it is in no event, expires, and leaves nothing behind.
 * Completing an upload makes a file of its parts.
 */
export async function up(db: Kysely<unknown>): Promise<void> {
  await sql`
    create table upload (
      id text primary key,
      workspace_id text not null,
      filename text not null,
      purpose text not null,
      mime_type text not null,
      -- Of the whole file, as the client announced it; the hash only if it did.
      bytes bigint not null,
      sha256 text,
      -- Of the file, in seconds from its creation.
      expires_after bigint,
      status text not null default 'pending' check (status in ('pending', 'completed', 'cancelled')),
      file_id text,
      created_at timestamptz not null default clock_timestamp(),
      expires_at timestamptz not null
    )`.execute(db);
  await sql`create index upload_of_workspace on upload (workspace_id, created_at) where status = 'pending'`.execute(db);
  await sql`create index upload_by_hash on upload (workspace_id, sha256) where sha256 is not null`.execute(db);
  await sql`create index upload_expiry on upload (expires_at)`.execute(db);
  await sql`
    create table upload_part (
      id text primary key,
      upload_id text not null references upload on delete cascade,
      workspace_id text not null,
      blob text not null,
      bytes bigint not null,
      sha256 text not null,
      created_at timestamptz not null default clock_timestamp()
    )`.execute(db);
  await sql`create index upload_part_of_upload on upload_part (upload_id, created_at, id)`.execute(db);
  await sql`create index upload_part_blob on upload_part (blob)`.execute(db);
}
