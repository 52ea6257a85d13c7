import { readPublicNames } from '#libs/credentials/configs/public-models.ts';
import { batchCaller } from '../batch-caller.ts';
import { listActiveCredentials } from '#libs/resources/virtual-keys/virtual-keys.ts';
import { isTerminal } from '#libs/batches/batch/batch.ts';
import type { BatchRow } from '#libs/batches/batch/batch-model.ts';
import type { Held } from '#libs/batches/chunks/lane.ts';
import type { Holder } from '#libs/queue/process-lease.ts';
import { endTurn, releaseTurn, type FileTurn } from '#libs/batches/chunks/turns.ts';
import { retryDuringOutage } from '#libs/database/retry-during-outage.ts';
import { runAndReport } from '#libs/queue/ended-job.ts';
import type { BatchWatch } from '#libs/batches/batch/batch-watch.ts';
import { finaliseBatch } from '#libs/batches/results/finalise-batch.ts';
import { validateBatch, type FirstChunk } from '#libs/batches/batch/validate-batch.ts';
import type { UnitOfWork } from '#libs/event-log/event-log.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import type { OutputChecker } from '#libs/validation/outputs/output-checker.ts';
import type { BatchFileValidator } from '#libs/validation/batch-file-validator.ts';
import type { Platform } from '../../platform/platform.ts';
import type { WorkerConfig } from '../config.ts';

type Deps = {
  config: WorkerConfig;
  platform: Platform;
  validator: BatchFileValidator;
  outputs: OutputChecker;
  watch: BatchWatch;
  inputBlob: (batch: BatchRow) => Promise<string>;
  releaseTarget: (unit: UnitOfWork, batch: BatchRow) => Promise<void>;
  /** Where the process runs chunks; what `validateBatch` needs of it. */
  lines: () => {
    /** Claims no chunk of a batch until the returned function is called. */
    awaitFirst: (batchId: string) => () => void;
    firstHolder: () => Holder | null;
    /** `weight`: that of the workspace. */
    runFirst: (first: FirstChunk, weight: number) => void;
    /** Called when a batch has chunks that are ready. */
    wake: () => void;
  };
  logger: Logger;
};

/** A claimed turn; its key is the ID of the batch. `batch`: its row, if this process held the turn when it came up. */
export type ClaimedFiles = FileTurn & { key: string; batch?: BatchRow };

type HeldFiles = Pick<Held<ClaimedFiles>, 'work' | 'holder'>;

/** Runs claimed validations and finalises. What fails is released and tried again after a pause. Never rejects. */
export class BatchFiles {
  readonly #deps: Deps;
  readonly #stopping: AbortSignal;

  constructor(deps: Deps, stopping: AbortSignal) {
    this.#deps = deps;
    this.#stopping = stopping;
  }

  async run(held: HeldFiles): Promise<void> {
    const { batchId, work: what, failures } = held.work;
    const { onJobEnded } = this.#deps.platform;
    const facts = { id: batchId, retryCount: failures, payload: { batch_id: batchId }, waitedMs: null };
    try {
      if (onJobEnded === undefined) await this.#workOrRelease(held, () => {});
      else
        await runAndReport(onJobEnded, { queue: `batch-${what}`, ...facts }, (note) => this.#workOrRelease(held, note));
    } catch {
      // It has been logged. What could not be released is found by stray-work.ts.
    }
  }

  async #validate(before: BatchRow, signal: AbortSignal, weight: number): Promise<BatchRow> {
    const { config, validator, outputs, watch, releaseTarget, logger } = this.#deps;
    const lines = this.#deps.lines();
    let isRunning = false;
    const endWait = lines.awaitFirst(before.id);
    const { db, eventLog, queue, blobs, files, access } = this.#deps.platform;
    const batch = await validateBatch(
      {
        eventLog,
        blobs,
        validator,
        outputs,
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
        publicNames: (batch) => readPublicNames(access.snapshot, batchCaller(access.snapshot, batch)),
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
        firstHolder: lines.firstHolder,
        runFirst(first) {
          isRunning = first.left === 0;
          lines.runFirst(first, weight);
        },
      },
      before,
      signal,
    ).finally(endWait);
    if (batch.status === 'in_progress' && !isRunning) lines.wake();
    return batch;
  }

  async #finalise(batch: BatchRow, signal: AbortSignal, failures: number): Promise<BatchRow> {
    const { inputBlob, releaseTarget, logger } = this.#deps;
    const { db, eventLog, queue, blobs, files } = this.#deps.platform;
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

  async #work(turn: ClaimedFiles, signal: AbortSignal, note: (outcome: string) => void): Promise<void> {
    const { db } = this.#deps.platform;
    const { batchId } = turn;
    const batch = turn.batch ?? (await db.selectFrom('batch').selectAll().where('id', '=', batchId).executeTakeFirst());
    // A turn whose batch has ended or does not exist: the two were restored from different moments.
    if (batch === undefined || isTerminal(batch.status)) return await endTurn(db, batchId);
    const isNew = turn.work === 'validate';
    const after = await (isNew
      ? this.#validate(batch, signal, turn.weight)
      : this.#finalise(batch, signal, turn.failures));
    note(after.status);
  }

  async #workOrRelease({ work: turn, holder }: HeldFiles, note: (outcome: string) => void): Promise<void> {
    const { logger } = this.#deps;
    const signal = turn.batch !== undefined ? holder.lost : AbortSignal.any([this.#stopping, holder.lost]);
    const retrying = {
      delayMs: outageRetryMs,
      signal,
      onRetry: (error: unknown) => logger.warn({ err: error }, 'batch is waiting for the database'),
    };
    try {
      await retryDuringOutage(() => this.#work(turn, signal, note), retrying);
    } catch (error) {
      const { batchId: batch_id, work: what, failures } = turn;
      if (!signal.aborted) logger.warn({ err: error, batch_id, failures }, `${what} failed and will be retried`);
      await releaseTurn(this.#deps.platform.db, turn, holder.id, !signal.aborted);
      throw error;
    }
  }
}

const outageRetryMs = 500;
