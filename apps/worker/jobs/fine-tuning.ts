import type { Target } from '#libs/calls/call.ts';
import { plainLeaf } from '#libs/calls/plan/plain-plan.ts';
import type { FineTuningJobRow } from '#libs/fine-tuning/fine-tuning-job-model.ts';
import { followQueue, startQueue } from '#libs/fine-tuning/fine-tuning-queues.ts';
import { followJob } from '#libs/fine-tuning/follow-job.ts';
import { startJob, type TuningWork } from '#libs/fine-tuning/start-job.ts';
import { TuningProvider } from '#libs/fine-tuning/tuning-provider.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import type { Platform } from '../../platform/platform.ts';
import type { WorkerConfig } from '../config.ts';

// A job waits for its provider most of the time, so a few in parallel are enough for hundreds of jobs.
const startsAtOnce = 2;
const pollsAtOnce = 4;

/** Works on both fine-tuning queues. */
export async function workOnFineTuning({
  config,
  platform,
  logger,
  stopping,
}: {
  config: WorkerConfig;
  platform: Platform;
  logger: Logger;
  stopping: AbortSignal;
}): Promise<void> {
  const { db, eventLog, queue, blobs, access, files, calls } = platform;
  const { SLUICE_FINE_TUNING_POLL_MIN: minMs, SLUICE_FINE_TUNING_POLL_MAX: maxMs } = config;
  const targetOf = async ({ workspace_id: workspaceId, target }: FineTuningJobRow): Promise<Target> =>
    (await access.fineTuningTargets.resolveLeaf(workspaceId, target, plainLeaf, null, false)).target;
  const work: TuningWork = {
    db,
    eventLog,
    queue,
    logger,
    connect: async (job, signal) => new TuningProvider(calls, await targetOf(job), { signal, now: Date.now }),
    releaseTarget: (unit, target) => access.fineTuningTargets.release(unit, target),
    nextWaitMs(before, changed) {
      const allowedMs = changed ? minMs : Math.min(maxMs, Math.max(minMs, before * 2));
      return { allowedMs, waitMs: (allowedMs / 2) * (1 + Math.random()) };
    },
  };
  await queue.work(startQueue, { concurrency: startsAtOnce }, (job) =>
    startJob(
      {
        ...work,
        clock: platform.databaseClock,
        startWindowMs: config.SLUICE_FINE_TUNING_START_WINDOW,
        async openFile(workspaceId, fileId) {
          const file = await files.find(workspaceId, fileId);
          if (!file) throw new GatewayError('not_found', 'file_not_found', `No such File object: ${fileId}`);
          return { sizeBytes: file.bytes, open: () => blobs.read(file.blob) };
        },
      },
      job,
      AbortSignal.any([job.signal, stopping]),
    ),
  );
  await queue.work(followQueue, { concurrency: pollsAtOnce, retryOutages: true }, (job) =>
    followJob(
      {
        ...work,
        blobs,
        recordModels: async (row, models) =>
          await platform.storedObjects.recordModels(
            { workspaceId: row.workspace_id, credential: await targetOf(row) },
            models,
          ),
        async recordFile(unit, id, { filename, blob }) {
          await files.record(unit, id, { purpose: 'fine-tune-results', filename, blob, expiresAfterSeconds: null });
        },
      },
      job,
      AbortSignal.any([job.signal, stopping]),
    ),
  );
}
