import { sql, type Kysely, type RawBuilder } from 'kysely';
import { getSqlState } from '#libs/database/database-error.ts';
import type { Database } from '#libs/database/schema.ts';
import type { Deletion } from '#libs/people/facts/record-deletions.ts';
import {
  deleteUnheld,
  isHeld,
  isPast,
  keptFrom,
  readRetention,
  shortest,
  type Retention,
} from '#libs/people/retention.ts';
import { listLogDays, logTables, nextDay, partitionName, type LogTable } from './log-partitions.ts';

/** How many rows, or packs of up to 64 lines, one transaction deletes. */
const deletedAtOnce: Readonly<Record<LogTable, number>> = { request_log_row: 5_000, request_log_pack: 200 };

const member = 'request_log_retention_days';

/**
 * Applies retention, oldest day first. The partitions of a day are dropped when no workspace needs its calls any longer
 * (decision 56): no row is read then, so time and memory do not depend on their number. Otherwise the calls of the
 * workspaces that do not need them are deleted in pieces, and `request_log_deleted` says which. `days`: for workspaces
 * without their own time. `onDeleted` is called after each day that lost something. Returns the days that were dropped.
 *
 * Throws Postgres's lock timeout (55P03) when another session reads the log for longer than 2 s, because writers would
 * wait behind the drop. What was deleted before stays deleted; call again later.
 */
export async function deleteOldCalls(
  db: Kysely<Database>,
  days: number,
  nowMs: number,
  onDeleted: (deleted: Deletion) => Promise<void> = () => Promise.resolve(),
): Promise<string[]> {
  if (!Number.isInteger(days) || days < 1) {
    throw new RangeError(`the request log must be kept for a whole number of days, at least 1, not ${days}`);
  }
  const first = keptFrom(shortest(await readRetention(db, member, days)), nowMs);
  const dropped: string[] = [];
  for (const { day } of await listLogDays(db)) {
    if (day >= first) continue;
    const what = { kind: 'request_log', before: `${nextDay(day)}T00:00:00.000Z` };
    const past = await dropOrChoose(db, day, days, nowMs);
    if (past === 'dropped') {
      dropped.push(day);
      await onDeleted({ ...what, unit: 'days', unknown: 1 });
      continue;
    }
    const workspaces = await deleteCalls(db, day, past);
    if (workspaces.size === 0) continue;
    await onDeleted({ ...what, unit: 'calls', workspaces });
    // Nothing is written to such a day any more, so its free space would not be used again.
    if (day < keptFrom(days, nowMs)) await shrink(db, day);
  }
  const [oldest] = await listLogDays(db);
  const kept = keptFrom(days, nowMs);
  await forgetProcesses(db, oldest !== undefined && oldest.day < kept ? oldest.day : kept);
  return dropped;
}

/** Drops a day if no workspace needs it. Otherwise returns the workspaces whose calls can be deleted. */
async function dropOrChoose(
  db: Kysely<Database>,
  day: string,
  days: number,
  nowMs: number,
): Promise<'dropped' | string[]> {
  return await deleteUnheld(db, async (tx) => {
    const retention = await readRetention(tx, member, days);
    const choose = (ids: Iterable<string>): string[] => [...ids].filter((id) => isPast(retention, id, day, nowMs));
    if (day >= keptFrom(days, nowMs)) return choose(retention.own.keys());
    if (await hasNeeded(tx, retention, day, nowMs)) return choose(await listWorkspaces(tx, day));
    await sql`set local lock_timeout = '2s'`.execute(tx);
    if (retention.own.size > 0) {
      // A late row of a workspace that keeps its calls for longer can have arrived. This keeps out the next one.
      await sql`lock table only request_log_row, only request_log_pack in access exclusive mode`.execute(tx);
      if (await hasNeeded(tx, retention, day, nowMs)) return [];
    }
    const partitions = sql.join(logTables.map((table) => sql.table(partitionName(day, table))));
    await sql`drop table if exists ${partitions}`.execute(tx);
    await tx.deleteFrom('request_log_deleted').where('recorded_on', '=', day).execute();
    return 'dropped';
  });
}

/** Whether a day has calls of a workspace that keeps them for longer than others, or is under legal hold. */
async function hasNeeded(tx: Kysely<Database>, retention: Retention, day: string, nowMs: number): Promise<boolean> {
  const needing = [...retention.own.keys()].filter((id) => !isPast(retention, id, day, nowMs));
  if (needing.length === 0) return false;
  const found = logTables.map(
    (table) => sql`exists (
      select from unnest(${needing}::text[]) as needing cross join lateral (
        select from ${sql.table(partitionName(day, table))} where workspace_id = needing limit 1) as call)`,
  );
  const { rows } = await sql<{ found: boolean }>`select ${sql.join(found, sql` or `)} as found`.execute(tx);
  return rows[0]?.found === true;
}

/** The workspaces with calls on a day. Reads one entry of the index for each. */
async function listWorkspaces(tx: Kysely<Database>, day: string): Promise<string[]> {
  const found = new Set<string>();
  for (const table of logTables) {
    const partition = sql.table(partitionName(day, table));
    const { rows } = await sql<{ id: string }>`
      with recursive present as (
        (select workspace_id as id from ${partition} order by 1 limit 1)
        union all
        select (select workspace_id from ${partition} where workspace_id > present.id order by 1 limit 1)
        from present where present.id is not null
      ) select id from present where id is not null`.execute(tx);
    for (const { id } of rows) found.add(id);
  }
  return [...found];
}

/** Deletes the calls of these workspaces of one day, in pieces. Returns how many of each. */
async function deleteCalls(
  db: Kysely<Database>,
  day: string,
  workspaces: readonly string[],
): Promise<Map<string, number>> {
  const deleted = new Map<string, number>();
  for (const table of workspaces.length === 0 ? [] : logTables) {
    for (let isWhole = false; !isWhole;) {
      const piece = await deletePiece(db, day, table, workspaces);
      for (const { id, calls } of piece) deleted.set(id, (deleted.get(id) ?? 0) + calls);
      isWhole = (piece[0]?.rows ?? 0) < deletedAtOnce[table];
    }
  }
  return deleted;
}

async function deletePiece(
  db: Kysely<Database>,
  day: string,
  table: LogTable,
  workspaces: readonly string[],
): Promise<{ id: string; calls: number; rows: number }[]> {
  const partition = sql.table(partitionName(day, table));
  const sequences: RawBuilder<unknown> = table === 'request_log_row' ? sql`array[sequence]` : sql`sequence`;
  const { rows } = await deleteUnheld(db, (tx) =>
    sql<{ id: string; calls: number; rows: number }>`
      with piece as (
        delete from ${partition} where ctid = any(array(
          select ctid from ${partition}
          where workspace_id = any(${workspaces}::text[]) and not ${isHeld('workspace_id')}
          limit ${deletedAtOnce[table]}))
        returning workspace_id, process_id, ${sequences} as sequences
      ), call as (
        select workspace_id, process_id, number from piece cross join lateral unnest(sequences) as number
      ), recorded as (
        insert into request_log_deleted (workspace_id, recorded_on, process_id, sequences)
        select workspace_id, ${day}::date, process_id, range_agg(int8range(number, number, '[]'))
        from call group by workspace_id, process_id
      )
      select workspace_id as id, count(*)::int as calls, (select count(*)::int from piece) as rows
      from call group by workspace_id`.execute(tx),
  );
  return rows;
}

/** A day that cannot be rewritten within this time stays as it is. */
const shrinkTimeout = '10s';

/** Gives the space of deleted calls back by writing what is left of a day again. Readers of that day wait. */
async function shrink(db: Kysely<Database>, day: string): Promise<void> {
  for (const table of logTables) {
    const name = partitionName(day, table);
    try {
      await db.transaction().execute(async (tx) => {
        await sql`set local lock_timeout = '2s'`.execute(tx);
        await sql`set local statement_timeout = ${sql.lit(shrinkTimeout)}`.execute(tx);
        await sql`cluster ${sql.table(name)} using ${sql.id(`${name}_pkey`)}`.execute(tx);
      });
    } catch (error) {
      if (!['55P03', '57014'].includes(getSqlState(error) ?? '')) throw error;
    }
  }
}

const dayMs = 86_400_000;

/**
 * Deletes the reports of processes about deleted days. A process whose last report is more than a day older is deleted
 * as well; the extra day is needed because the times of its rows come from its own clock.
 */
async function forgetProcesses(db: Kysely<Database>, keptFromDay: string): Promise<void> {
  await db.deleteFrom('request_log_day').where('recorded_on', '<', keptFromDay).execute();
  await db
    .deleteFrom('request_log_process')
    .where('heard_at', '<', new Date(Date.parse(keptFromDay) - dayMs))
    .execute();
}
