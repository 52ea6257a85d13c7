import type { Kysely } from 'kysely';
import type { VirtualKeys } from '#libs/access/virtual-keys.ts';
import type { Batches } from '#libs/batches/batches.ts';
import type { BlobStore } from '#libs/blobs/blob-store.ts';
import type { BatchEndpoint } from '#libs/contracts/batches.ts';
import type { Database } from '#libs/database/schema.ts';
import type { Files } from '#libs/files/files.ts';
import type { FineTuningJobs } from '#libs/fine-tuning/fine-tuning-jobs.ts';
import type { Calls } from '#libs/calls/calls.ts';
import type { FormModelLimits } from '#libs/http/form-model.ts';
import type { JsonBodyLimits } from '#libs/http/json-body.ts';
import type { HttpMetrics } from '#libs/http/metrics.ts';
import { toOpenApi } from '#libs/http/openapi.ts';
import type { Route } from '#libs/http/route.ts';
import type { Clock } from '#libs/kernel/clock.ts';
import { resourceKinds } from '#libs/resources/resource-kinds.ts';
import { resourceRoutes } from '#libs/resources/resource-routes.ts';
import type { StoreDeps } from '#libs/resources/define-resource.ts';
import type { Logger } from '#libs/kernel/logger.ts';
import type { Access } from '../platform/access.ts';
import { createVirtualKey } from './routes/create-virtual-key.ts';
import { listVirtualKeys } from './routes/list-virtual-keys.ts';
import { retrieveVirtualKey } from './routes/retrieve-virtual-key.ts';
import { updateVirtualKey } from './routes/update-virtual-key.ts';
import { deleteVirtualKey } from './routes/delete-virtual-key.ts';
import { listLogs } from './routes/list-logs.ts';
import { retrieveLog } from './routes/retrieve-log.ts';
import { listAuditLogs } from './routes/list-audit-logs.ts';
import { listEvents } from './routes/list-events.ts';
import { listCircuits } from './routes/list-circuits.ts';
import { cancelBatch } from './routes/cancel-batch.ts';
import { createBatch } from './routes/create-batch.ts';
import { createChatCompletion } from './routes/create-chat-completion.ts';
import { controlFineTuningJob } from './routes/control-fine-tuning-job.ts';
import { createCompletion } from './routes/create-completion.ts';
import { createEmbedding } from './routes/create-embedding.ts';
import { createFineTuningJob } from './routes/create-fine-tuning-job.ts';
import { listFineTuningCheckpoints } from './routes/list-fine-tuning-checkpoints.ts';
import { listFineTuningEvents } from './routes/list-fine-tuning-events.ts';
import { listFineTuningJobs } from './routes/list-fine-tuning-jobs.ts';
import { retrieveFineTuningJob } from './routes/retrieve-fine-tuning-job.ts';
import { deleteFile } from './routes/delete-file.ts';
import type { UploadRate } from '#libs/http/watch-upload-rate.ts';
import type { LiveDeps } from './routes/forward-live-call.ts';
import { listBatches } from './routes/list-batches.ts';
import { listFiles } from './routes/list-files.ts';
import { listModels, retrieveModel } from './routes/list-models.ts';
import { operationalRoutes, type Readiness } from '../platform/operational-routes.ts';
import { relayRoutes } from './routes/relay-routes.ts';
import { retrieveBatch } from './routes/retrieve-batch.ts';
import { retrieveFile } from './routes/retrieve-file.ts';
import { retrieveFileContent } from './routes/retrieve-file-content.ts';
import { uploadFile } from './routes/upload-file.ts';

export type RouteDeps = {
  db: Kysely<Database>;
  access: Pick<Access, 'snapshot' | 'routing' | 'batchTargets' | 'fineTuningTargets'>;
  /** Where the records of all kinds are stored. */
  resources: StoreDeps;
  virtualKeys: VirtualKeys;
  virtualKeySlugs: (workspaceId: string) => Promise<string[]>;
  batches: Batches;
  fineTuningJobs: FineTuningJobs;
  files: Files;
  blobs: BlobStore;
  /** The clock of the database, so that lists agree with calls about expired keys and open circuits. */
  clock: Clock;
  calls: Calls;
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
};

const description = 'A self-hosted gateway and batch platform for language models, compatible with the OpenAI API.';

/** The whole route table. Requests that match no route get 404. */
export function createRoutes(deps: RouteDeps): readonly Route[] {
  const { liveDeps, access } = deps;
  const modelDeps = { ...deps, routing: access.routing };
  // A batch makes calls to its endpoint, so it needs the scope of that endpoint.
  const scopeOf = (endpoint: BatchEndpoint): string => {
    const route = routes.find(({ method, path }) => method === 'POST' && path === endpoint);
    if (!route) throw new Error(`no route serves ${endpoint}, which batches have as an endpoint`);
    return route.scope;
  };
  const routes: Route[] = [
    createChatCompletion(liveDeps),
    createCompletion(liveDeps),
    createEmbedding(liveDeps),
    listModels(modelDeps),
    retrieveModel(modelDeps),
    uploadFile({ ...deps, sizeBytesMax: deps.uploadBytesMax }),
    listFiles(deps),
    retrieveFile(deps),
    retrieveFileContent(deps),
    deleteFile(deps),
    createBatch({ ...deps, batchTargets: access.batchTargets, scopeOf }),
    listBatches(deps),
    retrieveBatch(deps),
    cancelBatch(deps),
    createFineTuningJob({ ...deps, targets: access.fineTuningTargets }),
    listFineTuningJobs(deps),
    retrieveFineTuningJob(deps),
    ...controlFineTuningJob(deps),
    listFineTuningEvents(deps),
    listFineTuningCheckpoints(deps),
    ...resourceKinds.flatMap((kind) => resourceRoutes(kind, deps.resources)),
    createVirtualKey(deps),
    listVirtualKeys(deps),
    retrieveVirtualKey(deps),
    updateVirtualKey(deps),
    deleteVirtualKey(deps),
    ...relayRoutes({ ...deps, ...liveDeps }),
    listLogs(deps),
    retrieveLog(deps),
    listAuditLogs(deps),
    listEvents(deps),
    listCircuits(deps),
    ...operationalRoutes({
      metrics: deps.metrics,
      checkReadiness: deps.checkReadiness,
      openApi: () => toOpenApi(routes, { title: 'Sluice', description, baseUrl: deps.baseUrl() }),
    }),
  ];
  return routes;
}
