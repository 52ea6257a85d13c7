import { sql, type Kysely } from 'kysely';

/**
 * Rollups by hour and day of one column, or of one metadata key, at a time: narrow rows for the graphs and groups that ask
 * for no combination. They are made from the rollups that are there, from tomorrow on: hours that a worker of the release
 * before closes meanwhile have none. `sluice analytics rebuild` makes them for older times.
 */
export async function up(db: Kysely<unknown>): Promise<void> {
  // Histograms are stored apart (toast_tuple_target below), because most queries read the numbers only. The keys never are.
  await sql`
    create table value_rollup (
      grain text not null,
      bucket timestamptz not null,
      workspace_id text not null,
      key text not null,
      value text,
      requests bigint not null,
      input_tokens numeric not null,
      output_tokens numeric not null,
      cost numeric not null,
      unpriced bigint not null,
      saved_cost numeric not null,
      duration_us numeric not null,
      failed_requests bigint not null,
      hits bigint not null,
      hit_duration_us numeric not null,
      latency text not null,
      first_at timestamptz not null,
      last_at timestamptz not null
    ) partition by list (grain)`.execute(db);
  await sql`
    alter table value_rollup alter latency set storage external, alter workspace_id set storage main,
      alter key set storage main, alter value set storage main, alter input_tokens set storage main,
      alter output_tokens set storage main, alter cost set storage main, alter saved_cost set storage main,
      alter duration_us set storage main, alter hit_duration_us set storage main`.execute(db);
  for (const grain of ['hour', 'day']) {
    const partition = sql.table(`value_rollup_${grain}`);
    await sql`
      create table ${partition} partition of value_rollup for values in (${sql.lit(grain)})
      with (toast_tuple_target = 128)`.execute(db);
  }
  await sql`create index value_rollup_bucket on value_rollup (bucket)`.execute(db);
  await sql`create index value_rollup_list on value_rollup (workspace_id, key, bucket)`.execute(db);
  // By a hash, because a long value would not fit an index page.
  await sql`
    create index value_rollup_value on value_rollup
      (workspace_id, key, hashtextextended(value, 0), bucket)`.execute(db);

  await sql`alter table rollup_state add column values_from timestamptz not null default '-infinity'`.execute(db);
  await sql`
    update rollup_state set values_from = date_trunc('day', now(), 'UTC') + interval '1 day'
    where exists (select from call_rollup)`.execute(db);
}
