import { sql, type Kysely } from 'kysely';

/**
 * Bodies of calls, recorded where a workspace or key asks for it: one row for each blob, which has the bodies of many calls.
 * A row of the request log names the row and the position in it (`bodies_blob`), before the blob is written.
 */
export async function up(db: Kysely<unknown>): Promise<void> {
  await sql`
    create table recorded_bodies (
      id text primary key,
      workspace_id text not null,
      blob text not null,
      -- Where each call's bodies begin in the blob, and its end.
      offsets integer[] not null,
      -- The owner of the secret that has the key of the bodies.
      key_owner text not null,
      size_bytes bigint not null,
      created_at timestamptz not null default clock_timestamp(),
      expires_at timestamptz not null
    )`.execute(db);
  await sql`create index recorded_bodies_blob on recorded_bodies (blob)`.execute(db);
  await sql`create index recorded_bodies_expiry on recorded_bodies (expires_at)`.execute(db);
  await sql`create index recorded_bodies_size on recorded_bodies (workspace_id) include (size_bytes)`.execute(db);
  await sql`create index recorded_bodies_key on recorded_bodies (key_owner)`.execute(db);
}
