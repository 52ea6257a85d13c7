import { sql, type Kysely } from 'kysely';

/**
 * Rollups of single values of a metadata key, for statements that row-level security restricts. They are found by an index on
 * hashes, and Postgres looks nothing up by a function before a policy has judged each row: for all it knows, the function
 * could tell what it was given. So these functions run as the owner and check the workspace themselves.
 */
export async function up(db: Kysely<unknown>): Promise<void> {
  const { rows } = await sql<{ schema: string }>`select quote_ident(current_schema()) as schema`.execute(db);
  const schema = rows[0]?.schema ?? 'public';
  for (const table of ['metadata_rollup', 'value_rollup']) {
    const name = `${table}_of(text, text, text, text[], timestamptz, timestamptz)`;
    await sql
      .raw(
        `create function ${table}_of(wanted_workspace text, wanted_grain text, wanted_key text, wanted_values text[],
           from_at timestamptz, until_at timestamptz)
         returns setof ${table} language sql stable security definer set search_path = ${schema}, pg_temp as $$
           select * from ${table}
           where (current_setting('role') <> 'sluice_tenant' or wanted_workspace = current_setting('sluice.workspace', true))
             and workspace_id = wanted_workspace and grain = wanted_grain and key = wanted_key
             and hashtextextended(value, 0) in (select hashtextextended(wanted, 0) from unnest(wanted_values) as wanted)
             and value = any(wanted_values) and bucket >= from_at and bucket < until_at
         $$;
         revoke all on function ${name} from public`,
      )
      .execute(db);
  }
}
