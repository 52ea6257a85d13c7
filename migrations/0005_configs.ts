import { sql, type Kysely } from 'kysely';

/** Stored configs: the head of each, every version that it ever had, and which option of one answered a call. */
export async function up(db: Kysely<unknown>): Promise<void> {
  await sql`
    create table config (
      id text primary key,
      workspace_id text not null,
      version integer not null,
      updated_at timestamptz not null,
      slug text not null,
      name text not null,
      config jsonb not null,
      config_version integer not null,
      created_at timestamptz not null,
      deleted_at timestamptz
    )`.execute(db);
  await sql`create unique index config_slug on config (workspace_id, slug) where deleted_at is null`.execute(db);
  await sql`create index config_workspace on config (workspace_id, created_at desc, id desc)`.execute(db);

  // One row for each event that brought a config; never changed. A batch pins one of them.
  await sql`
    create table config_version (
      id text primary key,
      workspace_id text not null,
      version integer not null,
      updated_at timestamptz not null,
      config_id text not null,
      config_version integer not null,
      config jsonb not null,
      created_at timestamptz not null,
      unique (config_id, config_version)
    )`.execute(db);

  // Null for a call without a config, and for every row from before.
  await sql`alter table request_log add column last_used_option text`.execute(db);
}
