import type { Transaction } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import type { EventLog } from '#libs/event-log/event-log.ts';
import type { JobQueue } from '#libs/queue/job-queue.ts';
import { decideBatch } from './batch.ts';
import { batchModel, type BatchRow } from './batch-model.ts';
import { closeQueue, finaliseQueue } from './batch-queues.ts';
import { countOpenChunks } from './settle-results.ts';

/**
 * The job of queue `batch-close`: ends the taking of results when the deadline has passed, when a cancelled batch has
 * drained, or ten minutes after the cancel. Comes back by itself while there is something to wait for.
 */
export async function closeBatch(
  deps: { eventLog: EventLog; queue: JobQueue },
  batch: { id: string; workspaceId: string },
  causationId: string,
): Promise<BatchRow | undefined> {
  const metadata = { actor: { type: 'system' as const, id: 'worker' }, causation_id: causationId };
  return await deps.eventLog.transact(
    { workspaceId: batch.workspaceId, streams: [batch.id], metadata },
    async (unit) => {
      const before = await unit.load(batchModel, batch.id);
      if (!before) return undefined;
      const openChunks = await countOpenChunks(unit.tx, batch.id);
      const events = decideBatch(before, { type: 'close', openChunks }, unit.now);
      if (events.length === 0) {
        // A deadline that was set by another clock, or a job that ran a moment early: ask again when it is due.
        const due = before.status === 'in_progress' || before.status === 'validating' ? before.expires_at : null;
        if (due && due > unit.now)
          await deps.queue.enqueue(unit.tx, closeQueue, { batch_id: batch.id }, { startAfter: due });
        return before;
      }
      const after = await unit.append(batchModel, batch.id, events);
      await dropPendingChunks(unit.tx, batch.id);
      if (after.status === 'finalizing') await deps.queue.enqueue(unit.tx, finaliseQueue, { batch_id: batch.id });
      return after;
    },
  );
}

/** Chunks that no worker has yet will not be started any more. */
export async function dropPendingChunks(tx: Transaction<Database>, batchId: string): Promise<void> {
  await tx
    .updateTable('batch_chunk')
    .set({ state: 'done' })
    .where('batch_id', '=', batchId)
    .where('state', '=', 'pending')
    .execute();
}
