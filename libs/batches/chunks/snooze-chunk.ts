import { sql, type Kysely, type Transaction } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import { asSystem } from '#libs/database/workspace-binding.ts';
import type { EventLog } from '#libs/event-log/event-log.ts';
import { snoozedPriority } from '#libs/queue/group-worker.ts';
import type { JobQueue } from '#libs/queue/job-queue.ts';
import { decideBatch } from '../batch.ts';
import { batchModel, type BatchRow } from '../batch-model.ts';
import { chunkQueue, type ChunkPayload } from './batch-queues.ts';
import { chunkJobId } from './dispatch-chunks.ts';
import { countUnsettled } from '../results/settle-group.ts';

/**
 * Snoozes a claimed chunk: completes its job and enqueues a new one, with a new generation, that is due in `delayMs` by the
 * database's clock. The next claim does not count as a redelivery after a crash. Does nothing when the claim was lost.
 */
export async function snoozeChunk(
  deps: { eventLog: EventLog; queue: JobQueue },
  job: { id: string; retryCount: number; payload: ChunkPayload },
  batch: Pick<BatchRow, 'id' | 'workspace_id'>,
  delayMs: number,
): Promise<void> {
  const metadata = { actor: { type: 'system' as const, id: 'worker' }, causation_id: job.id };
  const command = { workspaceId: batch.workspace_id, streams: [batch.id], metadata };
  // Under the lock of the batch's stream: a cancel either came before and is seen here, or it comes after and finds the
  // new job.
  await deps.eventLog.transact(command, async (unit) => {
    const state = (await unit.load(batchModel, batch.id)) as BatchRow;
    if (!(await deps.queue.complete(unit.tx, chunkQueue, job))) return;
    const { chunk } = job.payload;
    const enqueued = await unit.tx
      .updateTable('batch_chunk')
      .set((of) => ({ generation: of('generation', '+', 1), handed_back: true }))
      .where('batch_id', '=', batch.id)
      .where('chunk', '=', chunk)
      .where('state', '=', 'enqueued')
      .returning('generation')
      .executeTakeFirst();
    if (!enqueued) return;
    const { generation } = enqueued;
    const id = chunkJobId(batch.id, chunk, generation);
    const startAfter = new Date(unit.now.getTime() + delayMs);
    const unsettled = await countUnsettled(unit.tx, state, chunk);
    const snooze = { type: 'snooze_chunk' as const, chunk, unsettled, resumeAt: startAfter };
    await unit.append(batchModel, batch.id, decideBatch(state, snooze, unit.now));
    const later = state.status === 'in_progress' ? { startAfter, priority: snoozedPriority } : {};
    const options = { id, group: batch.id, ...later };
    await deps.queue.enqueue(unit.tx, chunkQueue, { batch_id: batch.id, chunk, generation }, options);
  });
}

/** Makes the snoozed chunks of some workspaces due now, because some of their credentials have changed. */
export async function wakeWorkspaceChunks(db: Kysely<Database>, workspaceIds: readonly string[]): Promise<void> {
  await sql`
    update pgboss.job set start_after = now()
    where name = ${chunkQueue.name} and state < 'active' and priority = ${snoozedPriority} and start_after > now()
      and group_id in (
        select id from batch where workspace_id = any(${workspaceIds}::text[]) and status = 'in_progress'
      )`.execute(db);
}

/** Makes the snoozed chunks of a batch due now, with the priority of any other. For a batch that was cancelled. */
export async function wakeSnoozedChunks(tx: Transaction<Database>, batchId: string): Promise<void> {
  const woken = sql`
    update pgboss.job set start_after = least(start_after, now()), priority = 0
    where name = ${chunkQueue.name} and state < 'active' and group_id = ${batchId} and priority = ${snoozedPriority}`;
  await asSystem(() => woken.execute(tx));
}
