import { z } from 'zod';
import type { Request } from 'express';
import type { Outcome } from '#libs/calls/call.ts';
import { ChatCompletionRequest } from '#libs/contracts/calls/chat.ts';
import { CompletionRequest } from '#libs/contracts/calls/completions.ts';
import { EmbeddingRequest } from '#libs/contracts/calls/embeddings.ts';
import { MessageRequest } from '#libs/contracts/calls/messages.ts';
import type { Route } from '#libs/http/route.ts';
import { toInvokeError } from '#libs/providers/bedrock/errors.ts';
import { betaHeader, hostMembers, readBetas } from '#libs/providers/messages/hosted-body.ts';
import { asText, parseJson, toRecord, type Json } from '#libs/providers/turns/json-value.ts';
import { liveRoute, type LiveDeps, type LiveOperation } from './forward-live-call.ts';
import { liveOperations } from './routes.ts';

const { chat, completions, embeddings, messages, countTokens } = liveOperations;

const modelOf = ({ params }: Request): string => String(params['model']);

/**
 * The same calls in the paths of Azure OpenAI, Bedrock and Vertex AI, which contain the model. The URLs of their clients
 * become these paths first (libs/http/client-paths.ts).
 */
export const hostedRoutes = (deps: LiveDeps): Route[] =>
  [...deploymentCalls, ...bedrockCalls, ...vertexCalls].map((call) => liveRoute(deps, call));

const deployed =
  'The deployment is the name of a model: a public model, or `@virtual-key/model`. For clients of Azure OpenAI.';

/** https://learn.microsoft.com/en-us/azure/ai-services/openai/reference */
const deploymentCalls: readonly LiveOperation[] = [
  {
    ...chat,
    path: '/openai/deployments/:model/chat/completions',
    request: withoutModel(ChatCompletionRequest),
    readPath: (request) => ({ model: modelOf(request) }),
    operationId: 'createDeploymentChatCompletion',
    summary: "Create a chat completion in the path of Azure's API",
    description: deployed,
    example: { messages: [{ role: 'user', content: 'Why is the sky blue?' }], max_tokens: 100 },
  },
  {
    ...completions,
    path: '/openai/deployments/:model/completions',
    request: withoutModel(CompletionRequest),
    readPath: (request) => ({ model: modelOf(request) }),
    operationId: 'createDeploymentCompletion',
    summary: "Create a text completion in the path of Azure's API",
    description: deployed,
    example: { prompt: 'The sky is', max_tokens: 20 },
  },
  {
    ...embeddings,
    path: '/openai/deployments/:model/embeddings',
    request: withoutModel(EmbeddingRequest),
    readPath: (request) => ({ model: modelOf(request) }),
    operationId: 'createDeploymentEmbedding',
    summary: "Create embeddings in the path of Azure's API",
    description: deployed,
    example: { input: ['The sky', 'The sea'] },
  },
];

const HostedMessage = withoutModel(MessageRequest);
const { model: _inPath, ...hostedExample } = messages.example;

/** A message whose model is in the path. Whether it streams is the action or method there. */
const readMessage =
  (stream: boolean) =>
  (request: Request, body: Json): Json => ({ model: modelOf(request), ...withoutHost(request, body), stream });

/** Betas are in the body there. */
function withoutHost(request: Request, body: Json): Json {
  const betas = readBetas(body);
  if (betas !== null) request.headers[betaHeader] ??= betas;
  return hostMembers;
}

/** https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_InvokeModel.html, with a bearer token as the key. */
const bedrockCalls: readonly LiveOperation[] = [
  {
    ...messages,
    path: '/model/:model/invoke',
    request: HostedMessage,
    readPath: readMessage(false),
    convert: toInvoked,
    operationId: 'invokeModel',
    summary: "Create a message in the path of Bedrock's API",
    description:
      'For clients that use Claude through Amazon Bedrock. The key is sent as a bearer token; signatures of AWS are not ' +
      "accepted. Model and errors have Bedrock's form, the body has Anthropic's. Every provider can serve it, as for messages.",
    example: hostedExample,
  },
  {
    ...messages,
    path: '/model/:model/invoke-with-response-stream',
    request: HostedMessage,
    readPath: readMessage(true),
    convert: toInvoked,
    operationId: 'invokeModelWithResponseStream',
    summary: "Stream a message in the path of Bedrock's API",
    description: 'The events are sent in the binary format of AWS, each with one event of Anthropic.',
    example: hostedExample,
    responses: {
      200: { description: 'The events.', contentType: 'application/vnd.amazon.eventstream' },
    },
  },
];

/** Errors of the provider in Bedrock's form. */
function toInvoked(outcome: Outcome): Outcome {
  if (outcome.kind !== 'json' || outcome.status < 400) return outcome;
  const { message } = toRecord(toRecord(parseJson(outcome.body.toString()))['error']);
  const error = toInvokeError(outcome.status, { message: asText(message) ?? '' });
  return { ...outcome, body: Buffer.from(JSON.stringify(error)) };
}

const onVertex = 'For clients that use Claude through Vertex AI. The key is sent as a bearer token.';

/** https://platform.claude.com/docs/en/api/claude-on-vertex-ai; counting tokens is a model there. */
const vertexCalls: readonly LiveOperation[] = [
  {
    ...countTokens,
    path: String.raw`/v1/publishers/anthropic/models/count-tokens\:rawPredict`,
    readPath: withoutHost,
    operationId: 'rawPredictTokenCount',
    summary: "Count the tokens of a message in the path of Vertex AI's API",
    description: `${onVertex} ${countTokens.description}`,
  },
  {
    ...messages,
    path: String.raw`/v1/publishers/anthropic/models/:model\:rawPredict`,
    request: HostedMessage,
    readPath: readMessage(false),
    operationId: 'rawPredictMessage',
    summary: "Create a message in the path of Vertex AI's API",
    description: `${onVertex} The path can begin with a project and a location, which are ignored.`,
    example: hostedExample,
  },
  {
    ...messages,
    path: String.raw`/v1/publishers/anthropic/models/:model\:streamRawPredict`,
    request: HostedMessage,
    readPath: readMessage(true),
    operationId: 'streamRawPredictMessage',
    summary: "Stream a message in the path of Vertex AI's API",
    description: `${onVertex} The events are Anthropic's.`,
    example: hostedExample,
  },
];

/** For the document: the contract that bodies are checked by contains the model of the path. */
function withoutModel<Shape extends { model: z.ZodType }>(schema: z.ZodObject<Shape>): z.ZodType {
  const { model: _inPath, ...shape } = schema.shape;
  return z.looseObject(shape);
}
