import { sql, type Kysely } from 'kysely';

/** The log: insert and select only, for everybody. Subscribers' checkpoints, command results and installation facts. */
export async function up(db: Kysely<unknown>): Promise<void> {
  await sql`
    create table event (
      position bigint generated always as identity primary key,
      -- Assigned after the stream's advisory lock is held, so that inside a stream it grows with the version.
      transaction_id xid8 not null default pg_current_xact_id(),
      event_id uuid not null unique,
      workspace_id text not null,
      stream_id text not null,
      stream_version integer not null check (stream_version > 0),
      type text not null,
      schema_version smallint not null check (schema_version > 0),
      data jsonb not null,
      metadata jsonb not null,
      recorded_at timestamptz not null,
      unique (stream_id, stream_version)
    )`.execute(db);
  await sql`create index event_transaction_position on event (transaction_id, position)`.execute(db);

  await sql`
    create function refuse_event_change() returns trigger language plpgsql as $$
    begin
      raise exception 'the event log is insert-only: % refused', tg_op using errcode = 'insufficient_privilege';
    end $$`.execute(db);
  await sql`
    create trigger event_is_insert_only before update or delete or truncate on event
    for each statement execute function refuse_event_change()`.execute(db);
  // The owner too: a role without superuser rights cannot change an event even where the trigger were dropped.
  await sql`revoke update, delete, truncate on event from public, current_user`.execute(db);

  await sql`
    create table subscription_checkpoint (
      name text primary key,
      transaction_id xid8 not null,
      position bigint not null
    )`.execute(db);

  await sql`
    create table command_result (
      workspace_id text not null,
      key_id text not null,
      route text not null,
      idempotency_key text not null,
      fingerprint text not null,
      status smallint not null,
      body jsonb not null,
      recorded_at timestamptz not null,
      primary key (workspace_id, key_id, route, idempotency_key)
    )`.execute(db);
  await sql`create index command_result_age on command_result (recorded_at)`.execute(db);
  // A retried call without a key is recognised by the hash of its body (DESIGN, "Commands are idempotent").
  await sql`
    create index command_result_fingerprint on command_result (workspace_id, key_id, route, fingerprint, recorded_at)
  `.execute(db);

  // Facts about this installation: the blob store's id, the check value of the master key.
  await sql`create table installation (name text primary key, value text not null)`.execute(db);
}
