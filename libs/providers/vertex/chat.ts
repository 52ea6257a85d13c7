import { encodeClaudeBody } from '../anthropic/encode.ts';
import { decodeAnthropicError } from '../anthropic/errors.ts';
import { openClaudeStream } from '../anthropic/stream.ts';
import { decodeGeminiChat, readGeminiDetails } from '../gemini/decode.ts';
import { encodeGeminiBody } from '../gemini/encode.ts';
import { decodeGoogleError } from '../gemini/errors.ts';
import { urlsToFetch } from '../gemini/media.ts';
import { openGeminiStream } from '../gemini/stream.ts';
import { throughChat } from '../chat/through-chat.ts';
import { wantsAnyJsonObject } from '../chat/json-in-words.ts';
import { relayCount, relayGenerate } from '../generate-content/relay-generate.ts';
import { messageBody, modelOfMessages, relayMessages } from '../messages/relay-messages.ts';
import { openAiCompatible } from '../openai-compatible.ts';
import { decodeOpenAiError } from '../openai-error.ts';
import type { Call, OutboundRequest, ProviderError, StreamDecoder, Translation, Upstream } from '../provider.ts';
import { getTargetLocation, ofPublisher, parseVertexModel, type VertexModel } from './address.ts';
import { decodeClaudeMessage, readClaudeDetails } from '../anthropic/decode.ts';
import { parseJson, toRecord } from '../turns/json-value.ts';
import { readTurns } from '../turns/read-turns.ts';
import { mediaUrls } from '../turns/turn-request.ts';

const claudeVersion = 'vertex-2023-10-16';
const openApi = openAiCompatible({ id: 'vertex-openapi', operations: ['chat'] }).operations.chat;

const publisherOf = (call: Call): VertexModel['publisher'] => parseVertexModel(call.model).publisher;

/** Chat with the models of Vertex AI. Each has its vendor's API, which its name determines. */
export const vertexChat: Translation = {
  encode: (call, upstream) => {
    const model = parseVertexModel(call.model);
    switch (model.publisher) {
      case 'google':
        return encodeGemini(call, upstream, model);
      case 'anthropic':
        return encodeClaude(call, upstream, model);
      case 'openapi':
        return openApiFor(call).encode(call, upstream);
    }
  },
  asksForJsonInWords: (call) => wantsAnyJsonObject(call) && publisherOf(call) === 'anthropic',
  resourcesOf: (call) => {
    switch (publisherOf(call)) {
      case 'google':
        return urlsToFetch(call);
      case 'anthropic':
        return mediaUrls(readTurns(call)); // Claude fetches no URLs on Vertex AI.
      case 'openapi':
        return openApiFor(call).resourcesOf?.(call) ?? [];
    }
  },
  decode: (body, call) => {
    switch (publisherOf(call)) {
      case 'google':
        return decodeGeminiChat(body, call);
      case 'anthropic':
        return decodeClaudeMessage(body, call);
      case 'openapi':
        return openApiFor(call).decode?.(body, call) ?? body;
    }
  },
  detailsOf: (body) => {
    const answer = toRecord(body);
    return answer['usageMetadata'] === undefined
      ? readClaudeDetails(toRecord(answer['usage']))
      : readGeminiDetails(answer);
  },
  openStream: (call) => {
    switch (publisherOf(call)) {
      case 'google':
        return openGeminiStream(call);
      case 'anthropic':
        return openClaudeStream(call);
      case 'openapi':
        return openApiFor(call).openStream?.(call) ?? passing();
    }
  },
  decodeError: decodeVertexError,
};

/** Decodes an error in any of the three formats. Google's front end answers for all models, in its own format. */
export function decodeVertexError(status: number, body: string): ProviderError {
  const parsed = parseJson(body);
  if (parsed === undefined) return decodeGoogleError(status, body);
  const outer = toRecord(Array.isArray(parsed) ? parsed[0] : parsed);
  if (outer['type'] === 'error') return decodeAnthropicError(status, body);
  const { status: name, code } = toRecord(outer['error']);
  const isGoogles = typeof name === 'string' || typeof code === 'number';
  return isGoogles ? decodeGoogleError(status, body) : decodeOpenAiError(status, body);
}

function encodeGemini(call: Call, upstream: Upstream, model: VertexModel): OutboundRequest {
  const { body, dropped } = encodeGeminiBody(call);
  const method = call.stream ? ':streamGenerateContent?alt=sse' : ':generateContent';
  return { ...toVertexRequest(upstream, model.path + method, body, call.stream), dropped };
}

function encodeClaude(call: Call, upstream: Upstream, model: VertexModel): OutboundRequest {
  const { body, dropped } = encodeClaudeBody(call);
  const sent = { anthropic_version: claudeVersion, ...body, ...(call.stream ? { stream: true } : {}) };
  const method = call.stream ? ':streamRawPredict' : ':rawPredict';
  return { ...withBetas(call, toVertexRequest(upstream, model.path + method, sent, call.stream)), dropped };
}

function withBetas({ headers }: Call, request: OutboundRequest): OutboundRequest {
  const beta = headers['anthropic-beta'];
  if (beta !== undefined) request.headers.push('anthropic-beta', beta);
  return request;
}

const isClaude = (model: string): boolean => parseVertexModel(model).publisher === 'anthropic';

/** Claude on Vertex AI has Anthropic's API, with the model in the path and a version in the body. */
export const vertexMessages = relayMessages(
  (call, upstream) => {
    const model = parseVertexModel(modelOfMessages(call));
    const body = messageBody(call, { model: undefined, anthropic_version: JSON.stringify(claudeVersion) });
    const method = call.stream ? ':streamRawPredict' : ':rawPredict';
    return withBetas(call, toVertexRequest(upstream, model.path + method, body, call.stream));
  },
  { decodeError: decodeVertexError, serves: isClaude },
);

/** A separate model counts tokens. The body names the model whose tokens they are. */
export const vertexCounts = relayMessages(
  (call, upstream) => {
    const model = String(modelOfMessages(call)).replace(/^anthropic[./]/, '');
    const { path } = ofPublisher('anthropic', 'count-tokens');
    const body = messageBody(call, {
      model: JSON.stringify(model),
      anthropic_version: JSON.stringify(claudeVersion),
    });
    return withBetas(call, toVertexRequest(upstream, `${path}:rawPredict`, body, false));
  },
  { decodeError: decodeVertexError, serves: isClaude },
);

/** Google's own models on Vertex AI have the API of Gemini. */
const sendToGoogle = (call: Call, upstream: Upstream, method: string, body: Uint8Array): OutboundRequest =>
  toVertexRequest(upstream, `${parseVertexModel(call.model).path}:${method}`, body, call.stream);
const ofGoogle = {
  decodeError: decodeVertexError,
  serves: (model: string): boolean => parseVertexModel(model).publisher === 'google',
};
export const vertexGenerate = relayGenerate(sendToGoogle, ofGoogle);
export const vertexCount = relayCount(sendToGoogle, ofGoogle);

/** The OpenAI-compatible endpoint gets the bytes of clients of that format. */
const openApiChat: Translation = { encode: encodeOpenApi, openStream: passing, decodeError: decodeVertexError };
const openApiTurns = throughChat(openApiChat, 'vertex');

const openApiFor = ({ operation }: Call): Translation => (operation === 'chat' ? openApiChat : openApiTurns);

function encodeOpenApi(call: Call, upstream: Upstream): OutboundRequest {
  const { origin, path } = getTargetLocation(upstream);
  const baseUrl = new URL(origin + path + parseVertexModel(call.model).path);
  if (!openApi) throw new Error('an OpenAI-compatible provider has no chat');
  return openApi.encode({ ...call, headers: {} }, { ...upstream, baseUrl, apiKey: null });
}

/** A POST of JSON, or of its bytes, below the target's project and region; `authorize` adds the token. */
export function toVertexRequest(
  upstream: Upstream,
  method: string,
  body: object | Uint8Array,
  stream: boolean,
): OutboundRequest {
  const { origin, path } = getTargetLocation(upstream);
  return {
    method: 'POST',
    origin,
    path: path + method,
    headers: ['accept', stream ? 'text/event-stream' : 'application/json', 'content-type', 'application/json'],
    body: body instanceof Uint8Array ? body : Buffer.from(JSON.stringify(body)),
  };
}

/** Already in OpenAI's format: the text of each payload is passed on unchanged. */
function passing(): StreamDecoder {
  return {
    push: ({ event, data }) => {
      if (data === '[DONE]') return { payloads: [], done: true };
      if (event === 'error') return { payloads: [], error: decodeVertexError(200, data) };
      return { payloads: [data] };
    },
  };
}
