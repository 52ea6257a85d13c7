import type { Call, OutboundRequest, Provider, Upstream } from '../provider.ts';
import { partsOf } from '../url-parts.ts';
import { decodeChat, decodeModels } from './decode.ts';
import { encodeChatBody } from './encode.ts';
import { decodeCohereError } from './errors.ts';
import { openChatStream } from './stream.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { type Json, asCount, asNumber, asText, compact, toRecord } from '../turns/json-value.ts';
import { droppedParams } from '../turns/turn-request.ts';

const address = new URL('https://api.cohere.com/v2');
/** More models than exist, so that one page has all. */
const modelsMax = 1_000;

/** Cohere's v2 API (COHERE-1). */
export const cohere: Provider = {
  id: 'cohere',
  address: address.href,
  baseUrlOf: () => address,
  needsCredential: true,
  clientHeaders: ['x-client-name'],
  requestIdHeaders: ['x-debug-trace-id', 'x-request-id'],
  notes: ['It rejects JSON mode together with tools, and its models need the word “JSON” in a message.'],
  operations: {
    chat: {
      encode: (call, upstream) => post(call, upstream, '/chat', encodeChatBody(call)),
      decode: decodeChat,
      openStream: openChatStream,
      decodeError: decodeCohereError,
    },
    embeddings: {
      encode: (call, upstream) => post(call, upstream, '/embed', encodeEmbedBody(call)),
      decode: decodeEmbed,
      decodeError: decodeCohereError,
    },
    models: {
      encode: (call, upstream) => {
        const { origin, folder } = partsOf(upstream.baseUrl);
        // The list exists only in v1 of the API.
        const path = `${folder.replace(/\/v2$/, '')}/v1/models?page_size=${modelsMax}`;
        return { method: 'GET', origin, path, headers: headersOf(call, upstream), body: null };
      },
      decode: decodeModels,
      decodeError: decodeCohereError,
    },
  },
};

function post(
  call: Call,
  upstream: Upstream,
  path: string,
  encoded: { body: Json; dropped: string[] },
): OutboundRequest {
  const { origin, folder, search } = partsOf(upstream.baseUrl);
  const headers = headersOf(call, upstream);
  headers.push('content-type', 'application/json');
  return {
    method: 'POST',
    origin,
    path: folder + path + search,
    headers,
    body: Buffer.from(JSON.stringify(encoded.body)),
    dropped: encoded.dropped,
  };
}

function headersOf(call: Call, { apiKey }: Upstream): string[] {
  const headers = ['accept', call.stream ? 'text/event-stream' : 'application/json'];
  if (apiKey) headers.push('authorization', `Bearer ${apiKey.reveal()}`);
  for (const [name, value] of Object.entries(call.headers)) headers.push(name, value);
  return headers;
}

const taken = new Set(['input', 'dimensions', 'encoding_format', 'input_type', 'truncate']);

/**
 * The body of a v2 embed request. Cohere requires the purpose of the vectors, which OpenAI's API does not have: texts
 * count as documents to be found (`search_document`) unless the request has Cohere's own `input_type`. Vectors are
 * returned as floats; the core converts them to base64 if asked. Throws invalid_request for input as tokens.
 * @testOnly
 */
export function encodeEmbedBody(call: Call): { body: Json; dropped: string[] } {
  const given = call.json();
  const { input } = given;
  const texts = typeof input === 'string' ? [input] : Array.isArray(input) ? input : [];
  if (!texts.every((text) => typeof text === 'string')) {
    throw new GatewayError(
      'invalid_request',
      'unsupported_parameter',
      "Cohere does not support 'input' as tokens. Send it as text.",
      { param: 'input' },
    );
  }
  const body = compact({
    model: asText(given['model']) ?? '',
    texts,
    input_type: asText(given['input_type']) ?? 'search_document',
    embedding_types: ['float'],
    output_dimension: asNumber(given['dimensions']),
    truncate: asText(given['truncate']),
  });
  return { body, dropped: droppedParams(given, taken) };
}

/** Converts `{embeddings: {float: [[…]]}, meta}` to OpenAI's list. Anything else is returned unchanged. */
function decodeEmbed(body: unknown, call: Call): unknown {
  const answer = toRecord(body);
  const vectors = toRecord(answer['embeddings'])['float'];
  if (!Array.isArray(vectors)) return body;
  const { billed_units: billed, tokens } = toRecord(answer['meta']);
  const count = asCount(toRecord(billed)['input_tokens'] ?? toRecord(tokens)['input_tokens']);
  return {
    object: 'list',
    data: vectors.map((embedding: unknown, index) => ({ object: 'embedding', index, embedding })),
    model: asText(call.json()['model']) ?? '',
    usage: { prompt_tokens: count, total_tokens: count },
  };
}
