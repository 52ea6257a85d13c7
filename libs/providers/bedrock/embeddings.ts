import { GatewayError } from '#libs/kernel/errors.ts';
import type { Call } from '../provider.ts';
import { type Json, asCount, asNumber, asText, compact, toRecord } from '../turns/json-value.ts';
import { droppedParams, unsupported } from '../turns/turn-request.ts';

type Family = {
  pattern: RegExp;
  taken: ReadonlySet<string>;
  encode: (texts: readonly string[], body: Json, model: string) => Json;
};

// AWS user guide, "Amazon Titan Text Embeddings" and "Cohere Embed": each model has its own request body.
const families: readonly Family[] = [
  {
    pattern: /amazon\.titan-embed-/,
    taken: new Set(['input', 'dimensions', 'normalize', 'encoding_format']),
    encode: (texts, body, model) => {
      const [text, ...more] = texts;
      if (text === undefined || more.length > 0) {
        throw unsupported(
          'input',
          `${model} embeds one text per call. Send each of the ${texts.length} texts separately`,
        );
      }
      const dimensions = asNumber(body['dimensions']);
      if (dimensions !== undefined && !model.includes('v2')) throw fixedLength(model);
      return compact({ inputText: text, dimensions, normalize: body['normalize'] ?? undefined });
    },
  },
  {
    pattern: /cohere\.embed-/,
    taken: new Set(['input', 'dimensions', 'input_type', 'truncate', 'encoding_format']),
    encode: (texts, body, model) => {
      const dimensions = asNumber(body['dimensions']);
      if (dimensions !== undefined && !model.includes('embed-v4')) throw fixedLength(model);
      return compact({
        texts,
        // The API requires it. Texts count as documents to be found unless the client specifies something else.
        input_type: asText(body['input_type']) ?? 'search_document',
        truncate: asText(body['truncate']),
        output_dimension: dimensions,
        embedding_types: ['float'],
      });
    },
  },
];

/**
 * The body of an InvokeModel request for Bedrock's embedding models. `dropped` lists the parameters that were left out.
 * Throws invalid_request for another model, for tokens instead of texts, or for more texts than the model accepts in
 * one request.
 */
export function encodeEmbeddingsBody(call: Call): { model: string; body: Json; dropped: string[] } {
  const body = call.json();
  const model = asText(body['model']) ?? '';
  const family = families.find(({ pattern }) => pattern.test(model));
  if (!family) {
    throw new GatewayError(
      'invalid_request',
      'invalid_value',
      `Invalid 'model': Bedrock supports embeddings with amazon.titan-embed-* and cohere.embed-*, not with ${model.slice(0, 200)}.`,
      { param: 'model' },
    );
  }
  const { input } = body;
  const texts = Array.isArray(input) ? (input as readonly unknown[]) : [input];
  if (!texts.every((text) => typeof text === 'string')) {
    throw unsupported('input', 'Bedrock embeds texts, not token IDs');
  }
  return { model, body: family.encode(texts, body, model), dropped: droppedParams(body, family.taken) };
}

/** Converts Titan's one vector, or Cohere's list, to OpenAI's list. Cohere sends no usage, so none is returned. */
export function decodeEmbeddings(body: unknown, call: Call): unknown {
  const { embedding, embeddings, inputTextTokenCount } = toRecord(body);
  const vectors = Array.isArray(embedding)
    ? [embedding as unknown]
    : Array.isArray(embeddings)
      ? (embeddings as unknown[])
      : toRecord(embeddings)['float'];
  if (!Array.isArray(vectors)) return body;
  const tokens = asCount(inputTextTokenCount);
  return {
    object: 'list',
    data: vectors.map((vector: unknown, index) => ({ object: 'embedding', index, embedding: vector })),
    model: asText(call.json()['model']) ?? '',
    ...(inputTextTokenCount === undefined ? {} : { usage: { prompt_tokens: tokens, total_tokens: tokens } }),
  };
}

const fixedLength = (model: string): GatewayError =>
  unsupported('dimensions', `the vector length of ${model} cannot be changed`);
