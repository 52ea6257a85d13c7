import path from 'node:path';
import type { Kysely } from 'kysely';
import type { Pool } from 'pg';
import type { BlobStore } from '#libs/blobs/blob-store.ts';
import { createDiskBlobStore } from '#libs/blobs/disk-blob-store.ts';
import { createDatabaseClock, type DatabaseClock } from '#libs/database/database-clock.ts';
import { createDatabase, createPool } from '#libs/database/pool.ts';
import { migrate } from '#libs/database/migrate.ts';
import { createDatabaseWait } from '#libs/database/wait-for-database.ts';
import type { Database } from '#libs/database/schema.ts';
import { raiseEpochAfterRestore } from '#libs/event-log/epoch.ts';
import { createEventLog, type EventLog } from '#libs/event-log/event-log.ts';
import { createFiles, type Files } from '#libs/files/files.ts';
import { createAnswerThreads } from '#libs/calls/upstream/answers/answer-threads.ts';
import { parseEgressAllow } from '#libs/calls/upstream/egress/egress-allow.ts';
import { createEgress, type Egress } from '#libs/calls/upstream/egress/egress.ts';
import type { Admission } from '#libs/calls/admission.ts';
import { createCalls, type Calls } from '#libs/calls/calls.ts';
import type { PlanDeps } from '#libs/calls/plan/run-plan.ts';
import { createAnswerTexts } from '#libs/calls/protect/guardrails/texts/answer-texts.ts';
import { recordFeedback } from '#libs/analytics/feedback.ts';
import { createGuardrails, type GuardrailFeedback } from '#libs/calls/protect/guardrails/guardrails.ts';
import { createTextJudge } from '#libs/calls/protect/guardrails/text-judge.ts';
import { steadyClock, systemClock } from '#libs/kernel/clock.ts';
import { ConfigurationError, readVariable } from '#libs/kernel/read-env.ts';
import type { Part } from '#libs/kernel/lifecycle.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import { createMemoryBudget, type MemoryBudget } from '#libs/kernel/memory-budget.ts';
import { builtInPrices } from '#libs/prices/built-in-prices.ts';
import { createPricing, type Pricing } from '#libs/prices/pricing.ts';
import { createJobQueue, type JobQueue } from '#libs/queue/job-queue.ts';
import { createCallMetrics, type CallMetrics } from '#libs/request-log/record/call-metrics.ts';
import { createCallCosts, type CallCosts } from '#libs/request-log/record/call-costs.ts';
import { createLimitRules } from '#libs/limits/limit-rules.ts';
import { createLimits, type Limits } from '#libs/limits/limits.ts';
import { createCounterStore } from '#libs/limits/counter-store.ts';
import { createLimitAdmission } from '#libs/policies/limit-admission.ts';
import type { AlertWebhook } from '#libs/policies/deliver-alert.ts';
import { createAlertRecorder } from '#libs/policies/record-alert.ts';
import { createUsedAmounts } from '#libs/policies/used-amounts.ts';
import { resourceKinds } from '#libs/resources/resource-kinds.ts';
import { createRequestLog, type RequestLog } from '#libs/request-log/write/request-log.ts';
import { createCurrentPriceTable, priceTableKind } from '#libs/resources/price-tables.ts';
import { workspaceKind, type LiveWorkspace } from '#libs/people/workspaces.ts';
import { createSecretCache, type SecretCache } from '#libs/secret-managers/secret-cache.ts';
import { createSecretManagers, type SecretManagers } from '#libs/secret-managers/secret-managers.ts';
import { createSend } from '#libs/secret-managers/send.ts';
import { createSharedCircuits } from '#libs/calls/protect/traffic/shared-circuits.ts';
import { createTraffic, type Traffic } from '#libs/calls/protect/traffic/traffic.ts';
import { createObjectOwners } from '#libs/calls/protect/stored-objects/object-owners.ts';
import { createStoredObjects, type StoredObjects } from '#libs/calls/protect/stored-objects/stored-objects.ts';
import { createResponseCache, type ResponseCache } from '#libs/calls/protect/response-cache/response-cache.ts';
import { createStoredAnswers } from '#libs/calls/protect/response-cache/stored-answers.ts';
import type { z } from 'zod';
import type { AccessSnapshotOptions } from '#libs/snapshot/access-snapshot.ts';
import { createAccess, type Access } from './access.ts';
import { alertWebhookOf, blobFolder, type platformFields } from './config.ts';
import { createJobSpans } from './operations/job-spans.ts';
import { allQueues } from './queues.ts';
import { createTelemetry, type Telemetry } from './operations/telemetry.ts';

type PlatformConfig = z.output<z.ZodObject<typeof platformFields>>;

/** The parts that the API and the worker share. `parts` are in start order; each app decides when the queue starts. */
export type Platform = {
  pool: Pool;
  db: Kysely<Database>;
  databaseClock: DatabaseClock;
  eventLog: EventLog;
  queue: JobQueue;
  blobs: BlobStore;
  access: Access;
  /** Where secrets are kept that are not stored here, and those that were fetched. */
  secretManagers: SecretManagers;
  secretCache: SecretCache;
  files: Files;
  egress: Egress;
  calls: Calls;
  storedObjects: StoredObjects;
  /** Searches for the expression of a condition, in the threads of guardrails. */
  search: PlanDeps['search'];
  traffic: Traffic;
  responseCache: ResponseCache;
  requestLog: RequestLog;
  callMetrics: CallMetrics;
  /** null: OpenTelemetry is off. */
  telemetry: Telemetry | null;
  pricing: Pricing;
  /** The limits of a workspace. */
  limitRulesOf: ReturnType<typeof createLimitRules>;
  costs: CallCosts;
  /** Admits calls by budgets and rates; those of `calls` are admitted already. */
  admission: Admission;
  /** Counts of what limits did in this process. */
  limits: { stats: Limits['stats']; refused: () => { budget: number; rate: number }; alerts: () => number };
  /** Null if alerts are sent nowhere. */
  alertWebhook: AlertWebhook | null;
  memory: MemoryBudget;
  parts: Part[];
  queuePart: Part;
  /** Makes the start of a part wait for an unavailable database; the start may be repeated. */
  outlastingOutages: (part: Part) => Part;
};

// Each takes at most a quarter of a second, so the last one starts after some seconds.
const checksWaitingMax = { ofGroup: 32, ofAll: 512 };

/** Creates the platform. Nothing reads the database before it is started. */
export async function createPlatform(
  config: PlatformConfig,
  app: {
    name: string;
    role: 'sender' | 'worker';
    /** How long the queue waits for its handlers when it is stopped. */
    queueStopMs: number;
    onCredentialsChanged?: AccessSnapshotOptions['onCredentialsChanged'];
    /** How long a jump ahead of the database's clock is doubted. Tests shorten it. */
    believedAfterMs?: number | undefined;
  },
  logger: Logger,
): Promise<Platform> {
  const connectionString = config.DATABASE_URL;
  const pool = createPool(
    { connectionString, applicationName: `sluice-${app.name}`, max: config.SLUICE_DB_POOL_MAX },
    logger,
  );
  const db = createDatabase(pool);
  const databaseClock = createDatabaseClock({
    ownTime: () => steadyClock.now(),
    monotonicMs: () => performance.now(),
    believedAfterMs: app.believedAfterMs,
  });
  const eventLog = createEventLog(db);
  const blobs = await createDiskBlobStore({
    folder: blobFolder(config),
    reservedBytes: config.SLUICE_DISK_RESERVE,
  });
  const telemetry = await createTelemetry(config, { app: app.name, logger });
  const queue = createJobQueue({
    connectionString,
    role: app.role,
    queues: allQueues,
    logger,
    poolSizeMax: app.role === 'worker' ? 4 : 2,
    stopDeadlineMs: app.queueStopMs,
    onJobEnded: telemetry === null ? undefined : createJobSpans({ db, telemetry, logger }),
  });
  const memory = createMemoryBudget(config.SLUICE_MEMORY_MAX);
  const egress = createEgress({
    allow: parseEgressAllow(config.SLUICE_EGRESS_ALLOW),
    connectTimeoutMs: config.SLUICE_CONNECT_TIMEOUT,
    callsMax: config.SLUICE_CONNECTIONS,
    // No client waits for a worker's event loop.
    answerBytesPerSecond: app.role === 'sender' ? config.SLUICE_BODY_RATE_MAX : undefined,
  });
  const traffic = createTraffic({
    clock: steadyClock,
    wallClock: systemClock,
    random: Math.random,
    inFlightMax: config.SLUICE_CALLS_PER_CREDENTIAL,
    waitingMax: config.SLUICE_PROVIDER_QUEUE,
    waitMsMax: config.SLUICE_PROVIDER_QUEUE_WAIT,
  });
  const sharedCircuits = createSharedCircuits({ db, circuits: traffic.circuits, clock: steadyClock, logger });
  const answerThreads = createAnswerThreads({
    threads: config.SLUICE_CHECK_THREADS,
    leaseBytesMax: memory.leaseBytesMax,
  });
  const textJudge = createTextJudge({
    threads: config.SLUICE_CHECK_THREADS,
    // Without a limit in a worker: the number of its calls is bounded, and lines should wait rather than fail.
    ...(app.role === 'sender' ? { waitingMax: checksWaitingMax } : {}),
  });
  const answerTexts = createAnswerTexts({ threads: config.SLUICE_CHECK_THREADS });
  const guardrails = createGuardrails({
    egress,
    clock: systemClock,
    logger,
    textJudge,
    answerTexts,
    recordFeedback: feedbackWriter(db, logger),
  });
  const responseCache = createResponseCache({
    stored: createStoredAnswers(db),
    clock: databaseClock,
    logger,
    memoryBytesMax: config.SLUICE_CACHE_MEMORY,
  });
  const stopping = new AbortController();
  const secretManagers = createSecretManagers({
    send: createSend({ egress, signal: stopping.signal }),
    checkDestination: egress.check,
    readVariable,
    folder: config.SLUICE_SECRETS_FOLDER ?? null,
    kubernetes: {
      tokenFile: config.SLUICE_SECRETS_KUBERNETES_TOKEN,
      vaults: config.SLUICE_SECRETS_KUBERNETES_VAULTS,
    },
    now: () => systemClock.now(),
    monotonicMs: () => performance.now(),
  });
  const secretCache = createSecretCache({
    fetch: (reference) => secretManagers.fetch(reference),
    logger,
    ttlMs: config.SLUICE_SECRETS_TTL,
    staleMs: config.SLUICE_SECRETS_STALE,
    now: () => performance.now(),
    random: Math.random,
  });
  const access = createAccess({
    db,
    databaseClock,
    connectionString,
    masterKey: config.SLUICE_MASTER_KEY,
    staleAfterMs: config.SLUICE_KEYS_STALE_AFTER,
    onCredentialsChanged(changed) {
      for (const { id } of changed) traffic.credentialChanged(id);
      app.onCredentialsChanged?.(changed);
    },
    logger,
    checkDestination: egress.check,
    memory,
    promptLimits: { outputCharsMax: config.SLUICE_PROMPT_OUTPUT_MAX, cacheSizeMax: config.SLUICE_PROMPT_CACHE },
    secretCache,
  });
  const pricing = createPricing({
    table: createCurrentPriceTable(() => access.snapshot.live(priceTableKind), builtInPrices),
    adjustmentsOf({ workspaceId, integration }) {
      const { snapshot } = access;
      const own = integration === null ? null : snapshot.findIntegration(workspaceId, integration)?.prices;
      const prices = snapshot.live<LiveWorkspace>(workspaceKind).byId.get(workspaceId)?.prices;
      return [...(own ? [own] : []), ...(prices ? [prices] : [])];
    },
  });
  const alertWebhook = alertWebhookOf(config);
  const alerts = createAlertRecorder({ eventLog, logger, queue: alertWebhook && queue });
  const limits = createLimits({
    store: createCounterStore({ db, countersPerLimitMax: config.SLUICE_LIMIT_ENTITIES_MAX }),
    clock: databaseClock,
    logger,
    onAlertDue: alerts.onAlertDue,
  });
  const limitedKinds = resourceKinds.filter((kind) => kind.limits !== undefined);
  const limitRulesOf = createLimitRules({
    version: () => access.snapshot.version(),
    records: () => [
      ...limitedKinds.map((kind) => access.snapshot.live(kind).records),
      access.snapshot.integrationLimits(),
    ],
  });
  const admission = createLimitAdmission({
    limits,
    rulesOf: limitRulesOf,
    amounts: createUsedAmounts(pricing),
    clock: databaseClock,
    unpriced: config.SLUICE_UNPRICED_CALLS,
  });
  const storedObjects = createStoredObjects({ owners: createObjectOwners(db), logger });
  const calls = createCalls({
    egress,
    admission,
    traffic,
    guardrails,
    responseCache,
    storedObjects,
    search: textJudge.search,
    renderPrompt: (query, pins) => access.prompts.render(query, pins),
    threads: answerThreads,
    clock: systemClock,
    steadyClock,
    random: Math.random,
    limits: { jsonBytesMax: config.SLUICE_RESPONSE_MAX },
    timeouts: {
      connectMs: config.SLUICE_CONNECT_TIMEOUT,
      headersMs: config.SLUICE_HEADERS_TIMEOUT,
      idleMs: config.SLUICE_IDLE_TIMEOUT,
      totalMs: config.SLUICE_TOTAL_TIMEOUT,
    },
    logger,
  });
  const callMetrics = createCallMetrics();
  const requestLog = createRequestLog({
    app: app.name,
    db,
    pool,
    logger,
    clock: systemClock,
    observe: callMetrics.observe,
    queueRowsMax: config.SLUICE_REQUEST_LOG_QUEUE,
    disk:
      config.SLUICE_REQUEST_LOG_DISK === 0
        ? undefined
        : { folder: path.join(blobFolder(config), 'request-log'), bytesMax: config.SLUICE_REQUEST_LOG_DISK },
  });
  const files = createFiles({ db, eventLog, blobs });
  const wait = createDatabaseWait({ connectionString, logger, waitMsMax: config.SLUICE_DATABASE_WAIT });
  return {
    pool,
    db,
    databaseClock,
    eventLog,
    queue,
    blobs,
    access,
    secretManagers,
    secretCache,
    files,
    egress,
    calls,
    storedObjects,
    search: textJudge.search,
    traffic,
    responseCache,
    requestLog,
    callMetrics,
    telemetry,
    pricing,
    limitRulesOf,
    costs: createCallCosts(pricing),
    admission,
    limits: { stats: () => limits.stats(), refused: admission.refused, alerts: alerts.recorded },
    alertWebhook,
    memory,
    parts: [
      { name: 'database pool', stop: () => db.destroy() },
      wait.part,
      // Before anything reads a table. If several processes start together, one migrates and the others wait.
      wait.outlasting({
        name: 'migrations',
        start: async (signal) => void (await migrate({ connectionString, logger, signal })),
      }),
      wait.outlasting({ name: 'epoch of the event log', start: () => startEpoch(db, logger) }),
      wait.outlasting({ name: 'blob store', start: () => requireOwnBlobStore(db, blobs) }),
      wait.outlasting({ name: 'master key', start: () => access.checkMasterKey() }),
      { name: 'egress', stop: () => egress.stop() },
      secretPart(secretCache, stopping),
      { name: 'guardrail threads', stop: () => textJudge.stop() },
      { name: 'guarded answer threads', stop: () => answerTexts.stop() },
      { name: 'answer threads', stop: () => answerThreads.stop() },
      { name: 'telemetry', stop: () => telemetry?.stop() },
      requestLog,
      { name: 'response cache', stop: () => responseCache.stop() },
      sharedCircuits,
      wait.outlasting(access.snapshot),
      limits,
      { name: 'calls to providers', stop: () => calls.stop() },
    ],
    queuePart: wait.outlasting(queue),
    outlastingOutages: wait.outlasting,
  };
}

const sweepSecretsMs = 60_000;

/** Forgets secrets that are no longer used, and ends the fetches that are under way when the process stops. */
function secretPart(cache: SecretCache, stopping: AbortController): Part {
  let timer: NodeJS.Timeout | undefined;
  return {
    name: 'secret managers',
    start() {
      timer = setInterval(() => cache.sweep(), sweepSecretsMs);
    },
    stop() {
      clearInterval(timer);
      stopping.abort();
    },
  };
}

/** Feedback of guardrails is written beside their calls, this many at once; what comes beyond is dropped, and the log says so. */
const feedbackWritesMax = 20;

function feedbackWriter(db: Kysely<Database>, logger: Logger) {
  let running = 0;
  return (workspaceId: string, feedback: GuardrailFeedback): void => {
    if (running >= feedbackWritesMax)
      return logger.warn({ running }, 'feedback of a guardrail dropped: too much at once');
    running += 1;
    recordFeedback(db, workspaceId, [feedback], { source: 'guardrail', keyId: null })
      .catch((error: unknown) => logger.warn({ err: error }, 'feedback of a guardrail cannot be stored'))
      .finally(() => {
        running -= 1;
      });
  };
}

/** Starts a new epoch if the log was restored into another cluster. */
async function startEpoch(db: Kysely<Database>, logger: Logger): Promise<void> {
  const epoch = await raiseEpochAfterRestore(db);
  if (epoch !== null)
    logger.warn({ epoch }, 'the database was restored into another cluster: the event log has a new epoch');
}

/**
 * Checks that the blob store belongs to this database. The first process records the store's id; a process with another
 * store throws ConfigurationError, because files of one store would be missing in the other.
 */
async function requireOwnBlobStore(db: Kysely<Database>, blobs: BlobStore): Promise<void> {
  const value = await blobs.storeId();
  await db
    .insertInto('installation')
    .values({ name: 'blob_store_id', value })
    .onConflict((on) => on.doNothing())
    .execute();
  const row = await db
    .selectFrom('installation')
    .select('value')
    .where('name', '=', 'blob_store_id')
    .executeTakeFirstOrThrow();
  if (row.value === value) return;
  throw new ConfigurationError(
    `This blob store (${value}) does not belong to the database, which uses ${row.value}. Give every api and worker ` +
      'process the same SLUICE_BLOBS, and a copied database its own copy of the store.',
  );
}
