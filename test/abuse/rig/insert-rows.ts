import type pg from 'pg';
import { insertEventSql } from '#test/insert-event.ts';

/**
 * Inserts batches of the first workspace that are being validated, an hour old, each with its turn. The turns are due
 * tomorrow, so that no worker claims them: only the number of rows matters. The rows are not folded from the log, which
 * no attack depends on. The ended batches were already there when Postgres last analysed the table, so its planner
 * expects that few batches are being validated.
 */
export async function insertValidatingBatches(
  pool: pg.Pool,
  { batches, ended }: { batches: number; ended: number },
): Promise<void> {
  await insertBatches(pool, 'completed', ended);
  await pool.query('analyze batch');
  await insertBatches(pool, 'validating', batches);
  await insertTurns(pool, 'validating', batches);
}

async function insertBatches(pool: pg.Pool, status: 'completed' | 'validating', count: number): Promise<void> {
  await pool.query(
    `insert into batch (id, workspace_id, version, updated_at, endpoint, completion_window, input_file_id, target,
       gateway_options, headers, status, chunk_count, total, completed, failed, usage, created_at, expires_at)
     select 'batch_abuse_' || $1 || '_' || n, (select id from resource where kind = 'workspace' order by created_at limit 1), 1, now(),
       '/v1/chat/completions', '24h', 'file-none', '{"type":"none"}', '{}', '{}', $1, 0, 0, 0, 0,
       '{"input_tokens":0,"cached_tokens":0,"output_tokens":0,"reasoning_tokens":0}',
       now() - interval '1 hour', now() + interval '1 day'
     from generate_series(1, $2::int) as n`,
    [status, count],
  );
}

/** Inserts turns of batches of the first workspace that failed to be validated and are due again tomorrow. */
export async function insertDueTurns(pool: pg.Pool, count: number): Promise<void> {
  await insertTurns(pool, 'due', count);
}

async function insertTurns(pool: pg.Pool, name: string, count: number): Promise<void> {
  await pool.query(
    `insert into batch_turn (batch_id, workspace_id, work, lane, priority, order_at, ready, failures, due_at)
     select 'batch_abuse_' || $1 || '_' || n, (select id from resource where kind = 'workspace' order by created_at limit 1),
       'validate', 'small_files', 0, now(), 0, 1, now() + interval '1 day'
     from generate_series(1, $2::int) as n`,
    [name, count],
  );
}

/** Inserts the events of a prompt of the first workspace, which every text in a version makes large. */
export async function insertPrompt(
  pool: pg.Pool,
  streamId: string,
  { versions, bytes }: { versions: number; bytes: number },
): Promise<void> {
  await pool.query(
    insertEventSql(
      {
        workspace_id: "(select id from resource where kind = 'workspace' order by created_at limit 1)",
        stream_id: '$1::text',
        stream_version: 'number',
        type: "case number when 1 then 'prompt.created' else 'prompt.updated' end",
        data: "json_build_object('string', repeat(md5(number::text), $3::int / 32), 'prompt_version', number)",
      },
      'from generate_series(1, $2::int) as number',
    ),
    [streamId, versions, bytes],
  );
}

/** Inserts records of calls of the first workspace into today's request log. */
export async function insertCalls(pool: pg.Pool, count: number): Promise<void> {
  await pool.query(
    `insert into request_log_row (recorded_on, id, workspace_id, kind, operation, request_id, metadata, model, stream, status,
       attempts, started_at, duration_ms, process_id, sequence)
     select (now() at time zone 'utc')::date, gen_random_uuid(), (select id from resource where kind = 'workspace' order by created_at limit 1), 'live',
       'chat', 'req_' || n, jsonb_build_object('team', 'team-' || n % 100), 'model-' || n % 10, false, 200, 1, now(), 100,
       gen_random_uuid(), n
     from generate_series(1, $1::int) as n`,
    [count],
  );
}
