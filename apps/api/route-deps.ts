import { setBatchWeight } from '#libs/batches/chunks/turns.ts';
import { createRunQuery } from '#libs/analytics/run-query.ts';
import { createEventStreams } from '#libs/activity/event-streams.ts';
import { createBatches } from '#libs/batches/batch/batches.ts';
import type { Database } from '#libs/database/schema.ts';
import { createEventLog } from '#libs/event-log/event-log.ts';
import { pageBytesMax } from '#libs/event-log/read-events.ts';
import { admitUpload, createFiles } from '#libs/files/files.ts';
import { createUploads } from '#libs/files/uploads.ts';
import { createFineTuningJobs } from '#libs/fine-tuning/fine-tuning-jobs.ts';
import { createPageReads } from '#libs/http/answers/page-reads.ts';
import { defaultUploadRate } from '#libs/http/bodies/watch-upload-rate.ts';
import type { JsonBodyLimits } from '#libs/http/bodies/json-body.ts';
import { createBytePace } from '#libs/kernel/sharing/byte-pace.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import type { MemoryBudget } from '#libs/kernel/sharing/memory-budget.ts';
import { createTurns } from '#libs/kernel/sharing/turns.ts';
import type { createBodyRecorder } from '#libs/request-log/bodies/body-recorder.ts';
import { continueReplay } from '#libs/replays/replay-jobs.ts';
import { newestLogs } from '#libs/request-log/read/read-log.ts';
import { listActiveCredentials } from '#libs/resources/virtual-keys/virtual-keys.ts';
import type { BatchFileValidator } from '#libs/validation/batch-file-validator.ts';
import type { OutputChecker } from '#libs/validation/outputs/output-checker.ts';
import type { Kysely } from 'kysely';
import type { Platform } from '../platform/platform.ts';
import type { ApiConfig } from './config.ts';
import type { Callers } from './organisation/compose-callers.ts';
import { simulatorOf } from './organisation/first-key.ts';
import type { RouteDeps } from './routes.ts';

/** The dependencies of the routes in addition to the platform and the config. */
export type RouteParts = Pick<RouteDeps, 'metrics' | 'checkReadiness'> & {
  /** The database as the rows of one workspace. */
  db: Kysely<Database>;
  callers: Callers;
  bodyRecorder: ReturnType<typeof createBodyRecorder>;
  validator: BatchFileValidator;
  outputs: OutputChecker;
  jsonBody: JsonBodyLimits;
  publicUrl: () => string;
  logger: Logger;
};

/** Composes the dependencies of all routes. Their statements go through `parts.db`. */
export function createRouteDeps(config: ApiConfig, platform: Platform, parts: RouteParts): RouteDeps {
  const { db, callers, bodyRecorder, validator, outputs, publicUrl, logger } = parts;
  const { access, blobs, calls, databaseClock: clock, memory, pricing, queue } = platform;
  const eventLog = createEventLog(db);
  const files = createFiles({ db, eventLog, blobs });
  const uploadRate = { ...defaultUploadRate, bytesPerSecondMin: config.SLUICE_UPLOAD_RATE_MIN };
  const heavyReads = createTurns(
    { runningMax: config.SLUICE_ANALYTICS_QUERIES, waitingMax: config.SLUICE_ANALYTICS_WAITING },
    'searches and analytics queries',
  );
  const virtualKeys = (workspaceId: string) => listActiveCredentials(db, workspaceId);
  return {
    db,
    clock,
    access,
    runQuery: createRunQuery({
      db,
      now: () => clock.now(),
      turns: heavyReads,
      timeoutMs: config.SLUICE_ANALYTICS_TIMEOUT,
    }),
    resources: { ...recordDeps(config, platform, callers, publicUrl), db, eventLog },
    virtualKeySlugs: async (workspaceId) => (await virtualKeys(workspaceId)).map(({ slug }) => slug),
    batches: createBatches({
      db,
      eventLog,
      queue,
      expiresAfterMs: config.SLUICE_BATCH_EXPIRY,
      limits: { openBatchesMax: config.SLUICE_OPEN_BATCHES_MAX, queuedLinesMax: config.SLUICE_QUEUED_LINES_MAX },
      async releaseTarget(unit, batch) {
        await access.batchTargets.release(unit, batch.target);
        await continueReplay(queue, unit, batch);
      },
    }),
    dryRuns: {
      validator,
      outputs,
      pricing,
      rulesOf: platform.limitRulesOf,
      virtualKeys,
      limits: { linesMax: config.SLUICE_BATCH_LINES_MAX ?? null },
    },
    fineTuningJobs: createFineTuningJobs({
      db,
      eventLog,
      queue,
      releaseTarget: (unit, target) => access.fineTuningTargets.release(unit, target),
    }),
    admission: platform.admission,
    files,
    uploads: createUploads({ db, eventLog, blobs, files, storedBytesMax: config.SLUICE_STORED_MAX }),
    blobs,
    audit: platform.audit,
    queue,
    exports: { runningMax: config.SLUICE_EXPORTS_RUNNING_MAX, linkTtlMs: config.SLUICE_EXPORT_LINK_TTL },
    calls,
    storedObjects: platform.storedObjects,
    search: platform.search,
    metrics: parts.metrics,
    checkReadiness: parts.checkReadiness,
    logger,
    liveDeps: {
      routing: access.routing,
      calls,
      requestLog: platform.requestLog,
      costs: platform.costs,
      bodies: bodyRecorder,
      telemetry: platform.telemetry,
      countVerdict: callers.keys.countVerdict,
      stallTimeoutMs: config.SLUICE_CLIENT_STALL_TIMEOUT,
      logger,
    },
    jsonBody: parts.jsonBody,
    formModel: { readBytesMax: config.SLUICE_FORM_READ_MAX, rate: uploadRate, memory },
    uploadBytesMax: config.SLUICE_UPLOAD_MAX,
    uploadRate,
    stallTimeoutMs: config.SLUICE_CLIENT_STALL_TIMEOUT,
    admitUpload: (workspaceId) => admitUpload(db, workspaceId, config.SLUICE_STORED_MAX),
    baseUrl: publicUrl,
    browserSessions: callers.browserSessions,
    onRefusedSignIn: callers.keys.onRefusedSignIn,
    countRead: callers.keys.countRead,
    authenticate: callers.authenticate,
    searches: heavyReads,
    resultStreams: createTurns({ runningMax: 64, waitingMax: 64, isLong: true }, 'streams of results'),
    memory,
    // Each reads a whole input file or recorded calls; the validation thread is one.
    fileReads: createTurns({ runningMax: 3, waitingMax: 2 }, 'dry runs, retries and traffic replays'),
    eventStreams: createEventStreams({
      db: platform.db,
      logger,
      newestLogs,
      accessVersion: access.snapshot.version,
      streamsMax: config.SLUICE_EVENT_STREAMS_MAX,
      workspaceStreamsMax: config.SLUICE_EVENT_STREAMS_OF_WORKSPACE,
    }),
    ...createEventPages(memory, config.SLUICE_EVENT_STREAMS_OF_WORKSPACE),
  };
}

/** Composes the dependencies of the records of all kinds, except for the database. */
function recordDeps(
  config: ApiConfig,
  { access, databaseClock: clock, egress, memory, secretManagers }: Platform,
  { keys }: Callers,
  publicUrl: () => string,
): Omit<RouteDeps['resources'], 'db' | 'eventLog'> {
  return {
    secrets: access.secrets,
    snapshot: access.snapshot,
    clock,
    checkDestination: egress.check,
    setBatchWeight,
    secretManagers,
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
    siemFolder: config.SLUICE_SIEM_FOLDER !== undefined,
    virtualKeyOfAll: simulatorOf(config),
    recordPages: createPageReads({
      memory,
      bytesMax: pageBytesMax,
      // Most lists are small and frequent: they are charged for what they are when that is known.
      reservedBytes: 65_536,
      turns: createTurns({ runningMax: 4, waitingMax: 64 }, 'lists of records'),
    }),
  };
}

/**
 * Pages of events, and replays. A workspace reads one page of events at a time, and each of its open streams can request
 * one. Reading and writing a MiB takes 10 to 15 ms of the event loop, so at this pace a workspace takes a twentieth of it,
 * and causes a large garbage collection (15 to 20 ms) every two seconds.
 */
function createEventPages(memory: MemoryBudget, workspaceStreamsMax: number) {
  const bytesMax = pageBytesMax;
  const pace = createBytePace(4 * 1_048_576);
  const eventTurns = createTurns({ runningMax: 3, waitingMax: workspaceStreamsMax + 64 }, 'requests for events');
  const replayTurns = createTurns({ runningMax: 2, waitingMax: 16 }, 'replays');
  return {
    eventPages: createPageReads({ memory, bytesMax, turns: eventTurns, pace }),
    replays: createPageReads({ memory, bytesMax, turns: replayTurns, pace }),
  };
}

/** A page of the operator gets the token in the query. Ours gets it in the fragment, which no server and no proxy sees. */
function inviteLink(token: string, ownPage: string | undefined, publicUrl: string): string {
  if (ownPage === undefined) return `${publicUrl}/console/invite#token=${token}`;
  const url = new URL(ownPage);
  url.searchParams.set('token', token);
  return url.href;
}
