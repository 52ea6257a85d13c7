import { sql, type Kysely } from 'kysely';

/** Files and batches (folds of their streams), and what is not a fold: chunks and result rows. */
export async function up(db: Kysely<unknown>): Promise<void> {
  await sql`
    create table file (
      id text primary key,
      workspace_id text not null,
      version integer not null,
      updated_at timestamptz not null,
      purpose text not null,
      filename text not null,
      bytes bigint not null,
      sha256 text not null,
      blob text not null,
      created_at timestamptz not null,
      expires_at timestamptz,
      deleted_at timestamptz
    )`.execute(db);
  await sql`create index file_list on file (workspace_id, created_at desc, id desc) where deleted_at is null`.execute(
    db,
  );
  await sql`create index file_blob on file (blob)`.execute(db);
  await sql`create index file_expiry on file (expires_at) where deleted_at is null and expires_at is not null`.execute(
    db,
  );

  await sql`
    create table batch (
      id text primary key,
      workspace_id text not null,
      version integer not null,
      updated_at timestamptz not null,
      endpoint text not null,
      completion_window text not null,
      input_file_id text not null,
      metadata jsonb,
      target jsonb not null,
      gateway_options jsonb not null,
      headers jsonb not null,
      output_expires_after_seconds integer,
      status text not null check (status in
        ('validating', 'failed', 'in_progress', 'finalizing', 'completed', 'expired', 'cancelling', 'cancelled')),
      finalizing_reason text,
      errors jsonb,
      model text,
      chunk_count integer not null,
      total integer not null,
      completed integer not null,
      failed integer not null,
      usage jsonb not null,
      output_file_id text,
      error_file_id text,
      created_at timestamptz not null,
      expires_at timestamptz not null,
      in_progress_at timestamptz,
      finalizing_at timestamptz,
      completed_at timestamptz,
      failed_at timestamptz,
      expired_at timestamptz,
      cancelling_at timestamptz,
      cancelled_at timestamptz,
      check (completed >= 0 and failed >= 0 and completed + failed <= total)
    )`.execute(db);
  await sql`create index batch_list on batch (workspace_id, created_at desc, id desc)`.execute(db);
  await sql`
    create index batch_open on batch (created_at, id)
    where status in ('validating', 'in_progress', 'finalizing', 'cancelling')`.execute(db);
  await sql`
    create index batch_input_file on batch (input_file_id)
    where status in ('validating', 'in_progress', 'finalizing', 'cancelling')`.execute(db);

  // Where the lines of an input lie: byte ranges, no copies. One update a chunk, never one a line.
  await sql`
    create table batch_chunk (
      batch_id text not null,
      chunk integer not null,
      byte_offset bigint not null,
      byte_length bigint not null,
      -- The line that the byte range begins with; first_line is later where a chunk was cut in two.
      range_first_line integer not null,
      first_line integer not null,
      line_count integer not null,
      state text not null default 'pending' check (state in ('pending', 'released', 'done')),
      generation integer not null default 0,
      -- How a chunk that kills its worker is told from one that was given back: see libs/batches/redelivery.ts.
      handed_back boolean not null default false,
      settled_lines integer not null default 0,
      redeliveries_without_progress integer not null default 0,
      primary key (batch_id, chunk)
    ) with (fillfactor = 80)`.execute(db);
  await sql`create index batch_chunk_open on batch_chunk (batch_id, chunk) where state <> 'done'`.execute(db);

  // One row a line, inserted once, holding the exact bytes of its output or error line. Partitions are made per
  // creation day of the batch (bucket) and dropped whole when all their batches are past retention.
  await sql`
    create table batch_result (
      bucket date not null,
      batch_id text not null,
      line integer not null,
      succeeded boolean not null,
      data bytea not null,
      primary key (bucket, batch_id, line)
    ) partition by list (bucket)`.execute(db);
}
