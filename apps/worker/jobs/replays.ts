import { createBatches } from '#libs/batches/batch/batches.ts';
import type { BatchRow } from '#libs/batches/batch/batch-model.ts';
import type { BatchTarget } from '#libs/database/schema.ts';
import type { UnitOfWork } from '#libs/event-log/event-log.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import { trafficReplayQueue } from '#libs/replays/replay-jobs.ts';
import { runReplay } from '#libs/replays/run-replay.ts';
import type { OutputChecker } from '#libs/validation/outputs/output-checker.ts';
import type { Platform } from '../../platform/platform.ts';
import type { WorkerConfig } from '../config.ts';

/** Compares the answers of traffic replays whose batches have ended. */
export async function workOnReplays({
  config,
  platform,
  outputs,
  releaseTarget,
  stopping,
  logger,
}: {
  config: WorkerConfig;
  platform: Platform;
  outputs: OutputChecker;
  releaseTarget: (unit: UnitOfWork, batch: BatchRow) => Promise<void>;
  stopping: AbortSignal;
  logger: Logger;
}): Promise<void> {
  const { db, eventLog, queue, access } = platform;
  const batches = createBatches({
    db,
    eventLog,
    queue,
    expiresAfterMs: config.SLUICE_BATCH_EXPIRY,
    limits: { openBatchesMax: config.SLUICE_OPEN_BATCHES_MAX, queuedLinesMax: config.SLUICE_QUEUED_LINES_MAX },
    releaseTarget,
  });
  const deps = {
    ...platform,
    secrets: access.secrets,
    outputs,
    batches,
    releaseTarget: (unit: UnitOfWork, target: BatchTarget) => access.batchTargets.release(unit, target),
    logger,
  };
  await queue.work(trafficReplayQueue, { concurrency: 1, retryOutages: true }, ({ payload, signal }) =>
    runReplay(deps, payload, AbortSignal.any([signal, stopping])),
  );
}
