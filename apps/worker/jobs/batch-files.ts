import { listActiveCredentials } from '#libs/resources/virtual-keys/virtual-keys.ts';
import { isTerminal } from '#libs/batches/batch.ts';
import type { BatchRow } from '#libs/batches/batch-model.ts';
import {
  finaliseQueue,
  smallBatchPriority,
  validateQueue,
  type BatchPayload,
} from '#libs/batches/chunks/batch-queues.ts';
import type { BatchWatch } from '#libs/batches/batch-watch.ts';
import { finaliseBatch } from '#libs/batches/results/finalise-batch.ts';
import { validateBatch } from '#libs/batches/validate-batch.ts';
import type { BatchStatus } from '#libs/database/schema.ts';
import type { UnitOfWork } from '#libs/event-log/event-log.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import type { QueueDefinition } from '#libs/queue/queue-definition.ts';
import type { BatchFileValidator } from '#libs/validation/batch-file-validator.ts';
import type { Platform } from '../../platform/platform.ts';
import type { WorkerConfig } from '../config.ts';

// How many input files are validated, and how many batches are finalised, in parallel. Those with millions of lines
// take minutes, so small ones have separate slots. Small ones mostly wait for the database, so several of them share
// the statements that claim and complete their jobs.
const lanes = [
  { concurrency: 2, priorities: { maxPriority: smallBatchPriority - 1 } },
  { concurrency: 3, claimedAtOnce: 4, priorities: { minPriority: smallBatchPriority } },
];

type Deps = {
  config: WorkerConfig;
  platform: Platform;
  validator: BatchFileValidator;
  watch: BatchWatch;
  inputBlob: (batch: BatchRow) => Promise<string>;
  releaseTarget: (unit: UnitOfWork, batch: BatchRow) => Promise<void>;
  /** Called when a batch has chunks to enqueue. */
  onValidated: () => void;
  logger: Logger;
};

export type BatchFileJobs = {
  /**
   * Writes the files of a `finalizing` batch and ends it. Has no effect on a batch in any other status. Returns its
   * status.
   */
  finalise(batch: BatchRow, signal: AbortSignal, retries?: number): Promise<BatchStatus>;
  /** Starts to work on the queues. `stopping` aborts the running jobs. */
  work(stopping: AbortSignal): Promise<void>;
};

/** The jobs that validate a batch's input file and write its output and error files. */
export function createBatchFileJobs(deps: Deps): BatchFileJobs {
  const { config, validator, watch, inputBlob, releaseTarget, logger } = deps;
  const { db, eventLog, queue, blobs, files, access } = deps.platform;

  async function validate(batchId: string, signal: AbortSignal): Promise<BatchStatus | undefined> {
    const batch = await validateBatch(
      {
        db,
        eventLog,
        blobs,
        validator,
        watch,
        releaseTarget,
        prompts: (workspaceId) => access.prompts.known(workspaceId),
        async configPrompts({ workspace_id: workspaceId, target }) {
          if (!('caller' in target)) return [];
          const { plan } = await access.batchTargets.planOf(workspaceId, target);
          return plan.leaves.flatMap(({ prompt }) => prompt?.name ?? []);
        },
        pinPrompts: (workspaceId, names, param) => access.prompts.pin(workspaceId, names, param),
        virtualKeys: (workspaceId) => listActiveCredentials(db, workspaceId),
        logger,
        findInput: async (workspaceId, fileId) => {
          try {
            return await files.retrieve(workspaceId, fileId);
          } catch (error) {
            if (error instanceof GatewayError && error.kind === 'not_found') return undefined;
            throw error;
          }
        },
        limits: {
          linesMax: config.SLUICE_BATCH_LINES_MAX ?? null,
          linesPerChunk: config.SLUICE_CHUNK_LINES,
          chunkBytesMax: config.SLUICE_CHUNK_BYTES,
        },
        workspaceLimits: {
          openBatchesMax: config.SLUICE_OPEN_BATCHES_MAX,
          queuedLinesMax: config.SLUICE_QUEUED_LINES_MAX,
        },
      },
      batchId,
      signal,
    );
    if (batch?.status === 'in_progress') deps.onValidated();
    return batch?.status;
  }

  async function finalise(batch: BatchRow, signal: AbortSignal, retries = 0): Promise<BatchStatus> {
    const after = await finaliseBatch(
      {
        db,
        eventLog,
        blobs,
        inputBlob,
        releaseTarget,
        logger,
        recordFile: async (unit, { id, ...file }) => {
          await files.record(unit, id, { purpose: 'batch_output', ...file });
        },
      },
      batch,
      signal,
      retries,
    );
    const { id, status, completed, failed } = after;
    if (isTerminal(status)) logger.info({ batch_id: id, status, completed, failed }, 'batch ended');
    return status;
  }

  return {
    finalise,
    async work(stopping) {
      const workOn = async (
        jobs: QueueDefinition<BatchPayload>,
        handler: (batchId: string, signal: AbortSignal, retries: number) => Promise<BatchStatus | undefined>,
      ): Promise<void> => {
        for (const lane of lanes) {
          await queue.work(jobs, { ...lane, retryOutages: true }, async (job) => {
            const status = await handler(job.payload.batch_id, AbortSignal.any([job.signal, stopping]), job.retryCount);
            if (status !== undefined) job.note?.(status);
          });
        }
      };
      await workOn(validateQueue, validate);
      await workOn(finaliseQueue, async (batchId, signal, retries) => {
        const batch = await db.selectFrom('batch').selectAll().where('id', '=', batchId).executeTakeFirst();
        return batch && (await finalise(batch, signal, retries));
      });
    },
  };
}
