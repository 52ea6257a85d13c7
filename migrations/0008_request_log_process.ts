import { sql, type Kysely } from 'kysely';

/**
 * What each process said of its part of the request log: `request_log` alone shows a row that is missing in the middle,
 * but not one that is missing at the end. Rewritten at a low rate by the process itself, and for good when it stops.
 */
export async function up(db: Kysely<unknown>): Promise<void> {
  await sql`
    create table request_log_process (
      process_id uuid primary key,
      app text not null,
      -- By the clock of the process, as recorded_on of its rows is; the other times are by the database's.
      started_at timestamptz not null,
      heard_at timestamptz not null,
      -- How many rows it had recorded by heard_at …
      last_sequence bigint not null,
      -- … of which those up to this one had been written, or counted in lost_rows.
      written_sequence bigint not null,
      lost_rows bigint not null,
      -- Set by an orderly stop, after the last row was written.
      stopped_at timestamptz
    )`.execute(db);
  // The first row of each process on each day: retention drops days, and what begins later than it should is then no loss.
  await sql`
    create table request_log_day (
      process_id uuid not null,
      recorded_on date not null,
      first_sequence bigint not null,
      primary key (process_id, recorded_on)
    )`.execute(db);
}
