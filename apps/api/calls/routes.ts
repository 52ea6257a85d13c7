import { z } from 'zod';
import { credentialHeaders } from '#libs/access/request-credentials.ts';
import { ChatCompletionRequest, ChatCompletionResponse } from '#libs/contracts/chat.ts';
import { CompletionRequest, CompletionResponse } from '#libs/contracts/completions.ts';
import { EmbeddingRequest, EmbeddingResponse } from '#libs/contracts/embeddings.ts';
import type { Route } from '#libs/http/route.ts';
import { callErrors } from '../document-texts.ts';
import { liveRoute, type LiveDeps } from './forward-live-call.ts';
import { listModels, retrieveModel, type ModelDeps } from './list-models.ts';
import { relayHandler, type RelayDeps } from './relay-call.ts';

export const callTags = {
  Chat: 'Chat completions of any provider in the format of OpenAI.',
  Completions: 'Text completions.',
  Embeddings: 'Embedding vectors.',
  Models: 'The models that a key can use.',
};

/** The calls that are translated for each provider. */
export const liveRoutes = (deps: LiveDeps): Route[] => [
  liveRoute(deps, {
    operation: 'chat',
    request: ChatCompletionRequest,
    path: '/v1/chat/completions',
    operationId: 'createChatCompletion',
    summary: 'Create a chat completion',
    description:
      'The model (`@virtual-key/model`), the header `x-gateway-virtual-key` or `x-gateway-provider`, or a config selects the ' +
      'provider. With `stream`, the answer is sent as server-sent events. Retries, fallbacks, caching and guardrails follow ' +
      'the config. Errors of the provider keep their status. Status 246 marks an answer that failed a guardrail, and 446 a ' +
      'request or answer that a guardrail rejected.',
    example: {
      model: '@simulator/sim-small',
      messages: [{ role: 'user', content: 'Why is the sky blue?' }],
      max_tokens: 100,
    },
    errors: callErrors,
    tag: 'Chat',
    scope: 'chat.write',
    responses: {
      200: {
        description: 'The completion, or server-sent events when `stream` is true.',
        schema: ChatCompletionResponse,
        streams: true,
      },
    },
  }),
  liveRoute(deps, {
    operation: 'completions',
    request: CompletionRequest,
    path: '/v1/completions',
    operationId: 'createCompletion',
    summary: 'Create a text completion',
    description: 'For models that continue a text. You select the provider as for chat completions.',
    example: { model: '@simulator/sim-small', prompt: 'The sky is', max_tokens: 20 },
    errors: callErrors,
    tag: 'Completions',
    scope: 'completions.write',
    responses: {
      200: {
        description: 'The completion, or server-sent events when `stream` is true.',
        schema: CompletionResponse,
        streams: true,
      },
    },
  }),
  liveRoute(deps, {
    operation: 'embeddings',
    request: EmbeddingRequest,
    path: '/v1/embeddings',
    operationId: 'createEmbedding',
    summary: 'Create embeddings',
    description: 'Returns one vector for each text in `input`. You select the provider as for chat completions.',
    example: { model: '@simulator/sim-embed', input: ['The sky', 'The sea'] },
    errors: callErrors,
    tag: 'Embeddings',
    scope: 'embeddings.write',
    responses: { 200: { description: 'The embeddings.', schema: EmbeddingResponse } },
  }),
];

export const modelRoutes = (deps: ModelDeps & RelayDeps): Route[] => [
  listModels(deps),
  retrieveModel(deps),
  deleteModel(deps),
];

function deleteModel(deps: RelayDeps): Route {
  const operation = { area: 'stored_objects', method: 'DELETE', path: '/v1/models/:model' } as const;
  return {
    method: operation.method,
    path: operation.path,
    operationId: 'deleteModel',
    summary: 'Delete a fine-tuned model at its provider',
    description:
      'Forwarded to the provider in the model ID or in the header `x-gateway-virtual-key`. Providers only delete ' +
      'fine-tuned models.',
    errors: {
      missing_credentials: callErrors.missing_credentials,
      unsupported_operation: callErrors.unsupported_operation,
    },
    tag: 'Models',
    scope: 'models.write',
    request: { params: z.object({ model: z.string() }), query: 'relayed', headers: ['metadata', ...credentialHeaders] },
    responses: { 200: { description: "The provider's answer, unchanged.", contentType: 'application/json' } },
    handler: relayHandler(deps, operation),
  };
}
