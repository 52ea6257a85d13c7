import type { Json } from '../chat/json-value.ts';
import type { Call, OutboundRequest, Provider, Upstream } from '../provider.ts';
import { partsOf } from '../url-parts.ts';
import { decodeChat, decodeModels } from './decode.ts';
import { decodeEmbed, encodeEmbedBody } from './embed.ts';
import { encodeChatBody } from './encode.ts';
import { decodeCohereError } from './errors.ts';
import { openChatStream } from './stream.ts';

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
