import { GatewayError } from '#libs/kernel/errors.ts';
import { droppedParams } from '../chat/chat-request.ts';
import { compact, asCount, asNumber, asText, toRecord, type Json } from '../chat/json-value.ts';
import type { Call } from '../provider.ts';

const taken = new Set(['input', 'dimensions', 'encoding_format', 'input_type', 'truncate']);

/**
 * The body of a v2 embed request. Cohere requires the purpose of the vectors, which OpenAI's API does not have: texts
 * count as documents to be found (`search_document`) unless the request has Cohere's own `input_type`. Vectors are
 * returned as floats; the core converts them to base64 if asked. Throws invalid_request for input as tokens.
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
export function decodeEmbed(body: unknown, call: Call): unknown {
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
