import { sql, type Kysely } from 'kysely';

/** What subscribers say of themselves, and the first one's table: who changed what, when, from where. */
export async function up(db: Kysely<unknown>): Promise<void> {
  await sql`
    alter table subscription_checkpoint
      add column failures integer not null default 0,
      add column last_error text,
      add column retry_at timestamptz,
      add column moved_at timestamptz`.execute(db);

  await sql`
    create table activity (
      id uuid primary key,
      workspace_id text not null,
      recorded_at timestamptz not null,
      action text not null,
      resource_type text not null,
      resource_id text not null,
      actor_type text not null,
      actor_id text not null,
      request_id text,
      trace_id text,
      address text,
      method text,
      uri text,
      status smallint
    )`.execute(db);
  await sql`create index activity_list on activity (workspace_id, recorded_at desc, id desc)`.execute(db);

  // GET /v1/events reads a workspace's events in the order of the log.
  await sql`create index event_of_workspace on event (workspace_id, epoch, transaction_id, position)`.execute(db);
}
