import { sql, type Kysely } from 'kysely';

/**
 * Bounded rollups: what a bucket has beyond its limits is counted in rows with `other`, whose values are null. Rows of
 * single values exist by minute and by ten minutes too, and for every metadata key in `rollup_key`.
 *
 * Rows of single values are read from tomorrow on, because workers of the release before go on writing theirs until they
 * are replaced. Then a worker makes those of earlier hours, newest first, and moves `values_from` back.
 */
export async function up(db: Kysely<unknown>): Promise<void> {
  for (const table of ['call_rollup', 'metadata_rollup', 'value_rollup']) {
    await sql`alter table ${sql.table(table)} add column other boolean not null default false`.execute(db);
  }
  await sql`alter table metadata_rollup alter column value drop not null`.execute(db);
  for (const grain of ['minute', 'ten_minutes']) {
    await sql`
      create table ${sql.table(`value_rollup_${grain}`)} partition of value_rollup for values in (${sql.lit(grain)})
      with (toast_tuple_target = 128)`.execute(db);
  }

  // The metadata keys of which a workspace has rollups. A row with the key '' says when one was refused for the first time.
  await sql`
    create table rollup_key (
      workspace_id text not null,
      key text not null,
      -- Calls with this key are in rollups from here on.
      from_at timestamptz not null,
      -- The day on which a call had it last.
      seen_on date not null,
      primary key (workspace_id, key)
    )`.execute(db);

  await sql`
    alter table rollup_state add column tens_from timestamptz not null default '-infinity',
      add column tens_until timestamptz not null default date_trunc('hour', now(), 'UTC')`.execute(db);
  await sql`
    update rollup_state set tens_until = least(tens_until, hours_until),
      values_from = case when exists (select from call_rollup)
        then date_trunc('day', now(), 'UTC') + interval '1 day' else '-infinity' end`.execute(db);
}
