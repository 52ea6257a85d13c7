import type { Provider } from '../provider.ts';
import { decodeGeminiChat, readGeminiDetails } from './decode.ts';
import { decodeGeminiEmbedding, encodeGeminiEmbedding } from './embeddings.ts';
import { encodeGeminiChat, sendToGemini, toGeminiRequest } from './encode.ts';
import { decodeGoogleError } from './errors.ts';
import { urlsToFetch } from './media.ts';
import { openGeminiStream } from './stream.ts';
import { relayCount, relayGenerate } from '../generate-content/relay-generate.ts';
import { asText, toRecord, toRecords } from '../turns/json-value.ts';

const address = new URL('https://generativelanguage.googleapis.com/v1beta');
/** More models than exist, so that one page has all. */
const modelsMax = 1_000;

/** Google's Gemini API with an API key (GEMINI-1). */
export const gemini: Provider = {
  id: 'gemini',
  semanticName: 'gcp.gemini',
  aliases: ['google'],
  address: address.href,
  baseUrlOf: () => address,
  needsCredential: true,
  credentialHeaders: ['x-goog-api-key'],
  clientHeaders: [],
  requestIdHeaders: ['x-request-id'],
  notes: ['Older models reject JSON mode together with tools. The answer to `json_object` can be a list.'],
  operations: {
    chat: {
      encode: encodeGeminiChat,
      resourcesOf: urlsToFetch,
      decode: decodeGeminiChat,
      detailsOf: (body) => readGeminiDetails(toRecord(body)),
      openStream: openGeminiStream,
      decodeError: decodeGoogleError,
    },
    generate_content: relayGenerate(sendToGemini),
    count_content_tokens: relayCount(sendToGemini),
    embeddings: {
      encode: encodeGeminiEmbedding,
      decode: decodeGeminiEmbedding,
      decodeError: decodeGoogleError,
    },
    models: {
      encode: (call, upstream) => toGeminiRequest(call, upstream, `/models?pageSize=${modelsMax}`, null),
      decode: decodeModels,
      decodeError: decodeGoogleError,
    },
  },
};

/** Google does not report when a model was created. */
function decodeModels(body: unknown): unknown {
  const { models } = toRecord(body);
  if (!Array.isArray(models)) return body;
  return {
    object: 'list',
    data: toRecords(models).map(({ name }) => ({
      id: (asText(name) ?? '').replace(/^models\//, ''),
      object: 'model',
      created: 0,
      owned_by: 'google',
    })),
  };
}
