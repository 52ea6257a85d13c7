import type { Kysely } from 'kysely';
import type { BlobStore } from '#libs/blobs/blob-store.ts';
import { createDatabaseClock } from '#libs/database/database-clock.ts';
import { createDatabase, createPool } from '#libs/database/pool.ts';
import { migrate } from '#libs/database/migrate.ts';
import { createDatabaseWait } from '#libs/database/wait-for-database.ts';
import type { Database } from '#libs/database/schema.ts';
import { raiseEpochAfterRestore } from '#libs/event-log/epoch.ts';
import { createEventLog } from '#libs/event-log/event-log.ts';
import { createFiles } from '#libs/files/files.ts';
import { parseEgressAllow } from '#libs/calls/upstream/egress/egress-allow.ts';
import { createEgress } from '#libs/calls/upstream/egress/egress.ts';
import { steadyClock, systemClock } from '#libs/kernel/clock.ts';
import { ConfigurationError } from '#libs/kernel/read-env.ts';
import type { Part } from '#libs/kernel/lifecycle.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import { createMemoryBudget } from '#libs/kernel/sharing/memory-budget.ts';
import { createJobQueue } from '#libs/queue/job-queue.ts';
import { createCallMetrics } from '#libs/request-log/record/call-metrics.ts';
import { createRequestLog, type RequestLog } from '#libs/request-log/write/request-log.ts';
import { createSharedLimits } from '#libs/calls/protect/traffic/shared-limits.ts';
import { createSharedCircuits } from '#libs/calls/protect/traffic/shared-circuits.ts';
import { createTraffic } from '#libs/calls/protect/traffic/traffic.ts';
import type { AccessSnapshotOptions } from '#libs/snapshot/access-snapshot.ts';
import { createAccess } from './access.ts';
import { openBlobs, rowDisk } from './blobs.ts';
import { createJobSpans } from './operations/job-spans.ts';
import { allQueues } from './queues.ts';
import { recordStart } from './operations/record-start.ts';
import { createAuditKeys } from '#libs/seal/audit-keys.ts';
import { auditFolder } from '#libs/seal/seal-log.ts';
import { parseMasterKeys } from '#libs/secrets/master-key.ts';
import { createTelemetry } from './operations/telemetry.ts';
import { composeCalls } from './compose-calls.ts';
import { composeLimits } from './compose-limits.ts';
import { composeSecrets } from './compose-secrets.ts';
import { sessionUrl } from './config.ts';
import type { Platform, PlatformConfig } from './platform.ts';

type PlatformApp = {
  name: string;
  role: 'sender' | 'worker';
  /** How long the queue waits for its handlers when it is stopped. */
  queueStopMs: number;
  onCredentialsChanged?: AccessSnapshotOptions['onCredentialsChanged'];
  /** Whether `npm start` started the process. By default, this is known from the channel to its parent. */
  isStandalone?: boolean | undefined;
  /** How long a jump ahead of the database's clock is doubted. Tests shorten it. */
  believedAfterMs?: number | undefined;
};

/** Creates the platform. Nothing reads the database before it is started. */
export async function createPlatform(config: PlatformConfig, app: PlatformApp, logger: Logger): Promise<Platform> {
  const addresses = { connectionString: config.DATABASE_URL, directUrl: config.SLUICE_DATABASE_DIRECT_URL };
  const pool = createPool(
    { ...addresses, applicationName: `sluice-${app.name}`, max: config.SLUICE_DB_POOL_MAX },
    logger,
  );
  const db = createDatabase(pool);
  const databaseClock = createDatabaseClock({
    ownTime: () => steadyClock.now(),
    monotonicMs: () => performance.now(),
    believedAfterMs: app.believedAfterMs,
  });
  const eventLog = createEventLog(db);
  const memory = createMemoryBudget(config.SLUICE_MEMORY_MAX);
  const blobs = await openBlobs(config, { reservedBytes: config.SLUICE_DISK_RESERVE, memory });
  const telemetry = await createTelemetry(config, { app: app.name, logger });
  const onJobEnded = telemetry === null ? undefined : createJobSpans({ db, telemetry, logger });
  const queue = createJobQueue({
    // A worker listens for jobs, and its heartbeats must not wait for a pooler.
    connectionString: app.role === 'worker' ? sessionUrl(config) : config.DATABASE_URL,
    role: app.role,
    queues: allQueues,
    logger,
    poolSizeMax: app.role === 'worker' ? 4 : 2,
    stopDeadlineMs: app.queueStopMs,
    onJobEnded,
  });
  const { egress, traffic } = composeNetwork(config, app.role);
  const sharedCircuits = createSharedCircuits({ db, circuits: traffic.circuits, clock: steadyClock, logger });
  const sharedLimits = createSharedLimits({ db, lanes: traffic.lanes, clock: steadyClock, logger });
  const { secretManagers, secretCache, secretParts } = composeSecrets(config, egress, logger);
  const access = createAccess({
    db,
    databaseClock,
    listenUrl: sessionUrl(config),
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
  const { limitsPart, ...limiting } = composeLimits(config, { db, access, databaseClock, eventLog, queue }, logger);
  const { threads, ...calling } = composeCalls(
    config,
    { role: app.role, db, databaseClock, egress, traffic, memory, access, admission: limiting.admission },
    logger,
  );
  const callMetrics = createCallMetrics();
  const requestLog = composeRequestLog(config, app.name, { db, pool, blobs, callMetrics }, logger);
  const files = createFiles({ db, eventLog, blobs });
  const wait = createDatabaseWait({ ...addresses, logger, waitMsMax: config.SLUICE_DATABASE_WAIT });
  return {
    ...limiting,
    ...calling,
    pool,
    db,
    databaseClock,
    eventLog,
    onJobEnded,
    queue,
    blobs,
    audit: composeAudit(config, blobs),
    access,
    secretManagers,
    secretCache,
    files,
    egress,
    traffic,
    requestLog,
    callMetrics,
    telemetry,
    memory,
    parts: [
      { name: 'database pool', stop: () => db.destroy() },
      wait.part,
      ...storageParts({ connectionString: sessionUrl(config), db, blobs, logger }).map(wait.outlasting),
      wait.outlasting({ name: 'master key', start: () => access.checkMasterKey() }),
      wait.outlasting({ name: 'record of the start', start: () => recordStart(eventLog, app, config) }),
      { name: 'egress', stop: () => egress.stop() },
      ...secretParts,
      ...threads,
      { name: 'telemetry', stop: () => telemetry?.stop() },
      requestLog,
      { name: 'response cache', stop: () => calling.responseCache.stop() },
      sharedCircuits,
      sharedLimits,
      wait.outlasting(access.snapshot),
      limitsPart,
      { name: 'calls to providers', stop: () => calling.calls.stop() },
    ],
    queuePart: wait.outlasting(queue),
    outlastingOutages: wait.outlasting,
  };
}

/** The name of a log is unique without a setting: it contains the ID of the blob store. */
const composeAudit = (config: PlatformConfig, blobs: BlobStore): Platform['audit'] => ({
  folder: blobs.folder(auditFolder),
  keys: createAuditKeys(parseMasterKeys(config.SLUICE_MASTER_KEY), config.SLUICE_AUDIT_KEY),
  name: async () => config.SLUICE_AUDIT_ORIGIN ?? `sluice/${await blobs.storeId()}`,
});

function composeNetwork(config: PlatformConfig, role: PlatformApp['role']) {
  const egress = createEgress({
    allow: parseEgressAllow(config.SLUICE_EGRESS_ALLOW),
    connectTimeoutMs: config.SLUICE_CONNECT_TIMEOUT,
    callsMax: config.SLUICE_CONNECTIONS,
    // No client waits for a worker's event loop.
    answerBytesPerSecond: role === 'sender' ? config.SLUICE_BODY_RATE_MAX : undefined,
  });
  const traffic = createTraffic({
    clock: steadyClock,
    wallClock: systemClock,
    random: Math.random,
    inFlightMax: config.SLUICE_CALLS_PER_CREDENTIAL,
    waitingMax: config.SLUICE_PROVIDER_QUEUE,
    waitMsMax: config.SLUICE_PROVIDER_QUEUE_WAIT,
    hasCapacity: createCapacityCheck(),
  });
  return { egress, traffic };
}

/** Above this utilisation of the event loop, further calls would only make the others slower. */
const busyShare = 0.75;

/** Returns whether the event loop was not busy since the last call at least a step of the learned limits ago. */
function createCapacityCheck(): () => boolean {
  let last = performance.eventLoopUtilization();
  let measuredMs = performance.now();
  let hasCapacity = true;
  return () => {
    if (performance.now() - measuredMs < 200) return hasCapacity;
    hasCapacity = performance.eventLoopUtilization(last).utilization < busyShare;
    last = performance.eventLoopUtilization();
    measuredMs = performance.now();
    return hasCapacity;
  };
}

const composeRequestLog = (
  config: PlatformConfig,
  app: string,
  { db, pool, blobs, callMetrics }: Pick<Platform, 'db' | 'pool' | 'blobs' | 'callMetrics'>,
  logger: Logger,
): RequestLog =>
  createRequestLog({
    app,
    db,
    pool,
    logger,
    clock: systemClock,
    observe: callMetrics.observe,
    queueRowsMax: config.SLUICE_REQUEST_LOG_QUEUE,
    disk:
      config.SLUICE_REQUEST_LOG_DISK === 0
        ? undefined
        : { ...rowDisk(config, blobs), bytesMax: config.SLUICE_REQUEST_LOG_DISK },
  });

/** Prepares the database before anything reads a table. If several processes start together, one migrates and the others wait. */
const storageParts = ({
  connectionString,
  db,
  blobs,
  logger,
}: Pick<Platform, 'db' | 'blobs'> & { connectionString: string; logger: Logger }): Part[] => [
  { name: 'migrations', start: async (signal) => void (await migrate({ connectionString, logger, signal })) },
  { name: 'epoch of the event log', start: () => startEpoch(db, logger) },
  { name: 'blob store', start: () => requireOwnBlobStore(db, blobs) },
];

/** Starts a new epoch if the log was restored into another cluster. */
async function startEpoch(db: Kysely<Database>, logger: Logger): Promise<void> {
  const epoch = await raiseEpochAfterRestore(db);
  if (epoch !== null)
    logger.warn({ epoch }, 'the database was restored into another cluster; the event log started a new epoch');
}

/**
 * Checks that the blob store belongs to this database. The first process records the store's ID; a process with another
 * store throws ConfigurationError, because files of one store would be missing in the other. Nothing is created in an
 * unmounted volume.
 */
async function requireOwnBlobStore(db: Kysely<Database>, blobs: BlobStore): Promise<void> {
  const known = db.selectFrom('installation').select('value').where('name', '=', 'blob_store_id');
  if ((await known.executeTakeFirst()) === undefined) {
    await db
      .insertInto('installation')
      .values({ name: 'blob_store_id', value: await blobs.storeId() })
      .onConflict((on) => on.doNothing())
      .execute();
  }
  const [{ value }, found] = [await known.executeTakeFirstOrThrow(), await blobs.findId()];
  if (found === value) return;
  throw new ConfigurationError(
    `This blob store (${found ?? 'an empty one'}) does not belong to the database, which uses ${value}. Give every api and worker ` +
      'process the same SLUICE_BLOBS, and give a copied database its own copy of the store.',
  );
}
