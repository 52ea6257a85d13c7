import { GatewayError } from '#libs/kernel/errors.ts';
import type { Call, OutboundRequest, Upstream } from '../provider.ts';
import { bothSpellings, pickNative } from './generation-config.ts';
import { modelPath, toGeminiRequest } from './encode.ts';
import { type Json, asCount, asNumber, asText, compact, toRecord, toRecords } from '../turns/json-value.ts';
import { droppedParams } from '../turns/turn-request.ts';

/** Gemini's own parameters, which are passed on in either spelling. */
export const embeddingNative = ['task_type', 'title'] as const;
/** The core itself converts numbers to base64. */
export const embeddingTaken: ReadonlySet<string> = new Set([
  ...bothSpellings(embeddingNative),
  'input',
  'dimensions',
  'encoding_format',
]);

/** The texts to embed. Throws invalid_request for token ids, which belong to another tokenizer. */
export function readInputTexts(input: unknown): readonly string[] {
  const list = Array.isArray(input) ? input : [input];
  if (list.every((item) => typeof item === 'string')) return list;
  throw new GatewayError(
    'invalid_request',
    'invalid_value',
    "Invalid 'input': Google's models accept a text or a list of texts, not token IDs of OpenAI's tokenizer.",
    { param: 'input' },
  );
}

/** POST {base}/models/{model}:embedContent for one text, :batchEmbedContents for a list. */
export function encodeGeminiEmbedding(call: Call, upstream: Upstream): OutboundRequest {
  const body = call.json();
  const model = modelPath(body['model']);
  const requests = readInputTexts(body['input']).map((text) =>
    compact({
      model,
      content: { parts: [{ text }] },
      outputDimensionality: asNumber(body['dimensions']),
      ...pickNative(body, embeddingNative),
    }),
  );
  const [only] = requests;
  const single = requests.length === 1 && only !== undefined;
  const path = `/${model}:${single ? 'embedContent' : 'batchEmbedContents'}`;
  const dropped = droppedParams(body, embeddingTaken);
  return { ...toGeminiRequest(call, upstream, path, single ? only : { requests }), dropped };
}

/** Converts `embedding` or `embeddings` to OpenAI's list. Older models send no usage. */
export function decodeGeminiEmbedding(body: unknown, call: Call): unknown {
  const { embedding, embeddings, usageMetadata } = toRecord(body);
  const found = embedding === undefined ? embeddings : [embedding];
  if (!Array.isArray(found)) return body; // The answer has no embedding, which the core reports.
  const promptTokens = toRecord(usageMetadata)['promptTokenCount'];
  return toEmbeddingList(
    toRecords(found).map(({ values }) => values),
    call,
    promptTokens === undefined ? undefined : asCount(promptTokens),
  );
}

export function toEmbeddingList(vectors: readonly unknown[], call: Call, promptTokens: number | undefined): Json {
  return {
    object: 'list',
    data: vectors.map((embedding, index) => ({ object: 'embedding', index, embedding })),
    model: asText(call.json()['model']) ?? '',
    ...(promptTokens === undefined ? {} : { usage: { prompt_tokens: promptTokens, total_tokens: promptTokens } }),
  };
}
