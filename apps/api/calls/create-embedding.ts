import { EmbeddingRequest, EmbeddingResponse } from '#libs/contracts/embeddings.ts';
import type { Route } from '#libs/http/route.ts';
import { liveRoute, type LiveDeps } from './forward-live-call.ts';

/** POST /v1/embeddings. */
export function createEmbedding(deps: LiveDeps): Route {
  return liveRoute(deps, {
    operation: 'embeddings',
    request: EmbeddingRequest,
    path: '/v1/embeddings',
    operationId: 'createEmbedding',
    summary: 'Create embeddings',
    tag: 'Embeddings',
    scope: 'embeddings.write',
    responses: { 200: { description: 'The embeddings.', schema: EmbeddingResponse } },
  });
}
