import { sql, type Kysely } from 'kysely';

/**
 * Feedback, which users of the API give on traces, and rollups of the request log by minute, hour and day. Processes of the
 * release before write log rows without saying so in `request_log_change`; `reports_changes` tells them apart.
 */
export async function up(db: Kysely<unknown>): Promise<void> {
  await sql`
    create table feedback (
      id uuid primary key,
      workspace_id text not null,
      trace_id text not null,
      value smallint not null check (value between -10 and 10),
      weight numeric not null check (weight between 0 and 1),
      metadata jsonb,
      -- Who gave it: 'api' or 'guardrail', and the key of the request.
      source text not null,
      key_id text,
      created_at timestamptz not null,
      updated_at timestamptz not null
    )`.execute(db);
  await sql`create index feedback_of_trace on feedback (workspace_id, trace_id)`.execute(db);
  await sql`create index feedback_list on feedback (workspace_id, created_at)`.execute(db);

  // Which minutes of the log have new rows; written in the transaction of those rows, deleted when they are rolled up.
  await sql`
    create table request_log_change (
      id bigint generated always as identity primary key,
      first_at timestamptz not null,
      last_at timestamptz not null
    )`.execute(db);
  await sql`alter table request_log_process add column reports_changes boolean not null default false`.execute(db);

  for (const [table, own] of [
    ['call_rollup', ''],
    ['metadata_rollup', 'key text not null, value text not null,'],
  ] as const) {
    await sql`
      create table ${sql.table(table)} (
        grain text not null,
        bucket timestamptz not null,
        workspace_id text not null,
        ${sql.raw(own)}
        provider text,
        model text,
        status integer,
        failed boolean not null,
        key_id text,
        virtual_key text,
        config text,
        prompt_slug text,
        cache_status text,
        retries integer not null,
        fallback boolean not null,
        requests bigint not null,
        input_tokens numeric not null,
        output_tokens numeric not null,
        cost numeric not null,
        unpriced bigint not null,
        saved_cost numeric not null,
        duration_us numeric not null,
        latency text not null,
        first_at timestamptz not null,
        last_at timestamptz not null
      ) partition by list (grain)`.execute(db);
    // Old minutes are deleted while days stay for a year: in tables of their own they leave no holes in the others.
    for (const grain of ['minute', 'hour', 'day']) {
      const partition = sql.table(`${table}_${grain}`);
      await sql`create table ${partition} partition of ${sql.table(table)} for values in (${sql.lit(grain)})`.execute(
        db,
      );
    }
    await sql`create index ${sql.ref(`${table}_bucket`)} on ${sql.table(table)} (bucket)`.execute(db);
  }

  await sql`create index call_rollup_list on call_rollup (workspace_id, bucket)`.execute(db);
  await sql`create index metadata_rollup_list on metadata_rollup (workspace_id, key, bucket)`.execute(db);
  // By a hash, because a long value would not fit an index page, and one such row would stop all rollups.
  await sql`
    create index metadata_rollup_value on metadata_rollup
      (workspace_id, key, hashtextextended(value, 0), bucket)`.execute(db);

  // One row, whose lock is held by the process that rolls up. Buckets from `…_from` to `…_until` are there.
  await sql`
    create table rollup_state (
      id boolean primary key default true check (id),
      minutes_from timestamptz not null,
      hours_from timestamptz not null,
      hours_until timestamptz not null,
      days_from timestamptz not null,
      days_until timestamptz not null,
      -- Until when the rows of processes that report no changes were looked for.
      unreported_until timestamptz not null default now(),
      rolled_up_at timestamptz
    )`.execute(db);
  await sql`
    insert into rollup_state (minutes_from, hours_from, hours_until, days_from, days_until)
    select '-infinity', '-infinity', date_trunc('hour', now(), 'UTC'), '-infinity', date_trunc('day', now(), 'UTC')`.execute(
    db,
  );
  // The rows that are there already.
  await sql`
    insert into request_log_change (first_at, last_at)
    select to_date(min(substr(relname, 13)), 'YYYYMMDD')::timestamp at time zone 'UTC', now()
    from pg_inherits join pg_class on pg_class.oid = inhrelid
    where inhparent = 'request_log'::regclass and relname ~ '^request_log_[0-9]{8}$' having count(*) > 0`.execute(db);
}
