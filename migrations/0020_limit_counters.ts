import { sql, type Kysely } from 'kysely';

/**
 * What budgets and rates have counted: one row for each limit and each value that it is grouped by. The row is updated a
 * few times a second while calls come, so no column that changes is indexed, and pages keep room for the next version.
 */
export async function up(db: Kysely<unknown>): Promise<void> {
  await sql`
    create table limit_counter (
      id text primary key,
      workspace_id text not null,
      limit_id text not null,
      value_key text not null,
      kind text not null,
      max numeric not null,
      period_start timestamptz not null,
      period_end timestamptz,
      used numeric not null,
      assumed numeric not null,
      unpriced bigint not null,
      is_alerted boolean not null,
      leases jsonb not null,
      reset_at timestamptz,
      created_at timestamptz not null default clock_timestamp(),
      updated_at timestamptz not null
    ) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000)`.execute(db);
  await sql`create index limit_counter_of_limit on limit_counter (limit_id, created_at desc, id)`.execute(db);
}
