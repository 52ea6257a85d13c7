import { sql, type Kysely } from 'kysely';

/** One row for each live request and each batch line, written in groups after the answer; no bodies. */
export async function up(db: Kysely<unknown>): Promise<void> {
  await sql`
    create table request_log (
      recorded_on date not null,
      id uuid not null,
      workspace_id text not null,
      key_id text,
      kind text not null check (kind in ('live', 'batch')),
      operation text not null,
      request_id text not null,
      trace_id text,
      span_id text,
      parent_span_id text,
      span_name text,
      metadata jsonb,
      provider text,
      virtual_key text,
      model text,
      response_model text,
      provider_request_id text,
      stream boolean not null,
      status integer,
      error_code text,
      finish_reason text,
      attempts integer not null,
      started_at timestamptz not null,
      duration_ms double precision not null,
      first_event_ms double precision,
      input_tokens bigint,
      cached_tokens bigint,
      output_tokens bigint,
      reasoning_tokens bigint,
      batch_id text,
      batch_line integer,
      -- A killed process loses at most one group: it shows as a gap in the sequence of that process.
      process_id uuid not null,
      sequence bigint not null,
      primary key (id, recorded_on)
    ) partition by range (recorded_on)`.execute(db);
  await sql`create index request_log_list on request_log (workspace_id, recorded_on desc, id desc)`.execute(db);
  await sql`create index request_log_trace on request_log (trace_id, recorded_on desc, id desc)`.execute(db);
}
