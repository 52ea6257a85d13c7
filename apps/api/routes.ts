import type { Kysely } from 'kysely';
import type { Batches } from '#libs/batches/batches.ts';
import type { BlobStore } from '#libs/blobs/blob-store.ts';
import type { Database } from '#libs/database/schema.ts';
import type { Files } from '#libs/files/files.ts';
import type { Forwarder } from '#libs/forwarding/forward.ts';
import type { HttpMetrics } from '#libs/http/metrics.ts';
import type { Route } from '#libs/http/route.ts';
import type { Logger } from '#libs/kernel/logger.ts';
import type { Access } from '../platform/access.ts';
import { cancelBatch } from './routes/cancel-batch.ts';
import { createBatch } from './routes/create-batch.ts';
import { createChatCompletion } from './routes/create-chat-completion.ts';
import { createCompletion } from './routes/create-completion.ts';
import { createEmbedding } from './routes/create-embedding.ts';
import { deleteFile } from './routes/delete-file.ts';
import type { LiveDeps } from './routes/forward-live-call.ts';
import { live, ready } from './routes/health.ts';
import { listBatches } from './routes/list-batches.ts';
import { listFiles } from './routes/list-files.ts';
import { listModels, retrieveModel } from './routes/list-models.ts';
import { metrics, openApiDocument } from './routes/operations.ts';
import { retrieveBatch } from './routes/retrieve-batch.ts';
import { retrieveFile } from './routes/retrieve-file.ts';
import { retrieveFileContent } from './routes/retrieve-file-content.ts';
import { uploadFile } from './routes/upload-file.ts';

export type RouteDeps = {
  db: Kysely<Database>;
  access: Pick<Access, 'snapshot' | 'resolveTarget' | 'batchTargets'>;
  virtualKeySlugs: (workspaceId: string) => Promise<string[]>;
  batches: Batches;
  files: Files;
  blobs: BlobStore;
  forwarder: Forwarder;
  liveDeps: LiveDeps;
  metrics: HttpMetrics;
  logger: Logger;
  uploadBytesMax: number;
  isStopping: () => boolean;
  baseUrl: () => string;
};

/** The whole route table: what is not here does not exist. */
export function createRoutes(deps: RouteDeps): readonly Route[] {
  const { liveDeps, access } = deps;
  const modelDeps = { ...deps, resolveTarget: access.resolveTarget };
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
    createBatch({ ...deps, batchTargets: access.batchTargets }),
    listBatches(deps),
    retrieveBatch(deps),
    cancelBatch(deps),
    live(),
    ready({ ...deps, snapshot: access.snapshot }),
    metrics(deps.metrics),
    openApiDocument(() => routes, deps.baseUrl),
  ];
  return routes;
}
