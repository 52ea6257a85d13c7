import { sql } from 'kysely';
import { createAccessListener } from '#libs/identity/access-listener.ts';
import { createRollUpRunner } from '#libs/analytics/rollups/run-roll-up.ts';
import { sweepRollups } from '#libs/analytics/rollups/sweep-rollups.ts';
import { createAnswerSizes } from '#libs/batches/lines/answer-sizes.ts';
import { createCallLine } from '#libs/batches/lines/call-line.ts';
import { createBatchWatch } from '#libs/batches/batch-watch.ts';
import { chunkQueue, closeQueue } from '#libs/batches/chunks/batch-queues.ts';
import { closeBatch } from '#libs/batches/results/close-batch.ts';
import { createDispatcher } from '#libs/batches/chunks/dispatch-chunks.ts';
import { createFinishSmallBatch } from '#libs/batches/results/finish-small-batch.ts';
import { createChunkRunner } from '#libs/batches/chunks/run-chunk.ts';
import { dropOldResults } from '#libs/batches/results/results-bucket.ts';
import { createHousekeeping } from '#libs/batches/chunks/housekeeping.ts';
import { wakeSnoozedChunksOf } from '#libs/batches/chunks/snooze-chunk.ts';
import { createLineWaits } from '#libs/batches/lines/line-waits.ts';
import { createWaitReporter } from '#libs/batches/lines/report-waits.ts';
import { createPermitPool } from '#libs/batches/lines/permit-pool.ts';
import type { BatchRow } from '#libs/batches/batch-model.ts';
import type { UnitOfWork } from '#libs/event-log/event-log.ts';
import { upcastsOf } from '#libs/event-log/inline-model.ts';
import { createSubscriberRunner } from '#libs/event-log/run-subscribers.ts';
import type { JobQueue } from '#libs/queue/job-queue.ts';
import type { RetryPolicy } from '#libs/calls/retry.ts';
import { workedOnFineTuningJobs } from '#libs/fine-tuning/open-jobs.ts';
import { sweepUploads } from '#libs/files/uploads.ts';
import { sweepRecordedBodies } from '#libs/request-log/bodies/recorded-bodies.ts';
import { findReferencedBlobs } from '#libs/files/referenced-blobs.ts';
import { alertQueue, deliverAlert } from '#libs/policies/deliver-alert.ts';
import { sweepCounters } from '#libs/limits/counter-store.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { Part } from '#libs/kernel/lifecycle.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import { traceparentOf } from '#libs/kernel/trace-ids.ts';
import { steadyClock } from '#libs/kernel/clock.ts';
import { createMemoryBudget } from '#libs/kernel/memory-budget.ts';
import { recordDueRotations } from '#libs/resources/api-keys/record-due-rotations.ts';
import { createKilledReport } from '#libs/request-log/audit/report-killed.ts';
import { dropRequestLogPartitions } from '#libs/request-log/write/log-partitions.ts';
import {
  logExportQueue,
  runLogExport,
  sweepLogExports,
  workedOnExports,
} from '#libs/request-log/read/run-log-export.ts';
import { sweepStoredObjects } from '#libs/calls/protect/stored-objects/object-owners.ts';
import { sweepCircuits } from '#libs/calls/protect/traffic/shared-circuits.ts';
import { createStoredAnswers } from '#libs/calls/protect/response-cache/stored-answers.ts';
import { createBatchFileValidator } from '#libs/validation/batch-file-validator.ts';
import { createPlatform } from '../platform/compose.ts';
import { inlineModels } from '../platform/models.ts';
import { modelCheckQueue } from '../platform/queues.ts';
import { subscribers } from '../platform/subscribers.ts';
import type { WorkerConfig } from './config.ts';
import { createRenderLine } from './render-line.ts';
import { createBatchFileJobs } from './jobs/batch-files.ts';
import { workOnFineTuning } from './jobs/fine-tuning.ts';
import { checkReadModels } from './jobs/check-read-models.ts';
import { createMaintenance } from './jobs/maintenance.ts';
import { logBatchLine } from './log-batch-line.ts';
import { createWorkerOperations } from './operations.ts';

/** Composes the worker process. Its parts are in start order. */
export async function composeWorker(
  config: WorkerConfig,
  logger: Logger,
  options: { believedAfterMs?: number } = {},
): Promise<{ parts: Part[] }> {
  // Longer than the handlers need to drain, and shorter than the deadline of the process (main.ts).
  const queueStopMs = config.SLUICE_DRAIN + 5_000;
  const platform = await createPlatform(
    config,
    {
      name: 'worker',
      role: 'worker',
      queueStopMs,
      ...options,
      onCredentialsChanged(changed) {
        wakeSnoozedChunksOf(platform.db, [...new Set(changed.map(({ workspaceId }) => workspaceId))]).catch(
          (error: unknown) => logger.warn({ err: error }, 'snoozed chunks will only be tried when they are due'),
        );
      },
    },
    logger,
  );
  const { db, databaseClock, eventLog, queue, blobs, access, files, calls, requestLog, costs, memory } = platform;
  const watch = createBatchWatch({ db, logger, intervalMs: 1_000 });
  const permits = createPermitPool({ callsMax: config.SLUICE_CALLS_MAX, bytesMax: Number.POSITIVE_INFINITY });
  const ranges = createMemoryBudget(config.SLUICE_IN_FLIGHT_MAX);
  const chunksOfBatch = config.SLUICE_CHUNKS_MAX;
  const chunksTotal = Math.max(chunksOfBatch, config.SLUICE_CHUNKS_TOTAL);
  let chunkWorker: ReturnType<JobQueue['workInGroups']> | undefined;
  const waits = createLineWaits({ logger, now: () => steadyClock.now() });
  const validator = createBatchFileValidator({
    threads: config.SLUICE_VALIDATION_THREADS,
    limits: { lineBytesMax: config.SLUICE_LINE_MAX },
  });
  const dispatcher = createDispatcher({
    db,
    queue,
    logger,
    readyJobs: { ofBatch: chunksOfBatch, ofAll: 2 * chunksTotal },
    intervalMs: 250,
    onReady: () => chunkWorker?.wake(),
  });

  const releaseTarget = (unit: UnitOfWork, batch: BatchRow) => access.batchTargets.release(unit, batch.target);
  const inputBlob = async (batch: BatchRow): Promise<string> => {
    const file = await files.find(batch.workspace_id, batch.input_file_id);
    if (!file) {
      const message = `Batch ${batch.id} has lost its input file ${batch.input_file_id}.`;
      throw new GatewayError('not_found', 'blob_not_found', message);
    }
    return file.blob;
  };
  const { SLUICE_WORKER_PORT: port, HOST: host } = config;
  const operations = createWorkerOperations({
    platform,
    permits,
    ranges,
    chunksActive: () => runner.active(),
    waits,
    logger,
    port,
    host,
  });
  const policy = (batch: BatchRow): RetryPolicy => ({
    attemptsMax: config.SLUICE_LINE_ATTEMPTS,
    baseDelayMs: config.SLUICE_RETRY_BASE,
    maxDelayMs: config.SLUICE_RETRY_MAX,
    deadlineAt: databaseClock.toOwnTime(batch.expires_at.getTime()),
  });
  const { batchTargets } = access;
  const { telemetry } = platform;
  const callLine = createCallLine({
    calls,
    planOf: (batch) => batchTargets.planOf(batch.workspace_id, batch.target),
    resolve: (batch, ...leaf) => batchTargets.resolveLeaf(batch.workspace_id, batch.target, ...leaf),
    renderLine: createRenderLine(access.prompts),
    policy,
    onCalled: (called) => {
      operations.countLine(called.errorCode === null ? 'succeeded' : 'failed');
      return logBatchLine({ requestLog, costs, telemetry }, called);
    },
    now: Date.now,
    clock: steadyClock,
    traceparentOf:
      telemetry === null
        ? undefined
        : (traceId, requestId) => traceparentOf(traceId, requestId, telemetry.isSampled(traceId, null)),
  });
  const batchFiles = createBatchFileJobs({
    config,
    platform,
    validator,
    watch,
    inputBlob,
    releaseTarget,
    onValidated: () => dispatcher.wake(),
    logger,
  });
  const runner = createChunkRunner({
    db,
    eventLog,
    queue,
    blobs,
    watch,
    permits,
    memory,
    memoryWaitMsMax: config.SLUICE_TOTAL_TIMEOUT,
    answerSizes: createAnswerSizes(),
    ranges,
    callLine,
    waits,
    isCrowded: () => chunkWorker?.isCrowded() === true || ranges.stats().waiting > 0,
    isLogFull: () => requestLog.isFull(),
    inputBlob,
    finishSmallBatch: createFinishSmallBatch({
      finalise: async (batch, signal) => void (await batchFiles.finalise(batch, signal)),
      logger,
    }),
    onSlotFree: () => dispatcher.wake(),
    onRedelivery: () => operations.countRedelivery(),
    onSettled: (results) => operations.countSettle(results),
    logger,
  });
  const maintenance = createMaintenance(
    [
      {
        name: 'report killed processes',
        everySeconds: 30,
        run: createKilledReport({ db, logger }),
        ignoresClock: true,
      },
      { name: 'expire files', everySeconds: 60, run: () => files.expire() },
      { name: 'record due key rotations', everySeconds: 60, run: () => recordDueRotations({ db, eventLog }) },
      { name: 'forget command results', everySeconds: 3_600, run: () => forgetCommandResults() },
      {
        name: 'drop old results',
        everySeconds: 3_600,
        run: () => dropOldResults(db, new Date(databaseClock.now() - config.SLUICE_RESULTS_RETENTION)),
      },
      {
        name: 'drop old request log',
        everySeconds: 3_600,
        run: () =>
          dropRequestLogPartitions(
            db,
            Math.ceil(config.SLUICE_REQUEST_LOG_RETENTION / 86_400_000),
            databaseClock.now(),
          ),
      },
      {
        name: 'drop old rollups',
        everySeconds: 3_600,
        run: () =>
          sweepRollups(db, {
            retention: {
              minute: config.SLUICE_ANALYTICS_MINUTES,
              hour: config.SLUICE_ANALYTICS_HOURS,
              day: config.SLUICE_ANALYTICS_DAYS,
            },
            logRetentionMs: config.SLUICE_REQUEST_LOG_RETENTION,
            nowMs: databaseClock.now(),
          }),
      },
      { name: 'drop uploads that were not completed', everySeconds: 600, run: () => sweepUploads(db, blobs) },
      { name: 'drop old recorded bodies', everySeconds: 600, run: () => sweepRecordedBodies(db, blobs) },
      {
        name: 'drop old log exports',
        everySeconds: 3_600,
        run: () => sweepLogExports(db, config.SLUICE_EXPORT_RETENTION),
      },
      {
        name: 'sweep response cache',
        everySeconds: 60,
        run: () => createStoredAnswers(db).sweep(config.SLUICE_CACHE_WORKSPACE_MAX),
      },
      { name: 'sweep limit counters', everySeconds: 3_600, run: () => sweepCounters(db) },
      { name: 'sweep circuits', everySeconds: 3_600, run: () => sweepCircuits(db) },
      { name: 'sweep stored objects', everySeconds: 3_600, run: () => sweepStoredObjects(db) },
      {
        name: 'sweep blobs',
        everySeconds: 3_600,
        run: () => blobs.sweep({ olderThanMs: 86_400_000, findReferenced: (names) => findReferencedBlobs(db, names) }),
      },
    ],
    { db, queue, clock: databaseClock, logger },
  );
  /** Idempotency keys are valid for at least a day. */
  async function forgetCommandResults(): Promise<void> {
    await db
      .deleteFrom('command_result')
      .where('recorded_at', '<', sql<Date>`clock_timestamp() - interval '48 hours'`)
      .execute();
  }

  const stopping = new AbortController();
  const jobs: Part = {
    name: 'jobs',
    async start() {
      await batchFiles.work(stopping.signal);
      await queue.work(closeQueue, { concurrency: 1, retryOutages: true }, async (job) => {
        await closeBatch({ db, eventLog, queue, releaseTarget }, job.payload.batch_id, job.id);
      });
      const limits = { concurrency: chunksTotal, concurrencyOfGroup: chunksOfBatch };
      chunkWorker = queue.workInGroups(chunkQueue, limits, (job) => runner.run(job));
      await workOnFineTuning({ config, platform, logger, stopping: stopping.signal });
      await queue.work(logExportQueue, { concurrency: config.SLUICE_EXPORTS_AT_ONCE, retryOutages: true }, (job) =>
        runLogExport(
          { db, eventLog, blobs, logger, secrets: access.secrets, limits: { rowsMax: config.SLUICE_EXPORT_ROWS_MAX } },
          job.payload.export_id,
          AbortSignal.any([job.signal, stopping.signal]),
        ),
      );
      const { alertWebhook: webhook, egress } = platform;
      if (webhook !== null) {
        await queue.work(alertQueue, { concurrency: 2, retryOutages: true }, (job) =>
          deliverAlert({ db, egress, webhook, now: () => databaseClock.now() }, job),
        );
      }
      await queue.work(modelCheckQueue, { concurrency: 1 }, (job) =>
        checkReadModels(
          { db, connectionString: config.DATABASE_URL, logger },
          AbortSignal.any([job.signal, stopping.signal]),
        ),
      );
      await maintenance.work(stopping.signal);
    },
    stop() {
      runner.drain(config.SLUICE_DRAIN);
      // Validation of a long file starts again in another worker. It has cost nothing yet.
      stopping.abort();
    },
  };

  const subscriberRunner = createSubscriberRunner({ db, subscribers, upcasts: upcastsOf(inlineModels), logger });

  return {
    parts: [
      operations.listener,
      ...platform.parts,
      { name: 'validation threads', stop: () => validator.stop() },
      watch,
      waits,
      createWaitReporter({ db, waits, aheadMs: () => databaseClock.now() - steadyClock.now(), logger }),
      platform.queuePart,
      dispatcher,
      createHousekeeping({
        db,
        queue,
        clock: databaseClock,
        otherWork: [workedOnFineTuningJobs, workedOnExports],
        logger,
      }),
      subscriberRunner,
      createRollUpRunner({
        db,
        now: () => databaseClock.now(),
        logRetentionMs: config.SLUICE_REQUEST_LOG_RETENTION,
        intervalMs: config.SLUICE_ANALYTICS_INTERVAL,
        logger,
      }),
      // Changes of keys and configs are announced; other events are found by the next poll.
      createAccessListener({
        connectionString: config.DATABASE_URL,
        onChange: () => subscriberRunner.wake(),
        logger,
      }),
      jobs,
      maintenance,
      operations.readiness,
    ],
  };
}
