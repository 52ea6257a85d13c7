import { z } from 'zod';
import type { Request, Response } from 'express';
import type { Outcome } from '#libs/calls/call.ts';
import {
  findListedModels,
  findUsableModel,
  type ModelCaller,
  type PublicModelRecords,
} from '#libs/credentials/configs/public-models.ts';
import { listModels, type ModelDeps } from '#libs/credentials/list-models.ts';
import { credentialHeaders, readCredentials } from '#libs/credentials/requested.ts';
import {
  BatchEmbedContentsRequest,
  BatchEmbedContentsResponse,
  CountTokensRequest,
  CountTokensResponse,
  EmbedContentRequest,
  EmbedContentResponse,
  GenerateContentRequest,
  GenerateContentResponse,
  GoogleModel,
  GoogleModelList,
} from '#libs/contracts/calls/generate-content.ts';
import type { JsonBody } from '#libs/http/bodies/json-body.ts';
import { abortWhenClientLeaves } from '#libs/http/client-signal.ts';
import { getCaller } from '#libs/http/request-context.ts';
import { withInput, type Route } from '#libs/http/route.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { toEmbeddingAnswer, toEmbeddingRequest } from '#libs/providers/generate-content/convert-embeddings.ts';
import { toGoogleError } from '#libs/providers/generate-content/google-error.ts';
import { type Json, asText, toRecord, toRecords } from '#libs/providers/turns/json-value.ts';
import { callErrors } from '../document-texts.ts';
import { estimatedCount, estimateIfUnsupported } from './estimated-count.ts';
import { liveRoute, type LiveDeps, type LiveInput } from './forward-live-call.ts';

export const googleTags = { Google: "Calls in the format of Google's Gemini API." };

/** Google's clients ask for events in the query. */
const StreamQuery = z.object({
  alt: z.enum(['sse', 'json']).optional().describe('`sse`: server-sent events; otherwise a stream is a JSON list.'),
});
const PlainQuery = z.object({ alt: z.literal('json').optional().describe('Answers are always JSON.') });

/** The model is in the path, as `models/{name}` or `{name}`. */
const readModel = ({ params }: Request): string => String(params['model']).replace(/^models\//, '');

const question = { contents: [{ role: 'user', parts: [{ text: 'Why is the sky blue?' }] }] };
const selects = 'You select the provider as for chat completions, with the model in the path (`@virtual-key/model`).';

/** Calls of Google's API. The URLs of its clients become these paths first (libs/http/client-paths.ts). */
export function googleCallRoutes(deps: LiveDeps): Route[] {
  const shared = { tag: 'Google', errors: callErrors } as const;
  const generate = {
    ...shared,
    operation: 'generate_content',
    contract: 'generate_content',
    scope: 'chat.write',
  } as const;
  const embed = {
    ...shared,
    operation: 'embeddings',
    scope: 'embeddings.write',
    query: { query: PlainQuery },
  } as const;
  const answer = { description: 'The answer.', schema: GenerateContentResponse };
  return [
    liveRoute(deps, {
      ...generate,
      request: GenerateContentRequest,
      path: String.raw`/v1beta/models/:model\:generateContent`,
      query: { query: PlainQuery },
      readInput: readGenerate(false),
      operationId: 'generateContent',
      summary: "Generate content in Google's format",
      description:
        "For clients of Google's API, such as its SDKs and Gemini CLI. The key is sent as `x-goog-api-key` or as a bearer " +
        `token, never in the URL. ${selects} For Gemini, request and answer pass unchanged, including members that are ` +
        "unknown here. Errors have Google's format. Vertex AI's paths work too.",
      example: question,
      responses: { 200: answer },
    }),
    liveRoute(deps, {
      ...generate,
      request: GenerateContentRequest,
      path: String.raw`/v1beta/models/:model\:streamGenerateContent`,
      query: { query: StreamQuery },
      readInput: readGenerate(true),
      operationId: 'streamGenerateContent',
      summary: "Stream content in Google's format",
      description:
        'With `alt=sse`, the answer is sent as server-sent events, otherwise as a JSON list. A stream that breaks off ends ' +
        "with an error in Google's format.",
      example: question,
      responses: {
        200: { description: 'The pieces of the answer.', schema: z.array(GenerateContentResponse), streams: true },
      },
    }),
    liveRoute(deps, {
      ...shared,
      operation: 'count_content_tokens',
      contract: 'count_content_tokens',
      scope: 'chat.write',
      request: CountTokensRequest,
      path: String.raw`/v1beta/models/:model\:countTokens`,
      query: { query: PlainQuery },
      readInput: readGenerate(false),
      isFree: true,
      convert: (outcome, { bytes }) => estimateIfUnsupported(outcome, bytes, (totalTokens) => ({ totalTokens })),
      operationId: 'countContentTokens',
      summary: "Count tokens in Google's format",
      description:
        'Gemini counts them itself. For other models, the count is estimated ' +
        `from the size of the request, and the answer has the header \`${estimatedCount}: estimated\`. It costs nothing.`,
      example: question,
      responses: { 200: { description: 'The number of tokens.', schema: CountTokensResponse } },
    }),
    liveRoute(deps, {
      ...embed,
      contract: 'embed_content',
      request: EmbedContentRequest,
      path: String.raw`/v1beta/models/:model\:embedContent`,
      readInput: readEmbed((body) => [body]),
      convert: (outcome) => convertAnswer(outcome, (body) => toEmbeddingAnswer(body, false)),
      operationId: 'embedContent',
      summary: "Create an embedding in Google's format",
      description:
        'Works with the embeddings of any provider. Other providers than Google ignore `taskType` and `title`.',
      example: { content: { parts: [{ text: 'The sky' }] } },
      responses: { 200: { description: 'The embedding.', schema: EmbedContentResponse } },
    }),
    liveRoute(deps, {
      ...embed,
      contract: 'batch_embed_contents',
      request: BatchEmbedContentsRequest,
      path: String.raw`/v1beta/models/:model\:batchEmbedContents`,
      readInput: readEmbed(({ requests }) => toRecords(requests)),
      convert: (outcome) => convertAnswer(outcome, (body) => toEmbeddingAnswer(body, true)),
      operationId: 'batchEmbedContents',
      summary: "Create embeddings in Google's format",
      description: 'All requests must have the same parameters. The model is that of the path.',
      example: {
        requests: [{ content: { parts: [{ text: 'The sky' }] } }, { content: { parts: [{ text: 'The sea' }] } }],
      },
      responses: { 200: { description: 'The embeddings.', schema: BatchEmbedContentsResponse } },
    }),
  ];
}

/** Conditions of a config can read model and stream like those of other calls. */
const readGenerate =
  (stream: boolean) =>
  (request: Request, json: JsonBody): LiveInput => {
    const head = { model: readModel(request), stream };
    return { head, bytes: json.bytes, parse: () => ({ ...(json.value as Json), ...head }) };
  };

const readEmbed =
  (requestsIn: (body: Json) => readonly Json[]) =>
  (request: Request, json: JsonBody): LiveInput => {
    const model = readModel(request);
    const parsed = toEmbeddingRequest(requestsIn(toRecord(json.value)), model);
    return { head: { model }, bytes: Buffer.from(JSON.stringify(parsed)), parse: () => parsed };
  };

/** Converts an answer of another operation. Its errors have OpenAI's form. */
function convertAnswer(outcome: Outcome, convert: (body: Json) => Json): Outcome {
  if (outcome.kind !== 'json') return outcome;
  const body = toRecord(JSON.parse(outcome.body.toString()));
  const { message, param, code } = toRecord(body['error']);
  const error = { message: asText(message) ?? '', param: asText(param) ?? null, code: asText(code) ?? null };
  const converted = body['error'] === undefined ? convert(body) : toGoogleError(outcome.status, error);
  const results = body['hook_results'] === undefined ? {} : { hook_results: body['hook_results'] };
  return { ...outcome, body: Buffer.from(JSON.stringify({ ...converted, ...results })) };
}

const ListQuery = z.object({
  pageSize: z.coerce.number().int().min(1).max(1_000).optional().describe('Default 1,000.'),
  pageToken: z
    .string()
    .regex(/^\d{1,6}$/)
    .optional()
    .describe('The `nextPageToken` of the previous page.'),
});

/** The models of `GET /v1/models` in Google's form. */
export function googleModelRoutes(deps: ModelDeps & { snapshot: PublicModelRecords }): Route[] {
  const read = { method: 'GET', tag: 'Google', scope: 'models.read' } as const;
  const providerModels = async (request: Request, response: Response): Promise<string[]> => {
    const { workspaceId, defaults } = getCaller(request);
    const wanted = { workspaceId, credentials: readCredentials(request.headers), defaults };
    return (await listModels(deps, wanted, abortWhenClientLeaves(response).signal)).map(({ id }) => id);
  };
  const callerOfModels = (request: Request): ModelCaller => {
    const { workspaceId, keyId, principal } = getCaller(request);
    return { workspaceId, keyId, role: principal.role };
  };
  /** null: the models of providers are listed. */
  const publicModels = (request: Request): string[] | null => {
    const { defaults } = getCaller(request);
    const credentials = readCredentials(request.headers);
    const listed = findListedModels(deps.snapshot, { credentials, defaults, caller: callerOfModels(request) });
    return listed?.map(({ name }) => name) ?? null;
  };
  const list: Route = {
    ...read,
    path: '/v1beta/models',
    operationId: 'listGoogleModels',
    summary: "List the models that the key can use in Google's format",
    description: 'The models of `GET /v1/models`, such as `models/@virtual-key/model`.',
    errors: { upstream_invalid_response: 'no provider returned a valid list of models' },
    responses: { 200: { description: 'The models.', schema: GoogleModelList } },
    ...withInput({ query: ListQuery, headers: credentialHeaders }, async ({ query }, request, response) => {
      const { pageSize = 1_000, pageToken = '0' } = query;
      const models = (publicModels(request) ?? (await providerModels(request, response))).map(toGoogleModel);
      const end = Number(pageToken) + pageSize;
      const next = end < models.length ? { nextPageToken: String(end) } : {};
      response.json({ models: models.slice(Number(pageToken), end), ...next });
    }),
  };
  const retrieve: Route = {
    ...read,
    path: '/v1beta/models/:model',
    operationId: 'retrieveGoogleModel',
    summary: "Retrieve a model in Google's format",
    description: 'Takes the name from the list, with or without `models/`.',
    errors: { model_not_found: 'no provider available to the key has this model' },
    responses: { 200: { description: 'The model.', schema: GoogleModel } },
    ...withInput(
      { params: z.object({ model: z.string() }), headers: credentialHeaders },
      async (_input, request, response) => {
        const name = readModel(request);
        if (!name.startsWith('@') && publicModels(request) !== null) {
          findUsableModel(deps.snapshot, name, callerOfModels(request));
        } else if (!(await providerModels(request, response)).includes(name)) {
          const message = `The model 'models/${name}' does not exist or you do not have access to it.`;
          throw new GatewayError('not_found', 'model_not_found', message, { param: 'model' });
        }
        response.json(toGoogleModel(name));
      },
    ),
  };
  return [list, retrieve];
}

/** Which methods a model has is not known, so all are listed. */
const toGoogleModel = (id: string): z.output<typeof GoogleModel> => ({
  name: `models/${id}`,
  displayName: id,
  supportedGenerationMethods: ['generateContent', 'countTokens', 'embedContent', 'batchEmbedContents'],
});
