import { Gauge } from 'prom-client';
import { listActiveCredentials } from '#libs/resources/virtual-keys/virtual-keys.ts';
import { bootstrap } from '#libs/people/bootstrap.ts';
import { keepVirtualKey, keepVirtualKeys } from '#libs/resources/virtual-keys/kept-virtual-key.ts';
import { mayTakeRole, tenantRole } from '#libs/database/isolate-workspaces.ts';
import { createWorkspaceDatabase } from '#libs/database/workspace-database.ts';
import type { RefusalLog } from '#libs/people/refusal-log.ts';
import { sessionKind } from '#libs/people/sessions.ts';
import type { Caller } from '#libs/http/caller.ts';
import { createRunQuery } from '#libs/analytics/run-query.ts';
import { createBatchFileValidator } from '#libs/validation/batch-file-validator.ts';
import { createBatches } from '#libs/batches/batches.ts';
import { createEventLog } from '#libs/event-log/event-log.ts';
import { pageBytesMax } from '#libs/event-log/read-events.ts';
import { createFineTuningJobs } from '#libs/fine-tuning/fine-tuning-jobs.ts';
import { admitUpload, createFiles } from '#libs/files/files.ts';
import { createUploads } from '#libs/files/uploads.ts';
import { createHttpApp } from '#libs/http/create-http-app.ts';
import { createHttpServer } from '#libs/http/http-server.ts';
import { defaultJsonBodyLimits, type JsonBodyLimits } from '#libs/http/bodies/json-body.ts';
import { defaultUploadRate } from '#libs/http/bodies/watch-upload-rate.ts';
import { createMetrics } from '#libs/http/metrics.ts';
import { createPageReads } from '#libs/http/answers/page-reads.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { Part } from '#libs/kernel/lifecycle.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import type { MemoryBudget } from '#libs/kernel/memory-budget.ts';
import { Secret } from '#libs/kernel/logging/secret.ts';
import { createBytePace } from '#libs/kernel/byte-pace.ts';
import { createTurns } from '#libs/kernel/turns.ts';
import { createReadinessCheck, type Phase } from '../platform/operations/check-readiness.ts';
import { createPlatform, type Platform } from '../platform/compose.ts';
import { createBodyRecorder } from '#libs/request-log/bodies/body-recorder.ts';
import { registerBodyMetrics, registerPlatformMetrics } from '../platform/operations/metrics.ts';
import { createOperationsListener } from '../platform/operations/operations-listener.ts';
import type { ApiConfig } from './config.ts';
import { createBrowserSessions, type BrowserSessions } from './organisation/browser-sessions.ts';
import { createKeyGuard, type KeyGuard } from './organisation/guard-keys.ts';
import { createLargeBodies } from './server/large-bodies.ts';
import { createRoutes } from './routes.ts';
import type { SessionDeps } from './organisation/session-routes.ts';
import { createEventStreams } from '#libs/activity/event-streams.ts';
import { newestLogs } from '#libs/request-log/read/read-log.ts';
import { createSignIn } from './organisation/sign-in.ts';

export type ApiProcess = {
  parts: Part[];
  platform: Platform;
  /** Records refused requests as events. */
  refusals: RefusalLog;
  /** The address it listens on, once it has started. */
  url: () => string;
};

/** Composes the API process. Its parts are in start order. */
export async function composeApi(config: ApiConfig, logger: Logger): Promise<ApiProcess> {
  const platform = await createPlatform(config, { name: 'api', role: 'sender', queueStopMs: 1_000 }, logger);
  const { db, eventLog, queue, blobs, access, egress, calls, requestLog, costs, memory } = platform;
  const metrics = createMetrics();
  registerPlatformMetrics(metrics.registry, platform);
  // What requests read and write goes through `requestDb`. The rest of the process serves all workspaces at once, and uses `db`.
  let isIsolated = true;
  const requestDb = createWorkspaceDatabase(platform.pool, () => isIsolated);
  const commands = createEventLog(requestDb);
  const isolation: Part = {
    name: 'isolation of workspaces',
    async start() {
      isIsolated = await mayTakeRole(db);
      if (!isIsolated) logger.warn({ role: tenantRole }, notIsolated);
    },
  };
  const isolationGauge: Gauge = new Gauge({
    name: 'sluice_workspace_isolation',
    help: '1 if the database isolates workspaces beside the queries; 0 if the role sluice_tenant is missing.',
    registers: [metrics.registry],
    collect: () => isolationGauge.set(isIsolated ? 1 : 0),
  });
  const batches = createBatches({
    db: requestDb,
    eventLog: commands,
    queue,
    expiresAfterMs: config.SLUICE_BATCH_EXPIRY,
    limits: { openBatchesMax: config.SLUICE_OPEN_BATCHES_MAX, queuedLinesMax: config.SLUICE_QUEUED_LINES_MAX },
    releaseTarget: (unit, batch) => access.batchTargets.release(unit, batch.target),
  });
  const fineTuningJobs = createFineTuningJobs({
    db: requestDb,
    eventLog: commands,
    queue,
    releaseTarget: (unit, target) => access.fineTuningTargets.release(unit, target),
  });
  const bodyRecorder = createBodyRecorder({
    db,
    blobs,
    secrets: access.secrets,
    clock: platform.databaseClock,
    logger,
    retentionMs: config.SLUICE_RECORDING_RETENTION,
    workspaceBytesMax: config.SLUICE_RECORDING_MAX,
  });
  registerBodyMetrics(metrics.registry, bodyRecorder);
  let phase: Phase = 'starting';
  let port = config.PORT;
  const url = (): string => `http://${config.HOST.includes(':') ? `[${config.HOST}]` : config.HOST}:${port}`;
  const publicUrl = (): string => config.SLUICE_PUBLIC_URL ?? url();
  const { secrets, snapshot } = access;
  const { SLUICE_OPERATIONS_PORT: operationsPort, SLUICE_OPERATIONS_HOST: operationsHost = config.HOST } = config;
  const checkReadiness = createReadinessCheck({ db, snapshot, phase: () => phase });
  const uploadRate = { ...defaultUploadRate, bytesPerSecondMin: config.SLUICE_UPLOAD_RATE_MIN };
  const largeBodies = createLargeBodies({ threads: config.SLUICE_CHECK_THREADS });
  const jsonBody: JsonBodyLimits = {
    ...defaultJsonBodyLimits,
    sizeBytesMax: config.SLUICE_BODY_MAX,
    memory,
    largeBodies,
  };
  // One thread, which ends when it is idle: live calls come first.
  const validator = createBatchFileValidator({ threads: 1 });
  const signIn = createSignIn({ config, snapshot, eventLog, egress, clock: platform.databaseClock, logger });
  const keys = createKeyGuard({
    config,
    snapshot,
    tokens: signIn?.tokens ?? null,
    eventLog,
    clock: platform.databaseClock,
    registry: metrics.registry,
    logger,
  });
  const isLiveSession = (id: string): boolean => snapshot.live(sessionKind).byId.has(id);
  const browserSessions = createBrowserSessions({
    sessions: access.sessions,
    isLive: isLiveSession,
    clock: platform.databaseClock,
    ttlMs: config.SLUICE_SESSION_TTL,
    isSecure: config.SLUICE_PUBLIC_URL?.startsWith('https:') === true,
  });
  const authenticate = createAuthentication({
    isStarting: () => phase === 'starting',
    keys,
    browserSessions,
    snapshot,
    isLiveSession,
  });
  const eventStreams = createEventStreams({
    db,
    logger,
    newestLogs,
    accessVersion: snapshot.version,
    streamsMax: config.SLUICE_EVENT_STREAMS_MAX,
    workspaceStreamsMax: config.SLUICE_EVENT_STREAMS_OF_WORKSPACE,
  });
  const heavyReads = createTurns(
    { runningMax: config.SLUICE_ANALYTICS_QUERIES, waitingMax: config.SLUICE_ANALYTICS_WAITING },
    'searches and analytics queries',
  );
  const { SLUICE_SIMULATOR_URL: simulatorUrl } = config;
  const simulator = simulatorUrl === undefined ? undefined : { ...simulatorKey, customHost: simulatorUrl };
  const files = createFiles({ db: requestDb, eventLog: commands, blobs });
  const routes = createRoutes({
    db: requestDb,
    clock: platform.databaseClock,
    access,
    runQuery: createRunQuery({
      db: requestDb,
      now: () => platform.databaseClock.now(),
      turns: heavyReads,
      timeoutMs: config.SLUICE_ANALYTICS_TIMEOUT,
    }),
    resources: {
      db: requestDb,
      eventLog: commands,
      secrets,
      snapshot,
      clock: platform.databaseClock,
      checkDestination: egress.check,
      secretManagers: platform.secretManagers,
      promptLimits: { versionBytesMax: config.SLUICE_PROMPT_MAX, recordsMax: config.SLUICE_PROMPTS_MAX },
      recordLimits: {
        recordsMax: config.SLUICE_RECORDS_MAX,
        apiKeysMax: config.SLUICE_API_KEYS_MAX,
        memoryBytesMax: config.SLUICE_RECORDS_MEMORY_MAX,
      },
      people: {
        usersMax: config.SLUICE_USERS_MAX,
        invitesMax: config.SLUICE_INVITES_MAX,
        membersMax: config.SLUICE_MEMBERS_MAX,
        inviteTtlMs: config.SLUICE_INVITE_TTL,
        inviteLink: (token) => inviteLink(token, config.SLUICE_INVITE_URL, publicUrl()),
        slowGuesses: keys.slowGuesses,
      },
      policiesMax: config.SLUICE_POLICIES_MAX,
      virtualKeyOfAll: simulator,
      recordPages: createPageReads({
        memory,
        bytesMax: pageBytesMax,
        // Most lists are small and frequent: they are charged for what they are when that is known.
        reservedBytes: 65_536,
        turns: createTurns({ runningMax: 4, waitingMax: 64 }, 'lists of records'),
      }),
    },
    virtualKeySlugs: async (workspaceId) =>
      (await listActiveCredentials(requestDb, workspaceId)).map(({ slug }) => slug),
    batches,
    dryRuns: {
      validator,
      pricing: platform.pricing,
      rulesOf: platform.limitRulesOf,
      virtualKeys: (workspaceId) => listActiveCredentials(requestDb, workspaceId),
      limits: { linesMax: config.SLUICE_BATCH_LINES_MAX ?? null },
    },
    fineTuningJobs,
    admission: platform.admission,
    files,
    uploads: createUploads({
      db: requestDb,
      eventLog: commands,
      blobs,
      files,
      storedBytesMax: config.SLUICE_STORED_MAX,
    }),
    blobs,
    queue,
    exports: { runningMax: config.SLUICE_EXPORTS_RUNNING_MAX, linkTtlMs: config.SLUICE_EXPORT_LINK_TTL },
    calls,
    storedObjects: platform.storedObjects,
    search: platform.search,
    metrics: operationsPort === undefined ? metrics : undefined,
    checkReadiness,
    logger,
    liveDeps: {
      routing: access.routing,
      calls,
      requestLog,
      costs,
      bodies: bodyRecorder,
      telemetry: platform.telemetry,
      stallTimeoutMs: config.SLUICE_CLIENT_STALL_TIMEOUT,
      logger,
    },
    jsonBody,
    formModel: { readBytesMax: config.SLUICE_FORM_READ_MAX, rate: uploadRate, memory },
    uploadBytesMax: config.SLUICE_UPLOAD_MAX,
    uploadRate,
    stallTimeoutMs: config.SLUICE_CLIENT_STALL_TIMEOUT,
    admitUpload: (workspaceId) => admitUpload(requestDb, workspaceId, config.SLUICE_STORED_MAX),
    baseUrl: publicUrl,
    browserSessions,
    onRefusedSignIn: keys.onRefusedSignIn,
    authenticate,
    eventStreams,
    searches: heavyReads,
    // Each reads a whole input file, for 20 s at most; the validation thread is one.
    fileReads: createTurns({ runningMax: 3, waitingMax: 2 }, 'dry runs and retries of batches'),
    ...createEventPages(memory, config.SLUICE_EVENT_STREAMS_OF_WORKSPACE),
  });
  const app = createHttpApp({
    routes,
    authenticate,
    logger,
    observe: metrics.observeRequest,
    clientAddress: keys.clientAddress,
    onForbidden: keys.onForbidden,
    jsonBody,
    bodyBytesPerSecond: config.SLUICE_BODY_RATE_MAX,
    cors: config.SLUICE_CORS_ORIGINS,
  });
  const server = createHttpServer(app, { stallTimeoutMs: config.SLUICE_CLIENT_STALL_TIMEOUT });
  const operations = createOperationsListener({
    title: 'Sluice API',
    metrics,
    checkReadiness,
    logger,
    port: operationsPort,
    host: operationsHost,
  });
  // Starts first, so that a port in use is reported at once and a liveness probe passes while the database is waited for.
  const listener: Part = {
    name: 'http listener',
    async start() {
      ({ port } = await server.listen({ port: config.PORT, host: config.HOST }));
      logger.info({ url: url() }, 'starting');
    },
    stop: () => server.stop(config.SLUICE_STOP_DEADLINE),
  };
  const acceptance: Part = {
    name: 'calls',
    start() {
      phase = 'ok';
      logger.info({ url: url() }, 'listening');
    },
    async stop() {
      const wasReady = phase === 'ok';
      phase = 'stopping';
      await server.stop(config.SLUICE_STOP_DEADLINE, wasReady ? config.SLUICE_STOP_DELAY : 0);
    },
  };
  const firstKey = createFirstKey({ config, db, eventLog, access, simulator });
  const parts = [
    operations,
    listener,
    ...platform.parts,
    platform.outlastingOutages(isolation),
    platform.queuePart,
    platform.outlastingOutages(firstKey),
    keys.refusals,
    ...(signIn === null ? [] : [signIn.keys]),
    { name: 'body threads', stop: () => largeBodies.stop() },
    { name: 'validation thread', stop: () => validator.stop() },
    bodyRecorder,
    acceptance,
    // Stops first: the server would wait for streams that never end.
    eventStreams,
  ];
  return { parts, platform, refusals: keys.refusals, url };
}

/** Authenticates requests by a key, a token or the cookie of a session. */
function createAuthentication({
  isStarting,
  keys,
  browserSessions,
  snapshot,
  isLiveSession,
}: {
  isStarting: () => boolean;
  keys: Pick<KeyGuard, 'authenticate'>;
  browserSessions: BrowserSessions;
  snapshot: Platform['access']['snapshot'];
  isLiveSession: (id: string) => boolean;
}): SessionDeps['authenticate'] {
  /** Handles a session that this process does not know: it has just started elsewhere, or it has ended. */
  const ofLiveSession = async (session: string, caller: Caller | Promise<Caller>): Promise<Caller> => {
    const known = await caller;
    if (!snapshot.absent.has(session)) await snapshot.refresh();
    if (isLiveSession(session)) return known;
    snapshot.absent.add(session);
    throw new GatewayError('unauthenticated', 'session_ended', 'This session has ended. Sign in again.');
  };
  return (request) => {
    if (isStarting()) throw notStartedYet();
    browserSessions.admit(request);
    const caller = keys.authenticate(request);
    const session = browserSessions.sessionOf(request);
    return session === null || isLiveSession(session) ? caller : ofLiveSession(session, caller);
  };
}

type Simulator = Parameters<typeof keepVirtualKey>[2];

/** Creates the first workspace and key, and the virtual keys of the simulator. */
function createFirstKey({
  config,
  db,
  eventLog,
  access,
  simulator,
}: Pick<Platform, 'db' | 'eventLog' | 'access'> & { config: ApiConfig; simulator: Simulator | undefined }): Part {
  const deps = { db, eventLog, secrets: access.secrets };
  return {
    name: 'first key',
    async start() {
      const key = config.SLUICE_BOOTSTRAP_KEY;
      // Without a given key, an empty database stays empty: nobody would see a key that is generated here.
      const known = await db.selectFrom('resource').select('id').where('kind', '=', 'workspace').executeTakeFirst();
      if (key === undefined && known === undefined) return;
      const { workspaceId } = await bootstrap(
        { db, eventLog },
        key === undefined ? null : new Secret(key),
        config.SLUICE_OWNER_EMAIL,
      );
      if (simulator !== undefined) {
        await keepVirtualKey(deps, workspaceId, simulator);
        await keepVirtualKeys(deps, simulator);
      }
      await access.snapshot.refresh();
    },
  };
}

/**
 * Pages of events, and replays. A workspace reads one page of events at a time, and each of its open streams may want one.
 * Reading and writing a MiB takes 10 to 15 ms of the event loop, so at this pace a workspace takes a tenth of it for pages, and as
 * much for replays.
 */
function createEventPages(memory: MemoryBudget, workspaceStreamsMax: number) {
  const bytesMax = pageBytesMax;
  const bytesPerSecond = 8 * 1_048_576;
  const eventTurns = createTurns({ runningMax: 3, waitingMax: workspaceStreamsMax + 64 }, 'requests for events');
  const replayTurns = createTurns({ runningMax: 2, waitingMax: 16 }, 'replays');
  return {
    eventPages: createPageReads({ memory, bytesMax, turns: eventTurns, pace: createBytePace(bytesPerSecond) }),
    replays: createPageReads({ memory, bytesMax, turns: replayTurns, pace: createBytePace(bytesPerSecond) }),
  };
}

const notIsolated =
  'workspaces are isolated by the queries alone, and not by the database too: as a superuser, run "create role sluice_tenant ' +
  'nologin" and "grant sluice_tenant to" the role of DATABASE_URL, and restart (docs/deploy.md)';

const notStartedYet = (): GatewayError =>
  new GatewayError(
    'unavailable',
    'starting',
    'This process is starting. Try again shortly; /health/ready says what it waits for.',
    {
      retryAfterMs: 1_000,
    },
  );

const simulatorKey = {
  slug: 'simulator',
  provider: 'simulator',
  name: 'Simulator',
  note: 'Stands in for a provider, without network and without cost.',
  // Like a provider, it rejects calls without a key, but it accepts any key.
  key: new Secret('simulator'),
};

/** A page of the operator gets the token in the query. Ours gets it in the fragment, which no server and no proxy sees. */
function inviteLink(token: string, ownPage: string | undefined, publicUrl: string): string {
  if (ownPage === undefined) return `${publicUrl}/v1/admin/users/invites/accept#token=${token}`;
  const url = new URL(ownPage);
  url.searchParams.set('token', token);
  return url.href;
}
