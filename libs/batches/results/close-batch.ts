import type { Kysely, Transaction } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import type { EventLog, UnitOfWork } from '#libs/event-log/event-log.ts';
import type { JobQueue } from '#libs/queue/job-queue.ts';
import { decideBatch, isTerminal } from '../batch.ts';
import { batchModel, type BatchRow } from '../batch-model.ts';
import { enqueueFinalise } from './finish-small-batch.ts';
import { countOpenChunks } from './settle-group.ts';

/**
 * The job of queue `batch-close`: makes a batch `finalizing` when its deadline has passed, when it was cancelled and no
 * chunk is open any more, or ten minutes after the cancel. If it is too early, housekeeping enqueues the job again.
 */
export async function closeBatch(
  deps: {
    db: Kysely<Database>;
    eventLog: EventLog;
    queue: JobQueue;
    releaseTarget: (unit: UnitOfWork, batch: BatchRow) => Promise<void>;
  },
  batchId: string,
  causationId: string,
): Promise<void> {
  const { db, eventLog, queue } = deps;
  const known = await db
    .selectFrom('batch')
    .select(['workspace_id', 'status'])
    .where('id', '=', batchId)
    .executeTakeFirst();
  if (!known || isTerminal(known.status)) return;
  const metadata = { actor: { type: 'system' as const, id: 'worker' }, causation_id: causationId };
  await eventLog.transact({ workspaceId: known.workspace_id, streams: [batchId], metadata }, async (unit) => {
    const before = (await unit.load(batchModel, batchId)) as BatchRow;
    const openChunks = await countOpenChunks(unit.tx, batchId);
    const events = decideBatch(before, { type: 'close', openChunks }, unit.now);
    if (events.length === 0) return;
    const after = await unit.append(batchModel, batchId, events);
    await dropPendingChunks(unit.tx, batchId);
    if (after.status === 'finalizing') {
      await enqueueFinalise({ queue, tx: unit.tx, now: unit.now }, after, { finishesHere: false });
    }
    if (isTerminal(after.status)) await deps.releaseTarget(unit, after);
  });
}

/** Marks the pending chunks of a batch as done, so that they are never started. */
export async function dropPendingChunks(tx: Transaction<Database>, batchId: string): Promise<void> {
  await tx
    .updateTable('batch_chunk')
    .set({ state: 'done' })
    .where('batch_id', '=', batchId)
    .where('state', '=', 'pending')
    .execute();
}
