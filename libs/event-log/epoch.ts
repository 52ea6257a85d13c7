import { sql, type Kysely, type Transaction } from 'kysely';
import type { Database } from '#libs/database/schema.ts';

/** SQL for statements on `event`: the epoch that new events get. */
export const currentEpoch = sql<number>`(select max(epoch) from event_epoch)`;

/**
 * Raises the epoch when the log was restored into a cluster whose transaction ids are lower than those of its events,
 * so that new events are sorted after the old ones. Call it before a process appends anything. Returns the new epoch,
 * or null when there was no need for one. If several processes start at the same time, it is raised once.
 */
export async function raiseEpochAfterRestore(db: Kysely<Database>): Promise<number | null> {
  if (!(await isAheadOfCluster(db))) return null;
  return await withoutAppends(db, async (tx) => ((await isAheadOfCluster(tx)) ? await raiseEpoch(tx) : null));
}

/**
 * Raises the epoch because the log was restored, possibly in the cluster where it was written: events that were recorded
 * after the backup, and are lost, have other coordinates than the following ones. An epoch
 * that has only events of the stream `ownStream`, to which the operator's commands append, stays the current one, so that
 * a repeated call changes nothing. Returns the newest epoch, and whether it is a new one.
 */
export async function startEpoch(db: Kysely<Database>, ownStream = ''): Promise<{ epoch: number; isNew: boolean }> {
  return await withoutAppends(db, async (tx) => {
    const { rows } = await sql<{ epoch: number; used: boolean }>`
      select ${currentEpoch} as epoch, exists (
        select from event where epoch = ${currentEpoch} and stream_id <> ${ownStream}) as used`.execute(tx);
    const { epoch = 0, used = false } = rows[0] ?? {};
    return used ? { epoch: await raiseEpoch(tx), isNew: true } : { epoch, isNew: false };
  });
}

async function withoutAppends<Result>(
  db: Kysely<Database>,
  work: (tx: Transaction<Database>) => Promise<Result>,
): Promise<Result> {
  return await db.transaction().execute(async (tx) => {
    // Appends hold a weaker lock on this table until they commit. Once this lock is granted, no more events of the old
    // epoch can appear.
    await sql`lock table event_epoch in access exclusive mode`.execute(tx);
    return await work(tx);
  });
}

async function raiseEpoch(tx: Transaction<Database>): Promise<number> {
  const { epoch } = await tx
    .insertInto('event_epoch')
    .columns(['epoch', 'raised_at'])
    .expression(sql`select max(epoch) + 1, clock_timestamp() from event_epoch`)
    .returning('epoch')
    .executeTakeFirstOrThrow();
  return epoch;
}

/** Whether the newest epoch has an event with a transaction id that this cluster has not assigned yet. */
async function isAheadOfCluster(db: Kysely<Database>): Promise<boolean> {
  const { rows } = await sql<{ ahead: boolean }>`
    select transaction_id >= pg_snapshot_xmax(pg_current_snapshot()) as ahead from event
    where epoch = ${currentEpoch} order by transaction_id desc limit 1`.execute(db);
  return rows[0]?.ahead === true;
}
