import { z } from 'zod';
import type { Request, Response } from 'express';
import { listModels, type ModelDeps } from '#libs/credentials/list-models.ts';
import { credentialHeaders, readCredentials } from '#libs/credentials/requested.ts';
import { ChatCompletionRequest, ChatCompletionResponse } from '#libs/contracts/calls/chat.ts';
import { CompletionRequest, CompletionResponse } from '#libs/contracts/calls/completions.ts';
import { EmbeddingRequest, EmbeddingResponse } from '#libs/contracts/calls/embeddings.ts';
import { MessageRequest, MessageResponse, TokenCount } from '#libs/contracts/calls/messages.ts';
import {
  AnthropicModel,
  AnthropicModelList,
  AnthropicPageQuery,
  ModelList,
  ModelObject,
} from '#libs/contracts/calls/models.ts';
import {
  findListedModels,
  findUsableModel,
  type PublicModel,
  type PublicModelRecords,
} from '#libs/credentials/configs/public-models.ts';
import { ResponseObject, ResponseRequest } from '#libs/contracts/calls/responses.ts';
import { abortWhenClientLeaves } from '#libs/http/client-signal.ts';
import { getCaller } from '#libs/http/request-context.ts';
import { withInput, type Route } from '#libs/http/route.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { versionHeader } from '#libs/providers/messages/version-header.ts';
import { callErrors } from '../document-texts.ts';
import { estimatedCount, estimateIfUnsupported } from './estimated-count.ts';
import { liveRoute, type LiveDeps, type LiveOperation } from './forward-live-call.ts';
import { toAnthropicModel, toAnthropicPage, toOpenAiModel } from './public-model-lists.ts';
import { relayHandler, toAreaTag, type RelayDeps } from './relay-call.ts';
import { relayExamples } from './relay-examples.ts';
import { storedObjectErrors } from './relay-routes.ts';

export const callTags = {
  Chat: 'Chat completions of any provider in the format of OpenAI.',
  Completions: 'Text completions.',
  Embeddings: 'Embedding vectors.',
  Messages: "Messages in Anthropic's format.",
  Models: 'The models that a key can use.',
};

/** The calls that are translated for each provider, in the formats of OpenAI and Anthropic. */
export const liveOperations = {
  chat: {
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
  },
  completions: {
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
  },
  embeddings: {
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
  },
  messages: {
    operation: 'messages',
    request: MessageRequest,
    path: '/v1/messages',
    contract: '/v1/messages',
    query: { query: 'relayed' },
    operationId: 'createAnthropicMessage',
    summary: "Create a message in Anthropic's format",
    description:
      "For clients of Anthropic's API, such as its SDKs and Claude Code. The key is sent as `x-api-key` or as a bearer " +
      'token. You select the provider as for chat completions. For Claude at Anthropic, Vertex AI or Bedrock, the request, ' +
      'the answer, its events and errors pass unchanged, including members and betas that are unknown here; only the ' +
      'model is replaced by that of the target. For all other models they are translated. ' +
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
  },
  countTokens: {
    operation: 'count_tokens',
    request: MessageRequest,
    path: '/v1/messages/count_tokens',
    contract: '/v1/messages',
    query: { query: 'relayed' },
    isFree: true,
    convert: (outcome, { bytes }) => estimateIfUnsupported(outcome, bytes, (tokens) => ({ input_tokens: tokens })),
    operationId: 'countMessageTokens',
    summary: "Count the tokens of a message in Anthropic's format",
    description:
      'For a Claude model at Anthropic or Vertex AI, the provider counts. For any other model, the count is estimated ' +
      `from the size of the request, and the answer has the header \`${estimatedCount}: estimated\`. It costs nothing.`,
    example: {
      model: '@anthropic/claude-sonnet-4-5',
      messages: [{ role: 'user', content: 'Why is the sky blue?' }],
    },
    errors: callErrors,
    tag: 'Messages',
    scope: 'chat.write',
    responses: { 200: { description: 'The count.', schema: TokenCount } },
  },
  responses: {
    operation: 'responses',
    request: ResponseRequest,
    path: '/v1/responses',
    contract: '/v1/responses',
    query: { query: 'relayed' },
    operationId: 'createResponse',
    summary: 'Create a model response',
    description:
      'The Responses API of any provider, for clients such as the SDKs of OpenAI and Codex. You select the provider as for ' +
      'chat completions. Providers that have this API get the request unchanged, including stored responses and tools that ' +
      'run there; only the model is replaced. For other providers, the request is translated: they accept messages, images, ' +
      'files, functions, custom tools and reasoning, but neither stored objects nor tools that run at OpenAI.',
    example: relayExamples.createResponse,
    errors: { ...callErrors, stored_object_not_found: storedObjectErrors.stored_object_not_found },
    tag: toAreaTag('responses'),
    scope: 'responses.write',
    responses: {
      200: {
        description: 'The response, or server-sent events when `stream` is true.',
        schema: ResponseObject,
        streams: true,
      },
    },
  },
} as const satisfies Record<string, LiveOperation>;

export const liveRoutes = (deps: LiveDeps): Route[] =>
  Object.values(liveOperations).map((operation) => liveRoute(deps, operation));

export function modelRoutes(deps: ModelDeps & RelayDeps & { snapshot: PublicModelRecords }): Route[] {
  const read = { method: 'GET', tag: 'Models', scope: 'models.read' } as const;
  const modelsFor = (request: Request, response: Response) => {
    const { workspaceId, defaults } = getCaller(request);
    const wanted = { workspaceId, credentials: readCredentials(request.headers), defaults };
    return listModels(deps, wanted, abortWhenClientLeaves(response).signal);
  };
  const callerOfModels = (request: Request) => {
    const { workspaceId, keyId, principal } = getCaller(request);
    return { workspaceId, keyId, role: principal.role };
  };
  /** null: the models of providers are listed. */
  const publicFor = (request: Request): PublicModel[] | null => {
    const { defaults } = getCaller(request);
    const credentials = readCredentials(request.headers);
    return findListedModels(deps.snapshot, { credentials, defaults, caller: callerOfModels(request) });
  };
  const list: Route = {
    ...read,
    path: '/v1/models',
    operationId: 'listModels',
    summary: 'List the models that the key can use',
    description:
      'Lists the public models that the key can use, if the workspace has any. Otherwise, it lists the models of all ' +
      'virtual keys and providers of the workspace, with IDs like `@virtual-key/model`. With `x-gateway-virtual-key` or ' +
      '`x-gateway-provider`, it lists the models of that provider under their original names. Providers that do not ' +
      `answer in time are omitted. With the header \`${versionHeader}\`, public models are listed in Anthropic's format, ` +
      'to which `limit`, `after_id` and `before_id` belong.',
    errors: { upstream_invalid_response: 'no provider returned a valid list of models' },
    responses: { 200: { description: 'The models.', schema: z.union([ModelList, AnthropicModelList]) } },
    ...withInput({ query: ModelQuery, headers: credentialHeaders }, async ({ query }, request, response) => {
      const listed = publicFor(request);
      if (listed !== null && isAnthropic(request)) response.json(toAnthropicPage(listed, query));
      else {
        const data = listed === null ? await modelsFor(request, response) : listed.map(toOpenAiModel);
        response.json({ object: 'list', data });
      }
    }),
  };
  const retrieve: Route = {
    ...read,
    path: '/v1/models/:model',
    operationId: 'retrieveModel',
    summary: 'Retrieve a model',
    description:
      'Takes the ID from the list (a public model or `@virtual-key/model`) or, with the header `x-gateway-virtual-key`, the name that the ' +
      'provider uses.',
    errors: { model_not_found: 'no provider available to the key has this model' },
    responses: { 200: { description: 'The model.', schema: z.union([ModelObject, AnthropicModel]) } },
    ...withInput(
      { params: z.object({ model: z.string() }), headers: credentialHeaders },
      async ({ params }, request, response) => {
        if (!params.model.startsWith('@') && publicFor(request) !== null) {
          const found = findUsableModel(deps.snapshot, params.model, callerOfModels(request));
          const named = { ...found, name: params.model };
          response.json(isAnthropic(request) ? toAnthropicModel(named) : toOpenAiModel(named));
          return;
        }
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
const ModelQuery = z.object({
  client_version: z.string().optional().describe('Ignored; sent by some clients.'),
  ...AnthropicPageQuery,
});

/** Anthropic's clients send this header with every request. */
const isAnthropic = ({ headers }: Request): boolean => headers[versionHeader] !== undefined;

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
