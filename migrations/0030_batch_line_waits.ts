import { sql, type Kysely } from 'kysely';

/**
 * What the lines of running batches wait for, as each worker reported it last. Disposable, so the table is unlogged: what a
 * crash of the server empties is reported again.
 */
export async function up(db: Kysely<unknown>): Promise<void> {
  await sql`
    create unlogged table batch_line_wait (
      batch_id text not null,
      process_id text not null,
      workspace_id text not null,
      waits jsonb not null,
      reported_at timestamptz not null,
      primary key (batch_id, process_id)
    )`.execute(db);
  await sql`create index batch_line_wait_age on batch_line_wait (reported_at)`.execute(db);
}
