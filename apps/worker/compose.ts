import { LRUCache } from 'lru-cache';
import { createAccessListener } from '#libs/identity/access-listener.ts';
import { createRollUpRunner } from '#libs/analytics/rollups/run-roll-up.ts';
import { createAnswerSizes } from '#libs/batches/lines/answer-sizes.ts';
import { createCallLine, type CallLine, type RenderLine } from '#libs/batches/lines/call-line.ts';
import { createCostBounds } from '#libs/batches/batch/cost-bound.ts';
import { createBatchWatch } from '#libs/batches/batch/batch-watch.ts';
import { takeOverWork, wakeChunks } from '#libs/batches/chunks/chunk.ts';
import { ChunkRunner } from '#libs/batches/chunks/run-chunk.ts';
import { createProcessLease } from '#libs/queue/process-lease.ts';
import { createLostJobRepair } from '#libs/queue/replace-lost-jobs.ts';
import { createDatabase, createPool } from '#libs/database/pool.ts';
import { createHousekeeping } from '#libs/batches/chunks/housekeeping.ts';
import { createLineWaits } from '#libs/batches/lines/line-waits.ts';
import { createLineReporter } from '#libs/batches/lines/report-lines.ts';
import { createPermitPool } from '#libs/batches/lines/permit-pool.ts';
import type { BatchRow } from '#libs/batches/batch/batch-model.ts';
import type { UnitOfWork } from '#libs/event-log/event-log.ts';
import { collectUpcasts } from '#libs/event-log/inline-model.ts';
import { createSubscriberRunner } from '#libs/event-log/run-subscribers.ts';
import type { RetryPolicy } from '#libs/calls/retry.ts';
import { jobsToFollow, jobsToStart } from '#libs/fine-tuning/open-jobs.ts';
import { alertQueue, deliverAlert } from '#libs/policies/deliver-alert.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { workspaceKind } from '#libs/people/workspaces.ts';
import type { Part } from '#libs/kernel/lifecycle.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import { makeTraceparent } from '#libs/kernel/trace-ids.ts';
import { steadyClock } from '#libs/kernel/clock.ts';
import { createMemoryBudget } from '#libs/kernel/sharing/memory-budget.ts';
import { continueReplay, replaysToContinue } from '#libs/replays/replay-jobs.ts';
import { logExportQueue, runLogExport, exportsInProgress } from '#libs/request-log/read/run-log-export.ts';
import { createOutputChecker, type OutputChecker } from '#libs/validation/outputs/output-checker.ts';
import { createEventPusher } from '#libs/siem/push-events.ts';
import { createDeliverySender } from '#libs/resources/webhooks/send-deliveries.ts';
import { createBatchFileValidator } from '#libs/validation/batch-file-validator.ts';
import { createPlatform } from '#apps/platform/compose.ts';
import { sessionUrl } from '#apps/platform/config.ts';
import type { Platform } from '#apps/platform/platform.ts';
import { inlineModels } from '#apps/platform/models.ts';
import { modelCheckQueue } from '#apps/platform/queues.ts';
import { subscribers } from '#apps/platform/subscribers.ts';
import { connectionsMax, type WorkerConfig } from './config.ts';
import { sealParts } from './seal-parts.ts';
import { BatchFiles } from './jobs/batch-files.ts';
import { composeLanes } from './lanes.ts';
import { workOnFineTuning } from './jobs/fine-tuning.ts';
import { workOnReplays } from './jobs/replays.ts';
import { checkReadModels } from './jobs/check-read-models.ts';
import { createMaintenance } from './jobs/maintenance.ts';
import { maintenanceTasks } from './jobs/maintenance-tasks.ts';
import { logBatchLine } from './log-batch-line.ts';
import { createWorkerOperations, type WorkerOperations } from './operations.ts';
import { bodyToSend, type Prompts } from '#libs/stored-prompts/prompts.ts';
import { batchCaller } from './batch-caller.ts';
import type { PromptPins } from '#libs/calls/planned-call.ts';
import { createBodyCheck } from '#libs/validation/lines/check-body.ts';

/** Composes the worker process. Its parts are in start order. */
export async function composeWorker(
  config: WorkerConfig,
  logger: Logger,
  options: { believedAfterMs?: number } = {},
): Promise<{ parts: Part[] }> {
  const platform = await composePlatform(config, options, logger);
  const { db, queue, databaseClock: clock } = platform;
  const stopping = new AbortController();
  const outputs = createOutputChecker({ threads: config.SLUICE_VALIDATION_THREADS });
  const releaseTarget = createTargetRelease(platform);
  const shared = { config, platform, outputs, releaseTarget, stopping: stopping.signal, logger };
  const engine = composeBatchEngine(shared);
  const maintenance = createMaintenance(maintenanceTasks(config, platform, logger), { db, queue, clock, logger });
  const jobs: Part = {
    name: 'jobs',
    async start() {
      await engine.workOnTickets();
      await workOnFineTuning({ config, platform, logger, stopping: stopping.signal });
      await workOnReplays(shared);
      await workOnReports(config, platform, { stopping: stopping.signal, logger });
      await maintenance.work(stopping.signal);
    },
    stop() {
      engine.drain();
      // Validation of a long file starts again in another worker. It has cost nothing yet.
      stopping.abort();
    },
  };
  return {
    parts: [
      engine.operations.listener,
      ...platform.parts,
      ...engine.parts,
      platform.queuePart,
      createLostJobRepair({ db, queue, logger }, jobsToStart),
      createLostJobRepair({ db, queue, logger }, jobsToFollow),
      createLostJobRepair({ db, queue, logger }, exportsInProgress),
      createLostJobRepair({ db, queue, logger }, replaysToContinue),
      ...engine.workParts,
      ...projectionParts(config, platform, logger),
      ...sealParts(config, platform, logger),
      createDeliverySender({
        ...platform,
        secrets: platform.access.secrets,
        nowMs: () => clock.now(),
        logger,
      }),
      createEventPusher({
        ...platform,
        secrets: platform.access.secrets,
        folder: config.SLUICE_SIEM_FOLDER,
        upcasts: collectUpcasts(inlineModels),
        logger,
      }),
      jobs,
      maintenance,
      engine.operations.readiness,
    ],
  };
}

async function composePlatform(
  config: WorkerConfig,
  options: { believedAfterMs?: number },
  logger: Logger,
): Promise<Platform> {
  // Longer than the handlers need to drain, and shorter than the deadline of the process (main.ts).
  const queueStopMs = config.SLUICE_DRAIN + 5_000;
  const platform: Platform = await createPlatform(
    { ...config, SLUICE_CONNECTIONS: connectionsMax(config) },
    {
      name: 'worker',
      role: 'worker',
      queueStopMs,
      ...options,
      onCredentialsChanged(changed) {
        wakeChunks(platform.db, [...new Set(changed.map(({ workspaceId }) => workspaceId))]).catch((error: unknown) =>
          logger.warn({ err: error }, 'chunks that wait will only be retried when they are due'),
        );
      },
    },
    logger,
  );
  return platform;
}

type EngineParts = {
  config: WorkerConfig;
  platform: Platform;
  outputs: OutputChecker;
  releaseTarget: ReturnType<typeof createTargetRelease>;
  stopping: AbortSignal;
  logger: Logger;
};

/** Composes what validates batches, runs their chunks and ends them. `stopping` ends validations and finalises. */
function composeBatchEngine({ config, platform, outputs, releaseTarget, stopping, logger }: EngineParts) {
  const { db, databaseClock: clock, eventLog, queue, blobs, requestLog, memory } = platform;
  const watch = createBatchWatch({ db, logger, intervalMs: 1_000 });
  const permits = createPermitPool({ callsMax: config.SLUICE_CALLS_MAX, bytesMax: Number.POSITIVE_INFINITY });
  const ranges = createMemoryBudget(config.SLUICE_IN_FLIGHT_MAX);
  const waits = createLineWaits({ logger, now: () => steadyClock.now() });
  const validator = createBatchFileValidator({
    threads: config.SLUICE_VALIDATION_THREADS,
    usesLoop: true,
    limits: { lineBytesMax: config.SLUICE_LINE_MAX },
  });
  const inputBlob = createInputBlob(platform.files);
  const leaseSession = { connectionString: sessionUrl(config), applicationName: 'sluice-lease', max: 2 };
  const leasePool = createPool(leaseSession, logger);
  const lease = createProcessLease({
    db: createDatabase(leasePool),
    takeOver: takeOverWork,
    onTakenOver: () => lanes.wake(),
    logger,
  });
  const files = new BatchFiles(
    {
      config,
      platform,
      validator,
      outputs,
      watch,
      inputBlob,
      releaseTarget,
      lines: () => lanes.lines,
      logger,
    },
    stopping,
  );
  const operations = createWorkerOperations({
    platform,
    permits,
    ranges,
    chunksActive: () => runner.active,
    waits,
    logger,
    port: config.SLUICE_WORKER_PORT,
    host: config.HOST,
  });
  const boundOf = createCostBounds({ eventLog, queue, releaseTarget, logger });
  const runner = new ChunkRunner({
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
    callLine: composeCallLine(config, platform, { operations, outputs, boundOf }),
    waits,
    isCrowded: () => lanes.isCrowded() || ranges.stats().waiting > 0,
    isLogFull: () => requestLog.isFull(),
    inputBlob,
    releaseTarget,
    holder: () => lease.holder(),
    finishSmallBatch: (batch, holder) => lanes.finish(batch, holder),
    onRedelivery: () => operations.countRedelivery(),
    onSettled: (results) => operations.countSettle(results),
    onJobEnded: platform.onJobEnded,
    logger,
  });
  const lanes = composeLanes(config, { db, lease, stopping, logger }, { lines: runner, files });
  return {
    operations,
    parts: [
      { name: 'validation threads', stop: () => validator.stop() },
      { name: 'threads that check answers', stop: () => outputs.stop() },
      watch,
      waits,
      createLineReporter({ db, waits, calls: () => runner.calls(), clock, logger }),
    ],
    workParts: [
      { name: 'connections of the process lease', stop: () => leasePool.end() },
      lease,
      ...createHousekeeping({
        db,
        eventLog,
        queue,
        clock,
        releaseTarget,
        onReady: () => lanes.wake(),
        logger,
      }),
      ...lanes.parts,
    ],
    /** Stops taking chunks; calls have some time to end. */
    drain: () => runner.drain(config.SLUICE_DRAIN),
    workOnTickets: () => lanes.workOnTickets(queue),
  };
}

/** What the transaction that ends a batch does in addition. */
const createTargetRelease =
  ({ access, queue }: Pick<Platform, 'access' | 'queue'>) =>
  async (unit: UnitOfWork, batch: BatchRow): Promise<void> => {
    await access.batchTargets.release(unit, batch.target);
    await continueReplay(queue, unit, batch);
  };

const inputBlobsMax = 1_000;

/** The blob of a batch's input file, even if the file was deleted. It never changes. */
function createInputBlob(files: Platform['files']): (batch: BatchRow) => Promise<string> {
  const known = new LRUCache<string, string>({ max: inputBlobsMax });
  return async ({ id, workspace_id: workspaceId, input_file_id: fileId }) => {
    const blob = known.get(id) ?? (await files.find(workspaceId, fileId))?.blob;
    if (blob === undefined)
      throw new GatewayError('not_found', 'blob_not_found', `Batch ${id} has lost its input file ${fileId}.`);
    known.set(id, blob);
    return blob;
  };
}

/** Composes how a line is called, retried and logged. */
function composeCallLine(
  config: WorkerConfig,
  { access, calls, costs, databaseClock, requestLog, telemetry }: Platform,
  {
    operations,
    outputs,
    boundOf,
  }: {
    operations: WorkerOperations;
    outputs: OutputChecker;
    boundOf: ReturnType<typeof createCostBounds>;
  },
): CallLine {
  const policy = (batch: BatchRow): RetryPolicy => ({
    attemptsMax: config.SLUICE_LINE_ATTEMPTS,
    baseDelayMs: config.SLUICE_RETRY_BASE,
    maxDelayMs: config.SLUICE_RETRY_MAX,
    deadlineAt: databaseClock.toOwnTime(batch.expires_at.getTime()),
  });
  const { batchTargets, snapshot } = access;
  const hashesBodies = (workspaceId: string): boolean =>
    snapshot.live(workspaceKind).byId.get(workspaceId)?.defaults?.hashesBodies === true;
  return createCallLine({
    calls,
    planOf: (batch, model) =>
      batchTargets.planOf(batch.workspace_id, batch.target, { model, caller: batchCaller(snapshot, batch) }),
    resolve: (batch, ...leaf) => batchTargets.resolveLeaf(batch.workspace_id, batch.target, ...leaf),
    renderLine: createRenderLine(access.prompts),
    outputs,
    boundOf,
    policy,
    onCalled: (called) => {
      operations.countLine(called.errorCode === null ? 'succeeded' : 'failed');
      return logBatchLine({ requestLog, costs, telemetry, hashesBodies }, called);
    },
    now: Date.now,
    clock: steadyClock,
    makeTraceparent:
      telemetry === null
        ? undefined
        : (traceId, requestId) => makeTraceparent(traceId, requestId, telemetry.isSampled(traceId, null)),
  });
}

/** Composes what follows the event log and the request log. */
function projectionParts(config: WorkerConfig, { db, databaseClock }: Platform, logger: Logger): Part[] {
  const subscriberRunner = createSubscriberRunner({ db, subscribers, upcasts: collectUpcasts(inlineModels), logger });
  return [
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
      connectionString: sessionUrl(config),
      onChange: () => subscriberRunner.wake(),
      logger,
    }),
  ];
}

/** Works on log exports, alerts and checks of the read models. */
async function workOnReports(
  config: WorkerConfig,
  { db, queue, eventLog, blobs, access, alertWebhook: webhook, egress, databaseClock }: Platform,
  { stopping, logger }: { stopping: AbortSignal; logger: Logger },
): Promise<void> {
  await queue.work(logExportQueue, { concurrency: config.SLUICE_EXPORTS_AT_ONCE, retryOutages: true }, (job) =>
    runLogExport(
      { db, eventLog, blobs, logger, secrets: access.secrets, limits: { rowsMax: config.SLUICE_EXPORT_ROWS_MAX } },
      job.payload.export_id,
      AbortSignal.any([job.signal, stopping]),
    ),
  );
  if (webhook !== null) {
    await queue.work(alertQueue, { concurrency: 2, retryOutages: true }, (job) =>
      deliverAlert({ db, egress, webhook, now: () => databaseClock.now() }, job),
    );
  }
  await queue.work(modelCheckQueue, { concurrency: 1 }, (job) =>
    checkReadModels({ db, connectionString: sessionUrl(config), logger }, AbortSignal.any([job.signal, stopping])),
  );
}

/** Makes the bodies of lines that name a prompt, with the versions that were pinned when the batch was validated. */
function createRenderLine(prompts: Pick<Prompts, 'render'>): RenderLine {
  const requireGoodBody = {
    chat: createBodyCheck('/v1/chat/completions'),
    completions: createBodyCheck('/v1/completions'),
  };
  return async ({ workspace_id: workspaceId, gateway_options: options }, operation, bytes) => {
    const line = JSON.parse(bytes.toString()) as Record<string, unknown>;
    const { prompt_id: name, variables, hyperparameters, ...further } = line;
    const query = {
      workspaceId,
      name: String(name),
      param: 'body.prompt_id',
      variables: (variables ?? {}) as Record<string, unknown>,
      hyperparameters: { ...(hyperparameters as object | null | undefined), ...further },
    };
    const rendered = await prompts.render(query, options['pinned_prompts'] as PromptPins);
    if (rendered.operation !== operation) {
      const message = `The prompt '${query.name}' is not for the endpoint of this batch.`;
      throw new GatewayError('invalid_request', 'prompt_not_for_call', message, { param: 'body.prompt_id' });
    }
    const body = bodyToSend(rendered);
    requireGoodBody[rendered.operation](body);
    return { body: Buffer.from(JSON.stringify(body)), promptInput: { ...query, prompt: rendered.prompt } };
  };
}
