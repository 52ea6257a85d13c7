import { Gauge, type Registry } from 'prom-client';
import { canAssumeTenantRole, tenantRole } from '#libs/database/isolate-workspaces.ts';
import { createWorkspaceDatabase } from '#libs/database/workspace-database.ts';
import type { FactLog } from '#libs/people/facts/fact-log.ts';
import { createBatchFileValidator } from '#libs/validation/batch-file-validator.ts';
import { createOutputChecker } from '#libs/validation/outputs/output-checker.ts';
import { createHttpApp } from '#libs/http/create-http-app.ts';
import { createHttpServer, type HttpServer } from '#libs/http/http-server.ts';
import { defaultJsonBodyLimits, type JsonBodyLimits } from '#libs/http/bodies/json-body.ts';
import { createMetrics } from '#libs/http/metrics.ts';
import type { Part } from '#libs/kernel/lifecycle.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import { createReadinessCheck, type Phase } from '../platform/operations/check-readiness.ts';
import { createPlatform } from '../platform/compose.ts';
import type { Platform } from '../platform/platform.ts';
import { createBodyRecorder } from '#libs/request-log/bodies/body-recorder.ts';
import { registerBodyMetrics, registerPlatformMetrics } from '../platform/operations/metrics.ts';
import { createOperationsListener } from '../platform/operations/operations-listener.ts';
import type { ApiConfig } from './config.ts';
import type { ParentLink } from './processes/parent-link.ts';
import { composeCallers } from './organisation/compose-callers.ts';
import { createFirstKey } from './organisation/first-key.ts';
import { createLargeBodies } from './server/large-bodies.ts';
import { createRouteDeps } from './route-deps.ts';
import { createRoutes } from './routes.ts';

export type ApiProcess = {
  parts: Part[];
  platform: Platform;
  /** Records refused requests, wrong keys and reads of contents as events. */
  facts: FactLog;
  /** The address that it listens on, once it has started. */
  url: () => string;
};

/**
 * Composes an API process: the only one, or one of several that have a link to their parent. Its parts are in start
 * order.
 */
export async function composeApi(config: ApiConfig, logger: Logger, link?: ParentLink): Promise<ApiProcess> {
  const app = { name: 'api', role: 'sender', queueStopMs: 1_000, isStandalone: link?.isStandalone } as const;
  const platform = await createPlatform(config, app, logger);
  const { db, access, memory } = platform;
  const metrics = createMetrics();
  registerPlatformMetrics(metrics.registry, platform);
  const isolation = composeIsolation(platform, metrics.registry, logger);
  const bodyRecorder = composeBodyRecorder(config, platform, metrics.registry, logger);
  let phase: Phase = 'starting';
  let port = config.PORT;
  const url = (): string => `http://${config.HOST.includes(':') ? `[${config.HOST}]` : config.HOST}:${port}`;
  const { SLUICE_OPERATIONS_PORT: operationsPort, SLUICE_OPERATIONS_HOST: operationsHost = config.HOST } = config;
  const checkReadiness = createReadinessCheck({ db, snapshot: access.snapshot, phase: () => phase });
  const largeBodies = createLargeBodies({ threads: config.SLUICE_CHECK_THREADS });
  const jsonBody: JsonBodyLimits = {
    ...defaultJsonBodyLimits,
    sizeBytesMax: config.SLUICE_BODY_MAX,
    memory,
    largeBodies,
  };
  // One thread each, which ends when it is idle: live calls come first.
  const validator = createBatchFileValidator({ threads: 1 });
  const outputs = createOutputChecker({ threads: 1 });
  const { registry } = metrics;
  const callers = composeCallers(config, platform, { isStarting: () => phase === 'starting', registry, logger });
  const { authenticate, keys } = callers;
  const routeDeps = createRouteDeps(config, platform, {
    db: isolation.db,
    callers,
    bodyRecorder,
    validator,
    outputs,
    jsonBody,
    metrics: operationsPort === undefined ? (link ?? metrics) : undefined,
    checkReadiness,
    publicUrl: () => config.SLUICE_PUBLIC_URL ?? url(),
    logger,
  });
  const httpApp = createHttpApp({
    routes: createRoutes(routeDeps),
    authenticate,
    logger,
    observe: metrics.observeRequest,
    clientAddress: keys.clientAddress,
    onRefused: keys.onRefused,
    jsonBody,
    bodyBytesPerSecond: config.SLUICE_BODY_RATE_MAX,
    cors: config.SLUICE_CORS_ORIGINS,
  });
  const server = createHttpServer(httpApp, { stallTimeoutMs: config.SLUICE_CLIENT_STALL_TIMEOUT });
  const operations = createOperationsListener({
    title: 'Sluice API',
    metrics,
    checkReadiness,
    logger,
    port: link === undefined ? operationsPort : undefined,
    host: operationsHost,
  });
  const listener = composeListener(config, server, {
    isShared: link !== undefined,
    onListening(found) {
      port = found;
      logger.info({ url: url() }, 'starting');
    },
  });
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
  link?.report({ registry, checkReadiness });
  const parts = [
    operations,
    // The listener starts first, so that a port in use is reported immediately and a liveness probe passes during the wait
    // for the database. One of several processes must not get calls of the others before it can serve them.
    ...(link === undefined ? [listener] : []),
    ...platform.parts,
    platform.outlastingOutages(isolation.part),
    platform.queuePart,
    platform.outlastingOutages(createFirstKey(config, platform)),
    ...callers.parts,
    { name: 'body threads', stop: () => largeBodies.stop() },
    { name: 'validation thread', stop: () => validator.stop() },
    { name: 'thread that checks schemas', stop: () => outputs.stop() },
    bodyRecorder,
    ...(link === undefined ? [] : [listener]),
    acceptance,
    // Stops first: the server would wait for streams that never end.
    routeDeps.eventStreams,
  ];
  return { parts, platform, facts: keys.facts, url };
}

function composeListener(
  { PORT: port, HOST: host, SLUICE_STOP_DEADLINE: stopMs }: ApiConfig,
  server: HttpServer,
  { isShared, onListening }: { isShared: boolean; onListening: (port: number) => void },
): Part {
  // Elsewhere, node:cluster shares the port.
  const reusePort = isShared && process.platform === 'linux';
  return {
    name: 'http listener',
    start: async () => onListening((await server.listen({ port, host, reusePort })).port),
    stop: () => server.stop(stopMs),
  };
}

function composeBodyRecorder(
  config: ApiConfig,
  { db, blobs, access, databaseClock: clock }: Platform,
  registry: Registry,
  logger: Logger,
) {
  const recorder = createBodyRecorder({
    db,
    blobs,
    secrets: access.secrets,
    clock,
    logger,
    retentionMs: config.SLUICE_RECORDING_RETENTION,
    workspaceBytesMax: config.SLUICE_RECORDING_MAX,
  });
  registerBodyMetrics(registry, recorder);
  return recorder;
}

/**
 * The database as requests use it: Postgres shows a statement only the rows of the caller's workspace, where the role for that
 * exists. The rest of the process serves all workspaces together and uses `platform.db`.
 */
function composeIsolation({ pool, db }: Platform, registry: Registry, logger: Logger) {
  let isIsolated = true;
  const part: Part = {
    name: 'isolation of workspaces',
    async start() {
      isIsolated = await canAssumeTenantRole(db);
      if (!isIsolated) logger.warn({ role: tenantRole }, notIsolated);
    },
  };
  const gauge: Gauge = new Gauge({
    name: 'sluice_workspace_isolation',
    help: '1 if the database also isolates workspaces, in addition to the queries; 0 if the role sluice_tenant is missing.',
    registers: [registry],
    collect: () => gauge.set(isIsolated ? 1 : 0),
  });
  return { db: createWorkspaceDatabase(pool, () => isIsolated), part };
}

const notIsolated =
  'workspaces are isolated only by the queries, not by the database; to enable both, run "create role sluice_tenant nologin" ' +
  'and "grant sluice_tenant to" the role of DATABASE_URL as a superuser, then restart (docs/deploy.md)';
