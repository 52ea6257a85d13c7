import { readPublicNames, type ModelCaller } from '#libs/credentials/configs/public-models.ts';
import { readFileSync } from 'node:fs';
import type { Kysely } from 'kysely';
import type { RunQuery } from '#libs/analytics/run-query.ts';
import type { Batches } from '#libs/batches/batch/batches.ts';
import type { BlobStore } from '#libs/blobs/blob-store.ts';
import type { Admission } from '#libs/calls/admission.ts';
import type { Calls } from '#libs/calls/calls.ts';
import type { PlanDeps } from '#libs/calls/plan/run-plan.ts';
import type { StoredObjects } from '#libs/calls/protect/stored-objects/stored-objects.ts';
import type { BatchEndpoint } from '#libs/contracts/batches/batches.ts';
import type { Database } from '#libs/database/schema.ts';
import { asSystem, runForWorkspace } from '#libs/database/workspace-binding.ts';
import type { Files } from '#libs/files/files.ts';
import type { Uploads } from '#libs/files/uploads.ts';
import type { FineTuningJobs } from '#libs/fine-tuning/fine-tuning-jobs.ts';
import type { FormModelLimits } from '#libs/http/bodies/form-model.ts';
import type { JsonBodyLimits } from '#libs/http/bodies/json-body.ts';
import type { HttpMetrics } from '#libs/http/metrics.ts';
import { toOpenApi } from '#libs/http/openapi.ts';
import type { PageReads } from '#libs/http/answers/page-reads.ts';
import { getCaller } from '#libs/http/request-context.ts';
import type { Route } from '#libs/http/route.ts';
import type { UploadRate } from '#libs/http/bodies/watch-upload-rate.ts';
import type { Clock } from '#libs/kernel/clock.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import type { MemoryBudget } from '#libs/kernel/sharing/memory-budget.ts';
import type { Turns } from '#libs/kernel/sharing/turns.ts';
import type { JobQueue } from '#libs/queue/job-queue.ts';
import { createBodiesReader } from '#libs/request-log/bodies/recorded-bodies.ts';
import type { KindDeps } from '#libs/resources/define-kind.ts';
import type { Access } from '../platform/access.ts';
import { operationalRoutes, type Readiness } from '../platform/operations/operational-routes.ts';
import type { DryRunDeps } from '#libs/batches/look/dry-run.ts';
import { createLineBodiesReader, createLineDeps } from './batches/line-routes.ts';
import { batchRoutes, batchTags } from './batches/routes.ts';
import type { LiveDeps } from './calls/forward-live-call.ts';
import { googleCallRoutes, googleModelRoutes, googleTags } from './calls/google-routes.ts';
import { hostedRoutes } from './calls/hosted-routes.ts';
import { relayRoutes, relayTags } from './calls/relay-routes.ts';
import { callTags, liveRoutes, modelRoutes } from './calls/routes.ts';
import { completePrompt, renderPrompt } from './calls/run-prompt.ts';
import { documentText } from './document-texts.ts';
import type { EventStreams } from '#libs/activity/event-streams.ts';
import type { AuditDeps } from './events/audit-routes.ts';
import { eventRoutes, eventTags } from './events/routes.ts';
import { fileRoutes, fileTags } from './files/routes.ts';
import { fineTuningRoutes, fineTuningTags } from './fine-tuning/routes.ts';
import { logRoutes, logTags } from './logs/routes.ts';
import { createReplay } from './replays/create-replay.ts';
import type { CountRead } from './organisation/guard-keys.ts';
import { organisationRoutes, organisationTags } from './organisation/routes.ts';
import { sessionRoutes, type SessionDeps } from './organisation/session-routes.ts';
import { pageRoutes, serverRoutes, serverTags } from './server/routes.ts';

export type RouteDeps = {
  db: Kysely<Database>;
  access: Pick<Access, 'snapshot' | 'downloadLinks' | 'routing' | 'prompts' | 'batchTargets' | 'fineTuningTargets'>;
  /** Runs analytics queries within their limits. */
  runQuery: RunQuery;
  /** Where the records of all kinds are stored. */
  resources: Omit<KindDeps, 'scopes'>;
  virtualKeySlugs: (workspaceId: string) => Promise<string[]>;
  batches: Batches;
  fineTuningJobs: FineTuningJobs;
  admission: Admission;
  files: Files;
  uploads: Uploads;
  blobs: BlobStore;
  audit: AuditDeps['audit'];
  queue: JobQueue;
  dryRuns: Pick<DryRunDeps, 'validator' | 'outputs' | 'pricing' | 'rulesOf' | 'virtualKeys' | 'limits'>;
  exports: { runningMax: number; linkTtlMs: number };
  /** The clock of the database, so that lists agree with calls about expired keys and open circuits. */
  clock: Clock;
  calls: Calls;
  storedObjects: StoredObjects;
  search: PlanDeps['search'];
  liveDeps: LiveDeps;
  /** Absent if metrics have a separate port. */
  metrics: Pick<HttpMetrics, 'renderMetrics'> | undefined;
  checkReadiness: () => Promise<Readiness>;
  logger: Logger;
  jsonBody: JsonBodyLimits;
  formModel: FormModelLimits;
  uploadBytesMax: number;
  uploadRate: UploadRate;
  stallTimeoutMs: number;
  /** Throws if the workspace has reached its storage limit. */
  admitUpload: (workspaceId: string) => Promise<void>;
  baseUrl: () => string;
  browserSessions: SessionDeps['browserSessions'];
  onRefusedSignIn: SessionDeps['onRefusedSignIn'];
  countRead: CountRead;
  authenticate: SessionDeps['authenticate'];
  eventStreams: EventStreams;
  /** Turns of searches of the request log and of batches. */
  searches: Turns;
  /** Turns of streams of results. */
  resultStreams: Turns;
  memory: MemoryBudget;
  /** Turns of dry runs and retries. */
  fileReads: Turns;
  /** Reads pages of events, and replays records. */
  eventPages: PageReads;
  replays: PageReads;
};

/** Describes the groups of operations in the document. */
const tags: Readonly<Record<string, string>> = {
  ...callTags,
  ...googleTags,
  ...relayTags,
  ...fileTags,
  ...batchTags,
  ...fineTuningTags,
  ...organisationTags,
  ...logTags,
  ...eventTags,
  ...serverTags,
};

/** The example answers of the document, as test/api/document-examples.test.ts records them. */
const readExamples = (): Record<string, object> =>
  JSON.parse(readFileSync(new URL('./examples.json', import.meta.url), 'utf8')) as Record<string, object>;

/** The whole route table. Requests that match no route get 404. */
export function createRoutes(deps: RouteDeps): readonly Route[] {
  const shared = shareDeps(deps, () => routes);
  const calls = [
    ...liveRoutes(shared),
    ...googleCallRoutes(shared),
    ...hostedRoutes(shared),
    renderPrompt(shared),
    completePrompt(shared),
    ...relayRoutes(shared),
  ];
  const ofWorkspaces = [
    ...modelRoutes(shared),
    ...googleModelRoutes(shared),
    ...fileRoutes(shared),
    ...batchRoutes(shared),
    createReplay(shared),
    ...fineTuningRoutes(shared),
    ...organisationRoutes(shared),
    ...logRoutes(shared),
    ...eventRoutes(shared),
    ...serverRoutes(shared),
  ];
  const routes: Route[] = [
    ...calls,
    ...ofWorkspaces.map(boundToWorkspace),
    ...sessionRoutes(shared),
    ...pageRoutes(),
    ...operationalRoutes({
      metrics: deps.metrics,
      checkReadiness: deps.checkReadiness,
      openApi: () =>
        toOpenApi(routes, {
          title: 'Sluice',
          description: documentText,
          baseUrl: deps.baseUrl(),
          tags,
          answers: readExamples(),
        }),
    }),
  ];
  return routes;
}

/** The dependencies of all areas, some of which depend on the route table itself. */
function shareDeps(deps: RouteDeps, routes: () => readonly Route[]) {
  const { access, liveDeps } = deps;
  const lines = createLineDeps(deps);
  const scopes = (): ReadonlySet<string> =>
    new Set(
      routes()
        .flatMap(({ scope, optionalScopes = [] }) => [scope, ...optionalScopes])
        .filter((scope) => scope !== 'public'),
    );
  const scopeOf = (endpoint: BatchEndpoint): string => {
    const route = routes().find(({ method, path }) => method === 'POST' && path === endpoint);
    if (!route) throw new Error(`no route serves the batch endpoint ${endpoint}`);
    return route.scope;
  };
  return {
    ...deps,
    ...deps.dryRuns,
    publicNames: (caller: ModelCaller) => readPublicNames(access.snapshot, caller),
    ...liveDeps,
    calls: deps.calls,
    snapshot: access.snapshot,
    downloadLinks: access.downloadLinks,
    routing: access.routing,
    prompts: access.prompts,
    batchTargets: access.batchTargets,
    fineTuningTargets: access.fineTuningTargets,
    knownPrompts: (workspaceId: string) => access.prompts.known(workspaceId),
    now: () => deps.clock.now(),
    lines,
    scopeOf,
    resources: { ...deps.resources, scopes },
    eventLog: deps.resources.eventLog,
    bodiesReader: () => createBodiesReader({ ...deps, secrets: deps.resources.secrets }),
    readLineBodies: createLineBodiesReader({ ...deps, lines }),
  };
}

/**
 * Returns the route with a handler whose statements see only the rows of the caller's workspace. Live calls make no
 * statements.
 */
function boundToWorkspace(route: Route): Route {
  const { handler, scope } = route;
  return {
    ...route,
    handler: (request, response, next) =>
      scope === 'public'
        ? asSystem(() => handler(request, response, next))
        : runForWorkspace(getCaller(request).workspaceId, () => handler(request, response, next)),
  };
}
