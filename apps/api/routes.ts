import type { Kysely } from 'kysely';
import type { Access } from '#libs/access/access.ts';
import type { Batches } from '#libs/batches/batches.ts';
import type { BlobStore } from '#libs/blobs/blob-store.ts';
import type { Database } from '#libs/database/schema.ts';
import type { EventLog } from '#libs/event-log/event-log.ts';
import type { Files } from '#libs/files/files.ts';
import type { Forwarder } from '#libs/forwarding/forward.ts';
import type { HttpMetrics } from '#libs/http/metrics.ts';
import type { Route } from '#libs/http/route.ts';
import type { Logger } from '#libs/kernel/logger.ts';
import type { RequestLog } from '#libs/request-log/request-log.ts';
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
  eventLog: EventLog;
  access: Access;
  batches: Batches;
  files: Files;
  blobs: BlobStore;
  forwarder: Forwarder;
  liveDeps: LiveDeps;
  requestLog: RequestLog;
  metrics: HttpMetrics;
  logger: Logger;
  uploadBytesMax: number;
  isStopping: () => boolean;
  baseUrl: () => string;
};

/** The whole route table: what is not here does not exist. */
export function createRoutes(deps: RouteDeps): readonly Route[] {
  const { liveDeps } = deps;
  const routes: Route[] = [
    createChatCompletion(liveDeps),
    createCompletion(liveDeps),
    createEmbedding(liveDeps),
    listModels(deps),
    retrieveModel(deps),
    uploadFile({ ...deps, sizeBytesMax: deps.uploadBytesMax }),
    listFiles(deps),
    retrieveFile(deps),
    retrieveFileContent(deps),
    deleteFile(deps),
    createBatch(deps),
    listBatches(deps),
    retrieveBatch(deps),
    cancelBatch(deps),
    live(),
    ready(deps),
    metrics(deps.metrics),
    openApiDocument(() => routes, deps.baseUrl),
  ];
  return routes;
}
