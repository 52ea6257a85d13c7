import type { UnitOfWork } from '#libs/event-log/event-log.ts';
import type { JobQueue } from '#libs/queue/job-queue.ts';
import { decideBatch, isTerminal, type BatchEvent } from '../batch/batch.ts';
import { batchModel, type BatchRow } from '../batch/batch-model.ts';
import { countOpenChunks, dropChunks, endBatchWork } from './chunk.ts';
import { sendTickets } from './tickets.ts';
import { activate, pauseTurn, turnToClose, turnToFinalise } from './turns.ts';

export type FollowDeps = {
  queue: JobQueue;
  /** Runs when the batch ends. Deletes the secret that only this batch used. */
  releaseTarget: (unit: UnitOfWork, batch: BatchRow) => Promise<void>;
};

/**
 * Appends events of a batch, and changes its turn and its chunks as its new status requires, in the same transaction.
 * `holder`: the process that writes the files at once if the batch becomes `finalizing`; null: any.
 */
export async function appendAndFollow(
  { queue, releaseTarget }: FollowDeps,
  unit: UnitOfWork,
  before: BatchRow,
  events: readonly BatchEvent[],
  holder: string | null = null,
): Promise<BatchRow> {
  const after = await unit.append(batchModel, before.id, events);
  if (after.status === before.status) {
    const [wasPaused, isPaused] = [before.paused_at !== null, after.paused_at !== null];
    if (wasPaused !== isPaused) await pauseTurn(unit.tx, after, isPaused);
    if (wasPaused && !isPaused && after.status === 'in_progress')
      await sendTickets(queue, unit.tx, 'lines', after.chunk_count);
    return after;
  }
  if (isTerminal(after.status)) {
    await endBatchWork(unit.tx, after.id);
    await releaseTarget(unit, after);
  } else if (after.status === 'cancelling') {
    await turnToClose(unit.tx, after.id);
    await dropChunks(unit.tx, after.id);
  } else if (after.status === 'finalizing') {
    const lane = await turnToFinalise(unit.tx, after, holder);
    await dropChunks(unit.tx, after.id);
    if (lane === null) return after;
    await activate(unit.tx, lane, after.workspace_id);
    await sendTickets(queue, unit.tx, lane, 1);
  }
  return after;
}

/**
 * Makes a batch `finalizing`, or ends it, when its deadline has passed, when it was cancelled and no chunk is open any
 * more, or ten minutes after the cancel.
 */
export async function closeIfOver(deps: FollowDeps, unit: UnitOfWork, batch: BatchRow): Promise<BatchRow> {
  const openChunks = await countOpenChunks(unit.tx, batch);
  return await appendAndFollow(deps, unit, batch, decideBatch(batch, { type: 'close', openChunks }, unit.now));
}
