import { sql, type Kysely } from 'kysely';
import { readClock, type DatabaseClock } from '#libs/database/database-clock.ts';
import type { Database } from '#libs/database/schema.ts';
import { byWorker } from '#libs/event-log/by-worker.ts';
import type { EventLog } from '#libs/event-log/event-log.ts';
import { createBackgroundLoop, type BackgroundLoop } from '#libs/kernel/background-loop.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import { cancelGraceMs } from '../batch/batch.ts';
import { batchModel, type BatchRow } from '../batch/batch-model.ts';
import { wakeDue } from './chunk.ts';
import { closeIfOver, type FollowDeps } from './follow-status.ts';
import { deactivateIdle } from './turns.ts';

/** The maximum delay of a deadline, of the ten minutes after a cancel, and of work that is due. */
const everyMs = 1_000;

type Deps = FollowDeps & {
  db: Kysely<Database>;
  eventLog: EventLog;
  clock: Pick<DatabaseClock, 'set' | 'jumpedAhead'>;
  /** Called when work has become ready. */
  onReady: () => void;
  logger: Logger;
};

/** Closes overdue batches, and makes work ready that is due. Every worker runs it; what two of them do is done once. */
export function createHousekeeping(deps: Deps): BackgroundLoop[] {
  const { db, logger } = deps;
  const order = async (): Promise<void> => {
    await deactivateIdle(db);
    if (await wakeDue(db, deps.queue)) deps.onReady();
  };
  return [
    createBackgroundLoop({
      name: 'closing of overdue batches',
      periodMs: everyMs,
      run: () => closeOverdue(deps),
      logger,
    }),
    createBackgroundLoop({ name: 'work that is due', periodMs: everyMs, run: order, logger }),
  ];
}

/** The maximum of batches of each kind found in one pass. */
const foundMax = 100;

/**
 * Closes batches whose deadline has passed, whose grace period after a cancel is over, or that were cancelled and have
 * lost their last chunk with its process, by the database's clock. Does nothing while that clock could be wrong. Returns
 * how many batches were found.
 *
 * @testOnly
 */
export async function closeOverdue(
  deps: Pick<Deps, 'db' | 'eventLog' | 'clock' | 'queue' | 'releaseTarget'>,
): Promise<number> {
  const { db, clock, eventLog } = deps;
  await readClock(db, clock);
  if (clock.jumpedAhead()) return 0;
  // Without the subquery, the clock would be read for each row and no index could be used.
  const { rows } = await sql<{ id: string; workspace_id: string }>`
    with clock as materialized (select clock_timestamp() as now)
    (select id, workspace_id from batch
     where status in ('validating', 'in_progress', 'cancelling') and expires_at <= (select now from clock)
       and (status <> 'cancelling' or in_progress_at is null)
     order by expires_at limit ${foundMax})
    union all
    (select id, workspace_id from batch
     where status = 'cancelling' and (cancelling_at <= (select now from clock) - ${`${cancelGraceMs} ms`}::interval
       or in_progress_at is not null and not exists (
         select from batch_chunk where batch_id = batch.id and state <> 'done'))
     order by cancelling_at limit ${foundMax})`.execute(db);
  for (const { id, workspace_id: workspaceId } of rows) {
    await eventLog.transact({ workspaceId, streams: [id], model: batchModel, metadata: byWorker }, async (unit) => {
      const batch = (await unit.load(batchModel, id)) as BatchRow;
      await closeIfOver(deps, unit, batch);
    });
  }
  return rows.length;
}
