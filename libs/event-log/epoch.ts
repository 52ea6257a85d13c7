import { sql, type Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';

/** The epoch that new events get. In SQL, for statements on `event`. */
export const currentEpoch = sql<number>`(select max(epoch) from event_epoch)`;

/**
 * Raises the epoch when the log was restored into a cluster whose transaction ids are lower than those of its events, so
 * that new events come after them. To be called before a process appends anything. Returns the new epoch, or null when
 * there was no need to. Processes that start at the same time raise it once.
 */
export async function raiseEpochAfterRestore(db: Kysely<Database>): Promise<number | null> {
  if (!(await isAheadOfCluster(db))) return null;
  return await db.transaction().execute(async (tx) => {
    // Appends hold a weaker lock on this table until they end: when we have ours, no event of the old epoch is still to come.
    await sql`lock table event_epoch in access exclusive mode`.execute(tx);
    if (!(await isAheadOfCluster(tx))) return null;
    // Releases that do not know epochs would append to the first one.
    await sql`
      insert into installation values ('required_migration', '0013_event_epochs')
      on conflict (name) do update set value = greatest(installation.value, excluded.value)`.execute(tx);
    const { rows } = await sql<{ epoch: number }>`
      insert into event_epoch select max(epoch) + 1, clock_timestamp() from event_epoch returning epoch`.execute(tx);
    return rows[0]?.epoch ?? null;
  });
}

/** Whether the newest epoch has an event of a transaction id that this cluster has not given out yet. */
async function isAheadOfCluster(db: Kysely<Database>): Promise<boolean> {
  const { rows } = await sql<{ ahead: boolean }>`
    select transaction_id >= pg_snapshot_xmax(pg_current_snapshot()) as ahead from event
    where epoch = ${currentEpoch} order by transaction_id desc limit 1`.execute(db);
  return rows[0]?.ahead === true;
}
