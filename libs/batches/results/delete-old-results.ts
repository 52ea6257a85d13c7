import { sql, type Kysely } from 'kysely';
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
import { forgetResultsPartition } from './results-bucket.ts';

const member = 'results_retention_days';

/** How many rows of results, or chunks, one transaction deletes. */
const resultsAtOnce = 1_000;
const chunksAtOnce = 10_000;

const hasEnded = sql`batch.status in ('completed', 'failed', 'cancelled', 'expired')`;

type Times = { days: number; nowMs: number };

/**
 * What to do with a day. `waits`: until all of its batches have ended. `past`: the workspaces that no longer need their
 * results. `lost`: how many batches of each workspace have lost their results.
 */
type Day = { state: 'dropped' | 'waits' | 'kept'; past: readonly string[]; lost: Map<string, number> };

/**
 * Applies retention to the results of batches and to their chunks; the lines stay in the files. The partition of a day is
 * dropped when all of its batches have ended and no workspace needs them any longer (decision 56). That costs the same for
 * a thousand rows and for a billion. If some workspaces keep their results for longer, those of the others are deleted in
 * pieces. `days`: for workspaces without their own time. `onDeleted` is called after each day that lost something, and for
 * the chunks. Returns the days that were dropped.
 */
export async function deleteOldResults(
  db: Kysely<Database>,
  times: Times,
  onDeleted: (deleted: Deletion) => Promise<void> = () => Promise.resolve(),
): Promise<string[]> {
  const first = keptFrom(shortest(await readRetention(db, member, times.days)), times.nowMs);
  const { rows } = await sql<{ day: string; partition: string }>`
    select to_char(to_date(right(relname, 8), 'YYYYMMDD'), 'YYYY-MM-DD') as day, relname as partition
    from pg_inherits join pg_class on pg_class.oid = inhrelid
    where inhparent = 'batch_result'::regclass order by 1`.execute(db);
  const dropped: string[] = [];
  const waiting: string[] = [];
  for (const { day, partition } of rows) {
    if (day >= first) continue;
    const { state, past, lost } = await dropOrChoose(db, day, partition, times);
    if (state === 'dropped') dropped.push(day);
    if (state === 'waits') waiting.push(day);
    const workspaces = state === 'kept' ? await deleteResults(db, day, partition, past) : lost;
    const before = new Date(Date.parse(day) + 86_400_000).toISOString();
    await onDeleted({ kind: 'batch_results', unit: 'batches', before, workspaces });
  }
  const before = new Date(times.nowMs - times.days * 86_400_000).toISOString();
  const chunks = await deleteOldChunks(db, times, waiting);
  await onDeleted({ kind: 'batch_chunks', unit: 'chunks', before, unknown: chunks });
  return dropped;
}

/** Drops a day if no workspace needs it. */
async function dropOrChoose(db: Kysely<Database>, day: string, partition: string, times: Times): Promise<Day> {
  const found = await deleteUnheld<Day>(db, async (tx) => {
    const retention = await readRetention(tx, member, times.days);
    const { rows } = await sql<{ id: string; isOpen: boolean }>`
      select workspace_id as id, bool_or(not ${hasEnded}) as "isOpen" from batch
      where ${createdOn(day)} group by 1`.execute(tx);
    const past = rows.filter(({ id }) => isPast(retention, id, day, times.nowMs)).map(({ id }) => id);
    if (past.length < rows.length) return { state: 'kept', past, lost: new Map() };
    if (rows.some(({ isOpen }) => isOpen)) return { state: 'waits', past: [], lost: new Map() };
    const counts = await sql<{ id: string; count: number }>`
      select workspace_id as id, count(*)::int as count from batch
      where ${createdOn(day)} and exists (
        select from ${sql.table(partition)} where bucket = ${day}::date and batch_id = batch.id)
      group by 1`.execute(tx);
    await sql`set local lock_timeout = '2s'`.execute(tx);
    await sql`drop table ${sql.table(partition)}`.execute(tx);
    return { state: 'dropped', past: [], lost: new Map(counts.rows.map(({ id, count }) => [id, count])) };
  });
  if (found.state === 'dropped') forgetResultsPartition(db, day);
  return found;
}

const createdOn = (day: string) => sql`
  batch.created_at >= ${day}::timestamp at time zone 'UTC'
  and batch.created_at < (${day}::timestamp + interval '1 day') at time zone 'UTC'`;

/** Deletes the results of ended batches of these workspaces, in pieces. Returns how many batches of each lost some. */
async function deleteResults(
  db: Kysely<Database>,
  day: string,
  partition: string,
  past: readonly string[],
): Promise<Map<string, number>> {
  const batches = new Map<string, Set<string>>();
  for (let isWhole = past.length === 0; !isWhole;) {
    const { rows } = await deleteUnheld(db, (tx) =>
      sql<{ id: string; batchId: string; count: number }>`
        with piece as (
          delete from ${sql.table(partition)} where ctid = any(array(
            select ctid from ${sql.table(partition)} where bucket = ${day}::date and batch_id = any(array(
              select id from batch where ${createdOn(day)} and ${hasEnded}
                and workspace_id = any(${past}::text[]) and not ${isHeld('batch.workspace_id')}))
            limit ${resultsAtOnce}))
          returning batch_id
        )
        select workspace_id as id, batch_id as "batchId", count(*)::int as count
        from piece join batch on batch.id = batch_id group by 1, 2 order by 1`.execute(tx),
    );
    for (const { id, batchId } of rows) batches.set(id, (batches.get(id) ?? new Set<string>()).add(batchId));
    isWhole = rows.reduce((sum, { count }) => sum + count, 0) < resultsAtOnce;
  }
  return new Map([...batches].map(([id, found]) => [id, found.size]));
}

/** Deletes the chunks of ended batches, except for days whose results wait. Returns their number. */
async function deleteOldChunks(db: Kysely<Database>, times: Times, waiting: readonly string[]): Promise<number> {
  for (let deleted = 0; ;) {
    const count = await deleteUnheld(db, async (tx) => {
      const own = toFirstDays(await readRetention(tx, member, times.days), times.nowMs);
      const { numAffectedRows = 0n } = await sql`
        delete from batch_chunk where ctid = any(array(
          select batch_chunk.ctid from batch_chunk join batch on batch.id = batch_chunk.batch_id
            left join unnest(${[...own.keys()]}::text[], ${[...own.values()]}::date[]) as own (workspace, kept_from)
              on own.workspace = batch.workspace_id
          where batch.created_at < coalesce(kept_from, ${keptFrom(times.days, times.nowMs)}::date)::timestamp at time zone 'UTC'
            and (batch.created_at at time zone 'UTC')::date <> all(${waiting}::date[]) and ${hasEnded}
          limit ${chunksAtOnce}
        ))`.execute(tx);
      return Number(numAffectedRows);
    });
    deleted += count;
    if (count < chunksAtOnce) return deleted;
  }
}

const toFirstDays = ({ own }: Retention, nowMs: number): Map<string, string> =>
  new Map([...own].map(([id, days]) => [id, keptFrom(days, nowMs) || '-infinity']));
