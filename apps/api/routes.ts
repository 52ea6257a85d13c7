import type { Kysely } from 'kysely';
import type { RunQuery } from '#libs/analytics/run-query.ts';
import type { Batches } from '#libs/batches/batches.ts';
import type { BlobStore } from '#libs/blobs/blob-store.ts';
import type { BatchEndpoint } from '#libs/contracts/batches.ts';
import type { Database } from '#libs/database/schema.ts';
import { asSystem, runForWorkspace } from '#libs/database/workspace-binding.ts';
import type { Files } from '#libs/files/files.ts';
import type { FineTuningJobs } from '#libs/fine-tuning/fine-tuning-jobs.ts';
import type { Admission } from '#libs/calls/admission.ts';
import type { StoredObjects } from '#libs/calls/protect/stored-objects/stored-objects.ts';
import type { Calls } from '#libs/calls/calls.ts';
import type { PlanDeps } from '#libs/calls/plan/run-plan.ts';
import type { FormModelLimits } from '#libs/http/form-model.ts';
import type { JsonBodyLimits } from '#libs/http/json-body.ts';
import type { HttpMetrics } from '#libs/http/metrics.ts';
import type { PageReads } from '#libs/http/page-reads.ts';
import { callerOf } from '#libs/http/request-context.ts';
import { toOpenApi } from '#libs/http/openapi.ts';
import type { Route } from '#libs/http/route.ts';
import type { Clock } from '#libs/kernel/clock.ts';
import type { Turns } from '#libs/kernel/turns.ts';
import type { JobQueue } from '#libs/queue/job-queue.ts';
import { resourceKinds } from '#libs/resources/resource-kinds.ts';
import { resourceRoutes } from '#libs/records/resource-routes.ts';
import type { StoreDeps } from '#libs/records/define-resource.ts';
import type { Logger } from '#libs/kernel/logger.ts';
import type { Access } from '../platform/access.ts';
import { logExportRoutes } from './logs/log-export-routes.ts';
import { importLogs } from './logs/import-logs.ts';
import { listLogs } from './logs/list-logs.ts';
import { retrieveLog } from './logs/retrieve-log.ts';
import { listAuditLogs } from './events/list-audit-logs.ts';
import { listEvents } from './events/list-events.ts';
import { analyticsRoutes } from './logs/analytics-routes.ts';
import { feedbackRoutes } from './logs/feedback-routes.ts';
import { explainConfig } from './organisation/explain-config.ts';
import { listProviderLimits } from './server/list-provider-limits.ts';
import { listCircuits } from './server/list-circuits.ts';
import { cancelBatch } from './batches/cancel-batch.ts';
import { controlBatch } from './batches/control-batch.ts';
import { createBatch } from './batches/create-batch.ts';
import { createChatCompletion } from './calls/create-chat-completion.ts';
import { controlFineTuningJob } from './fine-tuning/control-fine-tuning-job.ts';
import { createCompletion } from './calls/create-completion.ts';
import { createEmbedding } from './calls/create-embedding.ts';
import { createFineTuningJob } from './fine-tuning/create-fine-tuning-job.ts';
import { listFineTuningCheckpoints } from './fine-tuning/list-fine-tuning-checkpoints.ts';
import { listFineTuningEvents } from './fine-tuning/list-fine-tuning-events.ts';
import { listFineTuningJobs } from './fine-tuning/list-fine-tuning-jobs.ts';
import { retrieveFineTuningJob } from './fine-tuning/retrieve-fine-tuning-job.ts';
import { docsRoutes } from './server/docs-routes.ts';
import { consoleRoutes } from './server/console-routes.ts';
import { systemRoutes } from './server/system-routes.ts';
import { sessionRoutes, type SessionDeps } from './organisation/session-routes.ts';
import { replayEvents } from './events/replay-events.ts';
import { streamChanges } from './events/stream-changes.ts';
import { streamEvents } from './events/stream-events.ts';
import type { EventStreams } from './events/event-streams.ts';
import { deleteFile } from './files/delete-file.ts';
import { deleteModel } from './calls/delete-model.ts';
import { createBodiesReader } from '#libs/request-log/bodies/recorded-bodies.ts';
import type { UploadRate } from '#libs/http/watch-upload-rate.ts';
import type { Uploads } from '#libs/files/uploads.ts';
import type { LiveDeps } from './calls/forward-live-call.ts';
import { batchLineRoutes, createLineBodiesReader, createLineDeps } from './batches/batch-line-routes.ts';
import { retryBatch } from './batches/retry-batch.ts';
import { dryRunBatch, type DryRunDeps } from './batches/dry-run-batch.ts';
import { listBatches } from './batches/list-batches.ts';
import { listFiles } from './files/list-files.ts';
import { listModels, retrieveModel } from './calls/list-models.ts';
import { operationalRoutes, type Readiness } from '../platform/operational-routes.ts';
import { orAtProvider } from './calls/or-at-provider.ts';
import { relayRoutes } from './calls/relay-routes.ts';
import { retrieveBatch } from './batches/retrieve-batch.ts';
import { retrieveBatchOutput } from './batches/retrieve-batch-output.ts';
import { documentText } from './operation-texts/document.ts';
import { operationTexts } from './operation-texts/index.ts';
import { tagTexts } from './tag-texts.ts';
import { retrieveFile } from './files/retrieve-file.ts';
import { retrieveFileContent } from './files/retrieve-file-content.ts';
import { runPrompt } from './calls/run-prompt.ts';
import { uploadFile } from './files/upload-file.ts';
import { uploadRoutes } from './files/upload-routes.ts';

export type RouteDeps = {
  db: Kysely<Database>;
  access: Pick<Access, 'snapshot' | 'downloadLinks' | 'routing' | 'prompts' | 'batchTargets' | 'fineTuningTargets'>;
  /** Runs analytics queries within their limits. */
  runQuery: RunQuery;
  /** Where the records of all kinds are stored. */
  resources: Omit<StoreDeps, 'scopes'>;
  virtualKeySlugs: (workspaceId: string) => Promise<string[]>;
  batches: Batches;
  fineTuningJobs: FineTuningJobs;
  admission: Admission;
  files: Files;
  uploads: Uploads;
  blobs: BlobStore;
  queue: JobQueue;
  dryRuns: Pick<DryRunDeps, 'validator' | 'pricing' | 'rulesOf' | 'virtualKeys' | 'limits'>;
  exports: { runningMax: number; linkTtlMs: number };
  /** The clock of the database, so that lists agree with calls about expired keys and open circuits. */
  clock: Clock;
  calls: Calls;
  storedObjects: StoredObjects;
  search: PlanDeps['search'];
  liveDeps: LiveDeps;
  /** Absent if metrics have a port of their own. */
  metrics: HttpMetrics | undefined;
  checkReadiness: () => Promise<Readiness>;
  logger: Logger;
  jsonBody: JsonBodyLimits;
  formModel: FormModelLimits;
  uploadBytesMax: number;
  uploadRate: UploadRate;
  stallTimeoutMs: number;
  /** Throws if the workspace may not store more. */
  admitUpload: (workspaceId: string) => Promise<void>;
  baseUrl: () => string;
  browserSessions: SessionDeps['browserSessions'];
  onRefusedSignIn: SessionDeps['onRefusedSignIn'];
  authenticate: SessionDeps['authenticate'];
  eventStreams: EventStreams;
  /** Turns of searches of the request log and of batches. */
  searches: Turns;
  /** Turns of dry runs and retries. */
  fileReads: Turns;
  /** Reads pages of events, and replays records. */
  eventPages: PageReads;
  replays: PageReads;
};

/** The whole route table. Requests that match no route get 404. */
export function createRoutes(deps: RouteDeps): readonly Route[] {
  const { liveDeps, access } = deps;
  const relayDeps = { ...deps, ...liveDeps };
  const shared = (route: Route): Route => orAtProvider(relayDeps, route);
  const lines = createLineDeps(deps);
  const modelDeps = { ...deps, routing: access.routing };
  // A batch makes calls to its endpoint, so it needs the scope of that endpoint.
  const scopeOf = (endpoint: BatchEndpoint): string => {
    const route = routes.find(({ method, path }) => method === 'POST' && path === endpoint);
    if (!route) throw new Error(`no route serves ${endpoint}, which batches have as an endpoint`);
    return route.scope;
  };
  const scopes = (): ReadonlySet<string> =>
    new Set(
      routes
        .flatMap(({ scope, optionalScopes = [] }) => [scope, ...optionalScopes])
        .filter((scope) => scope !== 'public'),
    );
  const liveCalls: Route[] = [
    createChatCompletion(liveDeps),
    createCompletion(liveDeps),
    createEmbedding(liveDeps),
    ...runPrompt({ ...liveDeps, prompts: access.prompts }),
    ...relayRoutes(relayDeps),
  ];
  const ofWorkspaces: Route[] = [
    listModels(modelDeps),
    retrieveModel(modelDeps),
    deleteModel(relayDeps),
    uploadFile({ ...deps, sizeBytesMax: deps.uploadBytesMax }),
    ...uploadRoutes(deps),
    listFiles(deps),
    shared(retrieveFile(deps)),
    shared(retrieveFileContent(deps)),
    shared(deleteFile(deps)),
    createBatch({ ...deps, batchTargets: access.batchTargets, scopeOf }),
    dryRunBatch({
      ...deps,
      ...deps.dryRuns,
      batchTargets: access.batchTargets,
      routing: access.routing,
      knownPrompts: (workspaceId) => access.prompts.known(workspaceId),
      now: () => deps.clock.now(),
      scopeOf,
    }),
    listBatches(deps),
    ...batchLineRoutes({ ...deps, lines }),
    retryBatch({ ...deps, batchTargets: access.batchTargets, snapshot: access.snapshot, scopeOf }),
    shared(retrieveBatch(deps)),
    retrieveBatchOutput(deps),
    shared(cancelBatch(deps)),
    ...controlBatch(deps),
    createFineTuningJob({ ...deps, targets: access.fineTuningTargets }),
    listFineTuningJobs(deps),
    shared(retrieveFineTuningJob(deps)),
    ...controlFineTuningJob(deps).map(shared),
    shared(listFineTuningEvents(deps)),
    shared(listFineTuningCheckpoints(deps)),
    ...resourceKinds.flatMap((kind) => resourceRoutes(kind, { ...deps.resources, scopes })),
    ...logExportRoutes({ ...deps, resources: { ...deps.resources, scopes }, downloadLinks: access.downloadLinks }),
    listLogs(deps),
    importLogs({ ...liveDeps, db: deps.db }),
    retrieveLog({
      ...deps,
      eventLog: deps.resources.eventLog,
      readLineBodies: createLineBodiesReader({ ...deps, lines }),
      readBodies: (workspaceId, reference) =>
        createBodiesReader({ ...deps, secrets: deps.resources.secrets })(workspaceId, reference),
    }),
    listAuditLogs(deps),
    listEvents(deps),
    streamEvents(deps),
    replayEvents(deps),
    streamChanges(deps),
    explainConfig({ ...deps, routing: access.routing }),
    listCircuits(deps),
    listProviderLimits(deps),
    ...systemRoutes(deps),
    ...analyticsRoutes(deps),
    ...feedbackRoutes({ db: deps.db, eventLog: deps.resources.eventLog }),
  ];
  const routes: Route[] = [
    ...liveCalls,
    ...ofWorkspaces.map(boundToWorkspace),
    ...sessionRoutes(deps),
    ...docsRoutes(),
    ...consoleRoutes(),
    ...operationalRoutes({
      metrics: deps.metrics,
      checkReadiness: deps.checkReadiness,
      openApi: () =>
        toOpenApi(routes, {
          title: 'Sluice',
          description: documentText,
          baseUrl: deps.baseUrl(),
          tagTexts,
          operationTexts: operationTexts(routes),
        }),
    }),
  ];
  return routes;
}

/** The route with a handler whose statements see the rows of the caller's workspace only. Live calls make no statement. */
function boundToWorkspace(route: Route): Route {
  const { handler, scope } = route;
  return {
    ...route,
    handler: (request, response, next) =>
      scope === 'public'
        ? asSystem(() => handler(request, response, next))
        : runForWorkspace(callerOf(request).workspaceId, () => handler(request, response, next)),
  };
}
