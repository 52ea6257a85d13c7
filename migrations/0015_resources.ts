import { sql, type Kysely } from 'kysely';

/** Records of every kind that libs/resources defines, and the versions of those that have some. A new kind needs no table. */
export async function up(db: Kysely<unknown>): Promise<void> {
  await sql`
    create table resource (
      id text primary key,
      workspace_id text not null,
      version integer not null,
      updated_at timestamptz not null,
      kind text not null,
      slug text,
      lookup text,
      data jsonb not null,
      last_version integer,
      created_at timestamptz not null,
      deleted_at timestamptz
    )`.execute(db);
  await sql`create unique index resource_slug on resource (workspace_id, kind, slug) where deleted_at is null`.execute(
    db,
  );
  await sql`create unique index resource_lookup on resource (kind, lookup)`.execute(db);
  await sql`create index resource_list on resource (workspace_id, kind, created_at desc, id desc)`.execute(db);
  // For lists of the whole organisation, and for the processes' snapshots.
  await sql`create index resource_kind on resource (kind, created_at desc, id desc)`.execute(db);

  // One row for each event that brought a version; never changed.
  await sql`
    create table resource_version (
      id text primary key,
      workspace_id text not null,
      version integer not null,
      updated_at timestamptz not null,
      kind text not null,
      resource_id text not null,
      number integer not null,
      data jsonb not null,
      created_at timestamptz not null,
      unique (resource_id, number)
    )`.execute(db);
}
