import { listActiveCredentials } from '#libs/resources/virtual-keys/virtual-keys.ts';
import { isTerminal } from '#libs/batches/batch.ts';
import type { BatchRow } from '#libs/batches/batch-model.ts';
import type { Held } from '#libs/batches/chunks/lane.ts';
import { endTurn, releaseTurn, type FileTurn } from '#libs/batches/chunks/turns.ts';
import { retryDuringOutage } from '#libs/database/retry-during-outage.ts';
import { runAndReport } from '#libs/queue/ended-job.ts';
import type { BatchWatch } from '#libs/batches/batch-watch.ts';
import { finaliseBatch } from '#libs/batches/results/finalise-batch.ts';
import { validateBatch } from '#libs/batches/validate-batch.ts';
import type { UnitOfWork } from '#libs/event-log/event-log.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import type { BatchFileValidator } from '#libs/validation/batch-file-validator.ts';
import type { Platform } from '../../platform/platform.ts';
import type { WorkerConfig } from '../config.ts';

type Deps = {
  config: WorkerConfig;
  platform: Platform;
  validator: BatchFileValidator;
  watch: BatchWatch;
  inputBlob: (batch: BatchRow) => Promise<string>;
  releaseTarget: (unit: UnitOfWork, batch: BatchRow) => Promise<void>;
  /** Called when a batch has chunks that are ready. */
  onValidated: () => void;
  logger: Logger;
};

/** A claimed turn; its key is the ID of the batch. `isAdopted`: this process held it when it came up. */
export type ClaimedFiles = FileTurn & { key: string; isAdopted?: true };

/** Runs claimed validations and finalises. What fails is released and tried again after a pause. Never rejects. */
export function createBatchFileJobs(
  deps: Deps,
  stopping: AbortSignal,
): (held: Pick<Held<ClaimedFiles>, 'work' | 'holder'>) => Promise<void> {
  const { config, validator, watch, inputBlob, releaseTarget, logger } = deps;
  const { db, eventLog, queue, blobs, files, access, onJobEnded } = deps.platform;

  async function validate({ id }: BatchRow, signal: AbortSignal): Promise<BatchRow | undefined> {
    const batch = await validateBatch(
      {
        db,
        eventLog,
        blobs,
        validator,
        watch,
        queue,
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
      id,
      signal,
    );
    if (batch?.status === 'in_progress') deps.onValidated();
    return batch;
  }

  async function finalise(batch: BatchRow, signal: AbortSignal, failures: number): Promise<BatchRow> {
    const after = await finaliseBatch(
      {
        db,
        eventLog,
        blobs,
        inputBlob,
        queue,
        releaseTarget,
        logger,
        recordFile: async (unit, { id, ...file }) => {
          await files.record(unit, id, { purpose: 'batch_output', ...file });
        },
      },
      batch,
      signal,
      failures,
    );
    const { id, status, completed, failed } = after;
    if (isTerminal(status)) logger.info({ batch_id: id, status, completed, failed }, 'batch ended');
    return after;
  }

  async function work(turn: ClaimedFiles, signal: AbortSignal, note: (outcome: string) => void): Promise<void> {
    const { batchId } = turn;
    const batch = await db.selectFrom('batch').selectAll().where('id', '=', batchId).executeTakeFirst();
    const after =
      batch &&
      (turn.work === 'validate' ? await validate(batch, signal) : await finalise(batch, signal, turn.failures));
    if (after !== undefined) note(after.status);
    // A turn whose batch has ended or does not exist: the two were restored from different moments.
    if (after === undefined || isTerminal(after.status)) await endTurn(db, batchId);
  }

  async function workOrRelease(
    { work: turn, holder }: Pick<Held<ClaimedFiles>, 'work' | 'holder'>,
    note: (outcome: string) => void,
  ) {
    const signal = turn.isAdopted === true ? holder.lost : AbortSignal.any([stopping, holder.lost]);
    const retrying = {
      delayMs: outageRetryMs,
      signal,
      onRetry: (error: unknown) => logger.warn({ err: error }, 'batch is waiting for the database'),
    };
    try {
      await retryDuringOutage(() => work(turn, signal, note), retrying);
    } catch (error) {
      const { batchId: batch_id, work: what, failures } = turn;
      if (!signal.aborted) logger.warn({ err: error, batch_id, failures }, `${what} failed and will be retried`);
      await releaseTurn(db, turn, holder.id, !signal.aborted);
      throw error;
    }
  }

  return async (held) => {
    const { batchId, work: what, failures } = held.work;
    const job = {
      queue: `batch-${what}`,
      id: batchId,
      retryCount: failures,
      payload: { batch_id: batchId },
      waitedMs: null,
    };
    try {
      if (onJobEnded === undefined) await workOrRelease(held, () => {});
      else await runAndReport(onJobEnded, job, (note) => workOrRelease(held, note));
    } catch {
      // It has been logged. What could not be released is found by stray-work.ts.
    }
  };
}

const outageRetryMs = 500;
