import { z } from 'zod';
import type { Request, Response } from 'express';
import { listModels, type ModelDeps } from '#libs/credentials/list-models.ts';
import { credentialHeaders, readCredentials } from '#libs/credentials/requested.ts';
import { ChatCompletionRequest, ChatCompletionResponse } from '#libs/contracts/calls/chat.ts';
import { CompletionRequest, CompletionResponse } from '#libs/contracts/calls/completions.ts';
import { EmbeddingRequest, EmbeddingResponse } from '#libs/contracts/calls/embeddings.ts';
import { MessageRequest, MessageResponse } from '#libs/contracts/calls/messages.ts';
import { ModelList, ModelObject } from '#libs/contracts/calls/models.ts';
import { abortWhenClientLeaves } from '#libs/http/client-signal.ts';
import { getCaller } from '#libs/http/request-context.ts';
import { withInput, type Route } from '#libs/http/route.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { callErrors } from '../document-texts.ts';
import { liveRoute, type LiveDeps } from './forward-live-call.ts';
import { relayHandler, type RelayDeps } from './relay-call.ts';

export const callTags = {
  Chat: 'Chat completions of any provider in the format of OpenAI.',
  Completions: 'Text completions.',
  Embeddings: 'Embedding vectors.',
  Messages: "Messages in Anthropic's format.",
  Models: 'The models that a key can use.',
};

/** The calls that are translated for each provider. */
export const liveRoutes = (deps: LiveDeps): Route[] => [
  liveRoute(deps, {
    operation: 'chat',
    request: ChatCompletionRequest,
    path: '/v1/chat/completions',
    contract: '/v1/chat/completions',
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
    contract: '/v1/completions',
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
    contract: '/v1/embeddings',
    operationId: 'createEmbedding',
    summary: 'Create embeddings',
    description: 'Returns one vector for each text in `input`. You select the provider as for chat completions.',
    example: { model: '@simulator/sim-embed', input: ['The sky', 'The sea'] },
    errors: callErrors,
    tag: 'Embeddings',
    scope: 'embeddings.write',
    responses: { 200: { description: 'The embeddings.', schema: EmbeddingResponse } },
  }),
  liveRoute(deps, {
    operation: 'messages',
    request: MessageRequest,
    path: '/v1/messages',
    contract: '/v1/messages',
    query: { query: 'relayed' },
    operationId: 'createAnthropicMessage',
    summary: "Create a message in Anthropic's format",
    description:
      "For clients of Anthropic's API, such as its SDKs and Claude Code. The key is sent as `x-api-key` or as a bearer " +
      'token. You select the provider as for chat completions. The request, the answer, its events and errors pass ' +
      'unchanged, including members and betas that are unknown here; only the model is replaced by that of the target. ' +
      "Errors of the gateway have Anthropic's format as well.",
    example: {
      model: '@anthropic/claude-sonnet-4-5',
      max_tokens: 100,
      messages: [{ role: 'user', content: 'Why is the sky blue?' }],
    },
    errors: callErrors,
    tag: 'Messages',
    scope: 'chat.write',
    responses: {
      200: {
        description: 'The message, or server-sent events when `stream` is true.',
        schema: MessageResponse,
        streams: true,
      },
    },
  }),
];

export function modelRoutes(deps: ModelDeps & RelayDeps): Route[] {
  const read = { method: 'GET', tag: 'Models', scope: 'models.read' } as const;
  const modelsFor = (request: Request, response: Response) => {
    const { workspaceId, defaults } = getCaller(request);
    const wanted = { workspaceId, credentials: readCredentials(request.headers), defaults };
    return listModels(deps, wanted, abortWhenClientLeaves(response).signal);
  };
  const list: Route = {
    ...read,
    path: '/v1/models',
    operationId: 'listModels',
    summary: 'List the models that the key can use',
    description:
      'Lists the models of all virtual keys and providers of the workspace, with IDs like `@virtual-key/model`. With ' +
      '`x-gateway-virtual-key` or `x-gateway-provider`, it lists the models of that provider under their original names. ' +
      'Providers that do not answer in time are omitted.',
    errors: { upstream_invalid_response: 'no provider returned a valid list of models' },
    request: { query: ModelQuery, headers: credentialHeaders },
    responses: { 200: { description: 'The models.', schema: ModelList } },
    handler: async (request, response) => {
      response.json({ object: 'list', data: await modelsFor(request, response) });
    },
  };
  const retrieve: Route = {
    ...read,
    path: '/v1/models/:model',
    operationId: 'retrieveModel',
    summary: 'Retrieve a model',
    description:
      'Takes the ID from the list (`@virtual-key/model`) or, with the header `x-gateway-virtual-key`, the name that the ' +
      'provider uses.',
    errors: { model_not_found: 'no provider available to the key has this model' },
    responses: { 200: { description: 'The model.', schema: ModelObject } },
    ...withInput(
      { params: z.object({ model: z.string() }), headers: credentialHeaders },
      async ({ params }, request, response) => {
        const model = (await modelsFor(request, response)).find(({ id }) => id === params.model);
        if (!model) {
          const message = `The model '${params.model}' does not exist or you do not have access to it.`;
          throw new GatewayError('not_found', 'model_not_found', message, { param: 'model' });
        }
        response.json(model);
      },
    ),
  };
  return [list, retrieve, deleteModel(deps)];
}

/** Codex sends its version, which the answer does not depend on. */
const ModelQuery = z.object({ client_version: z.string().optional().describe('Ignored; sent by some clients.') });

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
