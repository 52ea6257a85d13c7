import { GatewayError } from '#libs/kernel/errors.ts';
import { anthropic } from '../anthropic/index.ts';
import { unused, type Call, type OutboundRequest, type Provider, type Upstream } from '../provider.ts';
import { getRegionAddress, ofPublisher } from './address.ts';
import {
  decodeVertexError,
  toVertexRequest,
  vertexChat,
  vertexCount,
  vertexCounts,
  vertexGenerate,
  vertexMessages,
} from './chat.ts';
import { createTokens } from './fetch-token.ts';
import { getServiceAccount } from './service-account.ts';
import { embeddingNative, embeddingTaken, readInputTexts, toEmbeddingList } from '../gemini/embeddings.ts';
import { type Json, asCount, asNumber, compact, toRecord, toRecords } from '../turns/json-value.ts';
import { droppedParams } from '../turns/turn-request.ts';

/**
 * Google's Vertex AI: Gemini, Claude, and open models behind its OpenAI-compatible endpoint. A target has a service
 * account, for which access tokens are fetched, or an access token as its key. `vertex_region` is required, and so is
 * `vertex_project_id` without a service account. Models are not listed, because Google has no list of the models that a
 * project can use.
 *
 * @testOnly
 */
export function createVertex(): Provider {
  const tokenOf = createTokens();
  return {
    id: 'vertex',
    semanticName: 'gcp.vertex_ai',
    aliases: ['vertex-ai'],
    settings: {
      vertex_region: {},
      vertex_project_id: {},
      vertex_service_account_json: { secret: true, json: true, authenticates: true },
      vertex_storage_bucket_name: { unused: true },
      ...unused(anthropic.settings),
    },
    address: 'https://{vertex_region}-aiplatform.googleapis.com/v1',
    baseUrlOf: getRegionAddress,
    needsCredential: true,
    clientHeaders: ['anthropic-beta'],
    requestIdHeaders: ['x-request-id', 'request-id'],
    notes: [
      'Its Claude models have no JSON mode for `json_object`; the others have one.',
      'With `stream_function_call_arguments: true`, Gemini 3 streams the arguments of tool calls piece by piece.',
    ],
    operations: {
      chat: vertexChat,
      messages: vertexMessages,
      count_tokens: vertexCounts,
      generate_content: vertexGenerate,
      count_content_tokens: vertexCount,
      embeddings: {
        encode: encodeVertexEmbedding,
        decode: decodeVertexEmbedding,
        decodeError: decodeVertexError,
      },
    },
    authorize: async (request, upstream, tools) => {
      const account = getServiceAccount(upstream);
      const token = account ? await tokenOf(account, upstream, tools) : upstream.apiKey?.reveal();
      if (token === undefined) throw missingCredential();
      if (account) tools.keepSecret(token);
      request.headers.push('authorization', `Bearer ${token}`);
    },
  };
}

export const vertex: Provider = createVertex();

const missingCredential = (): GatewayError =>
  new GatewayError(
    'invalid_request',
    'missing_credential',
    'Vertex AI needs vertex_service_account_json on the virtual key, or an access token as the key.',
  );

const taken = new Set([...embeddingTaken, 'auto_truncate', 'autoTruncate']);

/** POST …/publishers/google/models/{model}:predict. The maximum of texts in one call depends on the model. */
function encodeVertexEmbedding(call: Call, upstream: Upstream): OutboundRequest {
  const body = call.json();
  const { path } = ofPublisher('google', String(body['model']).replace(/^google[./]/, ''));
  const [taskType, title] = embeddingNative.map((name) => body[name] ?? body[name === 'task_type' ? 'taskType' : name]);
  const parameters = compact({
    outputDimensionality: asNumber(body['dimensions']),
    autoTruncate: body['auto_truncate'] ?? body['autoTruncate'] ?? undefined,
  });
  const sent = {
    instances: readInputTexts(body['input']).map((content) => compact({ content, task_type: taskType, title })),
    ...(Object.keys(parameters).length > 0 ? { parameters } : {}),
  };
  return { ...toVertexRequest(upstream, `${path}:predict`, sent, false), dropped: droppedParams(body, taken) };
}

/** Converts `predictions[].embeddings` to OpenAI's list; usage is the sum of all texts' tokens. */
function decodeVertexEmbedding(body: unknown, call: Call): unknown {
  const { predictions } = toRecord(body);
  if (!Array.isArray(predictions)) return body; // The answer has no embeddings, which the core reports.
  const found = toRecords(predictions).map((prediction) => toRecord(prediction['embeddings']));
  const tokens = ({ statistics }: Json): number => asCount(toRecord(statistics)['token_count']);
  return toEmbeddingList(
    found.map(({ values }) => values),
    call,
    found.reduce((sum, embedding) => sum + tokens(embedding), 0),
  );
}
