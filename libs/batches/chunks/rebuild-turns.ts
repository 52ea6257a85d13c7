import { sql, type Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import { forgetProcesses } from '#libs/queue/process-lease.ts';
import { takeOverWork } from './chunk.ts';

/** `held`: chunks and files that processes held when the backup was made. `turns`: how many were wrong or missing. */
export type RebuiltTurns = { held: number; turns: number };

/**
 * Brings the turns in line with the batches and their chunks: frees what processes held, and creates, corrects or
 * deletes turns. For a restored database, in which no worker runs. Returns what it changed.
 */
export async function rebuildTurns(db: Kysely<Database>): Promise<RebuiltTurns> {
  return await db.transaction().execute(async (tx) => {
    await sql`set local statement_timeout = 0`.execute(tx);
    const { rows: holders } = await sql<{ holder: string; held: number }>`
      select holder, count(*)::int as held from (
        select holder from batch_chunk where holder is not null
        union all select holder from batch_turn where holder is not null
      ) as work group by holder`.execute(tx);
    for (const { holder } of holders) await takeOverWork(tx, holder);
    await forgetProcesses(tx);
    const { numAffectedRows: surplus = 0n } = await sql`
      delete from batch_turn where not exists (
        select from batch where batch.id = batch_id and status in ('validating', 'in_progress', 'finalizing', 'cancelling')
      )`.execute(tx);
    const { numAffectedRows: missing = 0n } = await sql`
      insert into batch_turn (batch_id, workspace_id, work, lane, priority, order_at, paused, ready)
      select id, workspace_id, wanted.work,
        case when wanted.work in ('lines', 'close') then 'lines' else 'large_files' end,
        coalesce((gateway_options ->> 'priority')::smallint, 0), created_at,
        wanted.work = 'lines' and paused_at is not null, 1
      from batch cross join lateral (select ${workOf} as work) as wanted
      where status in ('validating', 'in_progress', 'finalizing', 'cancelling')
      on conflict (batch_id) do nothing`.execute(tx);
    const { numAffectedRows: wrong = 0n } = await sql`
      update batch_turn set ready = wanted.ready from (
        select turn.batch_id, case turn.work
          when 'lines' then (select count(*) from batch_chunk where batch_id = turn.batch_id and state = 'ready')
          when 'close' then 0 else case when due_at is null then 1 else 0 end end as ready
        from batch_turn as turn
      ) as wanted
      where batch_turn.batch_id = wanted.batch_id and batch_turn.ready <> wanted.ready`.execute(tx);
    await sql`update batch_share set virtual_time = 0`.execute(tx);
    await sql`
      insert into batch_share (lane, workspace_id, active)
      select distinct lane, workspace_id, true from batch_turn where ready > 0
      on conflict (lane, workspace_id) do update set active = true`.execute(tx);
    return {
      held: holders.reduce((sum, { held }) => sum + held, 0),
      turns: Number(surplus + missing + wrong),
    };
  });
}

const workOf = sql`
  case status when 'in_progress' then 'lines' when 'finalizing' then 'finalise'
    when 'cancelling' then case when in_progress_at is null then 'validate' else 'close' end else 'validate' end`;
