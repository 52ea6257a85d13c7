import type { Kysely } from 'kysely';
import type { BatchRow } from '#libs/batches/batch/batch-model.ts';
import type { FirstChunk } from '#libs/batches/batch/validate-batch.ts';
import { claimChunk } from '#libs/batches/chunks/chunk.ts';
import { Lane } from '#libs/batches/chunks/lane.ts';
import type { ChunkRunner, ClaimedChunk } from '#libs/batches/chunks/run-chunk.ts';
import { chunkKey, createStrayWork } from '#libs/batches/chunks/stray-work.ts';
import { filesTickets, linesTickets } from '#libs/batches/chunks/tickets.ts';
import { claimFileTurn } from '#libs/batches/chunks/turns.ts';
import { createPermitPool } from '#libs/batches/lines/permit-pool.ts';
import type { Database } from '#libs/database/schema.ts';
import type { Part } from '#libs/kernel/lifecycle.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import type { JobQueue } from '#libs/queue/job-queue.ts';
import type { Holder, ProcessLease } from '#libs/queue/process-lease.ts';
import { chunksPerBatchMax, type WorkerConfig } from './config.ts';
import type { BatchFiles, ClaimedFiles } from './jobs/batch-files.ts';

/** Small files mostly wait for the database. Large ones take minutes, and have their own slots. */
const fileSlots = { small: 12, large: 2 };

type Deps = { db: Kysely<Database>; lease: ProcessLease; stopping: AbortSignal; logger: Logger };

/** The slots of a worker, and what fills them. `stopping` ends the waits of tickets. */
export function composeLanes(
  config: WorkerConfig,
  { db, lease, stopping, logger }: Deps,
  run: { lines: ChunkRunner; files: BatchFiles },
) {
  const ofBatch = chunksPerBatchMax(config);
  const lines = new Lane<ClaimedChunk>({
    name: 'lines',
    slots: { ofAll: Math.max(ofBatch, config.SLUICE_CHUNKS_TOTAL), ofBatch },
    lease,
    async claim(holder, limits) {
      const { claimed: chunk, ...found } = await claimChunk(db, holder, limits);
      if (chunk === null || stray.wasReleased(chunkKey(chunk))) return { ...found, claimed: null };
      const { batch_id: batchId, workspace_id: workspaceId } = chunk;
      return { ...found, claimed: { key: chunkKey(chunk), batchId, workspaceId, chunk } };
    },
    run: (held) => run.lines.run(held),
    logger,
  });
  const filesLane = (name: 'small_files' | 'large_files', atOnce: number): Lane<ClaimedFiles> => {
    // Small batches are also finished by the process that settled their last line. They need no slot.
    const adopted = createPermitPool({ callsMax: atOnce, bytesMax: Number.POSITIVE_INFINITY });
    return new Lane<ClaimedFiles>({
      name,
      slots: { ofAll: atOnce, ofBatch: 1 },
      lease,
      async claim(holder, limits) {
        const { claimed: turn, ...found } = await claimFileTurn(db, name, holder, limits);
        return { ...found, claimed: turn && { ...turn, key: turn.batchId } };
      },
      async run(held) {
        if (held.work.batch === undefined) return await run.files.run(held);
        await adopted.acquire(0);
        try {
          await run.files.run(held);
        } finally {
          adopted.release(1, 0);
        }
      },
      logger,
    });
  };
  const [small, large] = [filesLane('small_files', fileSlots.small), filesLane('large_files', fileSlots.large)];
  const all = [lines, small, large];
  const wake = (): void => {
    for (const lane of all) void lane.wake();
  };
  const stray = createStrayWork({
    db,
    lease,
    running: () => all.flatMap((lane) => [...lane.keys()]),
    hasRun: (key) => run.lines.hasRun(key),
    onReleased: wake,
    logger,
  });
  const slots: Part = {
    name: 'batch work',
    start() {
      for (const lane of all) lane.start();
    },
    async stop() {
      await Promise.all(all.map((lane) => lane.stop(config.SLUICE_DRAIN + 5_000)));
    },
  };
  return {
    parts: [stray, slots],
    wake,
    isCrowded: () => lines.isCrowded(),
    lines: {
      wake: () => void lines.wake(),
      awaitFirst: (batchId: string) => lines.awaitFirst(batchId),
      /** A process runs the first chunk of a batch that it has validated, if no other work waits for the slot. */
      firstHolder: () => (lines.isIdle() ? lease.holder() : null),
      runFirst({ batch, blob, chunk, holder, left }: FirstChunk, weight: number): void {
        const claimed = { key: chunkKey(chunk), batchId: batch.id, workspaceId: batch.workspace_id, chunk };
        void lines.adopt({ ...claimed, input: { batch, blob } }, holder, { weight, left, isTail: false });
      },
    },
    /** Writes the files of a small batch that this process holds. */
    finish: async (batch: BatchRow, holder: Holder): Promise<void> => {
      const { id: batchId, workspace_id: workspaceId } = batch;
      const turn = { batchId, workspaceId, work: 'finalise', failures: 0, weight: 1 } as const;
      await small.adopt({ ...turn, key: batchId, batch }, holder);
    },
    /** Looks for work when a ticket says so. While all slots are taken, tickets wait. */
    async workOnTickets(queue: JobQueue): Promise<void> {
      await queue.work(linesTickets, { concurrency: 1, claimedAtOnce: 8 }, async ({ signal }) => {
        await lines.wake();
        await lines.whenFree(AbortSignal.any([signal, stopping]));
      });
      await queue.work(filesTickets, { concurrency: 1, claimedAtOnce: 8 }, async ({ payload }) => {
        await (payload.lane === 'small_files' ? small : large).wake();
      });
    },
  };
}
