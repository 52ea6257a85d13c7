import { mediaUrls, readChatMessages } from '../chat-messages.ts';
import { wantsAnyJsonObject } from '../json-in-words.ts';
import type { Call, OutboundRequest, Provider, Settings, Upstream } from '../provider.ts';
import { partsOf } from '../url-parts.ts';
import { decodeConverse } from './decode.ts';
import { decodeEmbeddings, encodeEmbeddingsBody } from './embeddings.ts';
import { encodeConverseBody } from './encode.ts';
import { decodeBedrockError } from './errors.ts';
import { openEventFraming } from './framing.ts';
import { toPathSegment } from './models.ts';
import { assertRegion, awsDomain } from './region.ts';
import { signRequest } from './sign.ts';
import { openConverseStream } from './stream.ts';

/**
 * Amazon Bedrock: chat by the Converse API, embeddings by InvokeModel. A target has an API
 * key of Bedrock, sent as bearer, or credentials by which each request is signed. Its models are listed by another service.
 */
export const bedrock: Provider = {
  id: 'bedrock',
  baseUrlOf,
  needsCredential: true,
  clientHeaders: [],
  requestIdHeaders: ['x-amzn-requestid'],
  operations: {
    chat: {
      encode: (call, upstream) => {
        const { model, body, dropped } = encodeConverseBody(call);
        return requestOf(upstream, model, call.stream ? 'converse-stream' : 'converse', body, dropped);
      },
      asksForJsonInWords: wantsAnyJsonObject,
      resourcesOf: (call: Call) => mediaUrls(readChatMessages(call.json()['messages'])),
      decode: decodeConverse,
      openStream: openConverseStream,
      openFraming: openEventFraming,
      decodeError: decodeBedrockError,
    },
    embeddings: {
      encode: (call, upstream) => {
        const { model, body, dropped } = encodeEmbeddingsBody(call);
        return requestOf(upstream, model, 'invoke', body, dropped);
      },
      decode: decodeEmbeddings,
      decodeError: decodeBedrockError,
    },
  },
  authorize: async (request, upstream, tools) => {
    if (!upstream.apiKey) await signRequest(request, upstream, tools);
  },
};

const addresses = new Map<string, URL>();

function baseUrlOf(settings: Settings): URL | null {
  const region = settings['aws_region'];
  if (region === undefined || region === '') return null;
  assertRegion(region);
  let address = addresses.get(region);
  if (address === undefined) {
    address = new URL(`https://bedrock-runtime.${region}.${awsDomain(region)}`);
    if (addresses.size < 100) addresses.set(region, address); // there are about 40
  }
  return address;
}

function requestOf(
  { baseUrl, apiKey }: Upstream,
  model: string,
  action: string,
  body: unknown,
  dropped: readonly string[],
): OutboundRequest {
  const { origin, folder, search } = partsOf(baseUrl);
  const headers = ['content-type', 'application/json'];
  if (apiKey) headers.push('authorization', `Bearer ${apiKey.reveal()}`);
  const path = `${folder}/model/${toPathSegment(model)}/${action}${search}`;
  return { method: 'POST', origin, path, headers, body: Buffer.from(JSON.stringify(body)), dropped };
}
