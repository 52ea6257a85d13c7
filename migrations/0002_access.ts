import { sql, type Kysely } from 'kysely';

/** Workspaces, gateway keys, virtual keys (folds of their streams) and the encrypted secrets that events refer to. */
export async function up(db: Kysely<unknown>): Promise<void> {
  await sql`
    create table workspace (
      id text primary key,
      workspace_id text not null,
      version integer not null,
      updated_at timestamptz not null,
      name text not null,
      created_at timestamptz not null
    )`.execute(db);

  await sql`
    create table api_key (
      id text primary key,
      workspace_id text not null,
      version integer not null,
      updated_at timestamptz not null,
      name text not null,
      digest text not null unique,
      last_four text not null,
      scopes jsonb,
      defaults jsonb not null,
      created_at timestamptz not null,
      expires_at timestamptz,
      revoked_at timestamptz
    )`.execute(db);
  await sql`create index api_key_workspace on api_key (workspace_id, created_at desc, id desc)`.execute(db);

  await sql`
    create table virtual_key (
      id text primary key,
      workspace_id text not null,
      version integer not null,
      updated_at timestamptz not null,
      slug text not null,
      name text not null,
      provider text not null,
      custom_host text,
      note text,
      settings jsonb not null,
      secret_id text,
      secret_last_four text not null,
      created_at timestamptz not null,
      expires_at timestamptz,
      deleted_at timestamptz
    )`.execute(db);
  await sql`create unique index virtual_key_slug on virtual_key (workspace_id, slug) where deleted_at is null`.execute(
    db,
  );
  await sql`create index virtual_key_workspace on virtual_key (workspace_id, created_at desc, id desc)`.execute(db);

  // Primary data, not a fold: ciphertexts. A secret is removed when what it belongs to ends.
  await sql`
    create table secret (
      id text primary key,
      workspace_id text not null,
      owner_id text not null,
      master_key_id text not null,
      wrapped_key bytea not null,
      ciphertext bytea not null,
      created_at timestamptz not null
    )`.execute(db);
  await sql`create index secret_owner on secret (owner_id)`.execute(db);

  // One row, polled by every process: its snapshot is stale when the number differs from what it loaded.
  await sql`create table access_version (id boolean primary key default true check (id), version bigint not null)`.execute(
    db,
  );
  await sql`insert into access_version (version) values (0)`.execute(db);
}
