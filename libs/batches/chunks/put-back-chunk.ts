import type { EventLog } from '#libs/event-log/event-log.ts';
import type { JobQueue } from '#libs/queue/job-queue.ts';
import { batchModel, type BatchRow } from '../batch-model.ts';
import { chunkQueue, type ChunkPayload } from './batch-queues.ts';

/**
 * Makes a claimed chunk of a paused batch pending again and completes its job. No job waits while a batch is paused;
 * the dispatcher enqueues the chunk after `batch.resumed`. `countsClaim`: the next claim counts as one after a crash if
 * this one did. Returns false, and changes nothing, when the batch is no longer in progress. The caller must close the
 * chunk in that case.
 */
export async function putBackChunk(
  deps: { eventLog: EventLog; queue: JobQueue },
  job: { id: string; retryCount: number; payload: ChunkPayload },
  batch: Pick<BatchRow, 'id' | 'workspace_id'>,
  { countsClaim }: { countsClaim: boolean },
): Promise<boolean> {
  const metadata = { actor: { type: 'system' as const, id: 'worker' }, causation_id: job.id };
  const command = { workspaceId: batch.workspace_id, streams: [batch.id], metadata };
  // Under the lock of the batch's stream: a cancel came before and is seen here, or it comes after and drops the chunk.
  return await deps.eventLog.transact(command, async (unit) => {
    const state = (await unit.load(batchModel, batch.id)) as BatchRow;
    if (state.status !== 'in_progress') return false;
    if (!(await deps.queue.complete(unit.tx, chunkQueue, job))) return true;
    await unit.tx
      .updateTable('batch_chunk')
      .set((of) => ({
        state: 'pending',
        generation: of('generation', '+', 1),
        ...(countsClaim ? {} : { handed_back: true }),
      }))
      .where('batch_id', '=', batch.id)
      .where('chunk', '=', job.payload.chunk)
      .where('state', '=', 'enqueued')
      .execute();
    return true;
  });
}
