import { sql, type Kysely } from 'kysely';

/**
 * What providers said of their own rate limits, as the processes heard it last. Disposable, so the table is unlogged: what
 * a crash of the server empties is said again with the next answers.
 */
export async function up(db: Kysely<unknown>): Promise<void> {
  await sql`
    create unlogged table provider_limit (
      id text primary key,
      workspace_id text not null,
      label text not null,
      provider text not null,
      model text not null,
      limits jsonb not null,
      -- The end of the longest rate-limit wait of any process.
      waits_until timestamptz,
      reported_at timestamptz not null
    ) with (fillfactor = 70)`.execute(db);
  await sql`create index provider_limit_of_workspace on provider_limit (workspace_id)`.execute(db);
}
