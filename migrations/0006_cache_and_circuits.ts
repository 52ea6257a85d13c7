import { sql, type Kysely } from 'kysely';

/**
 * Answers kept by configs with a cache, and the open circuits of providers. Both are disposable and never folded from
 * events, so the tables are unlogged: a large body then costs no WAL and reaches no backup, and what a crash of the
 * server empties is asked for, or found out, again.
 */
export async function up(db: Kysely<unknown>): Promise<void> {
  await sql`
    create unlogged table response_cache (
      workspace_id text not null,
      key bytea not null,
      head jsonb not null,
      body bytea not null,
      size_bytes integer not null,
      created_at timestamptz not null,
      expires_at timestamptz not null,
      primary key (workspace_id, key)
    )`.execute(db);
  // Read and written on behalf of live calls: time matters more than space here.
  await sql`alter table response_cache alter column body set storage external`.execute(db);
  await sql`create index response_cache_expiry on response_cache (expires_at)`.execute(db);
  // What the bound on a workspace's bytes is counted from, without reading a body.
  await sql`create index response_cache_age on response_cache (workspace_id, created_at desc) include (size_bytes)`.execute(
    db,
  );
  await sql`
    create unlogged table provider_circuit (
      id text primary key,
      workspace_id text not null,
      credential_id text not null,
      label text not null,
      provider text not null,
      model text not null,
      opened_at timestamptz not null,
      open_until timestamptz not null,
      failures integer not null,
      reason text not null
    )`.execute(db);
  await sql`create index provider_circuit_expiry on provider_circuit (open_until)`.execute(db);
}
