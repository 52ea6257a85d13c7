import { z } from 'zod';
import { embed } from '../../model/embed.ts';
import { hashText, hexOf } from '../../model/hash.ts';
import { countTokens } from '../../model/tokens.ts';
import { checkShape } from '../check-shape.ts';
import type { Call, Received } from '../wire-format.ts';
import { refuse, refuseFlaw } from './refuse.ts';

const titan = z.strictObject({
  inputText: z.string().min(1),
  dimensions: z.union([z.literal(256), z.literal(512), z.literal(1024)]).optional(),
  normalize: z.boolean().optional(),
  embeddingTypes: z.array(z.enum(['float', 'binary'])).optional(),
});
const cohere = z.strictObject({
  texts: z.array(z.string().min(1)).min(1).max(96),
  input_type: z.enum(['search_document', 'search_query', 'classification', 'clustering']),
  truncate: z.enum(['NONE', 'START', 'END', 'LEFT', 'RIGHT']).optional(),
  embedding_types: z.array(z.literal('float', 'only float is simulated')).optional(),
  output_dimension: z.int().optional(),
});
const titanDimensions = 1024;
const titanOldDimensions = 1536;
const cohereDimensions = 1024;

/** POST /model/{id}/invoke, for the embedding models of Amazon Titan and of Cohere. */
export function invokeCall(received: Received, model: string): Call {
  const { answer, tokens, key } = model.includes('cohere.')
    ? cohereAnswer(received, model)
    : titanAnswer(received, model);
  return {
    model,
    hash: hashText(`${model}\n${key}`),
    user: undefined,
    stream: false,
    frames: () => [],
    body: ({ manner }) => JSON.stringify(manner === 'reflect' ? { ...answer, reflected_body: received.text } : answer),
    headers: ['x-amzn-bedrock-input-token-count', String(tokens), 'x-amzn-bedrock-invocation-latency', '1'],
  };
}

function titanAnswer({ json }: Received, model: string) {
  if (!('inputText' in json) && !/titan|sim/.test(model)) {
    refuse(`The simulator only supports embedding models of Titan (inputText) and Cohere (texts), not ${model}.`);
  }
  const { inputText, dimensions } = checkShape(titan, json, refuseFlaw);
  const size = dimensions ?? (model.includes('v1') ? titanOldDimensions : titanDimensions);
  const embedding = embed(hashText(`${model}\n${inputText}`), size);
  const inputTextTokenCount = countTokens(inputText);
  const typed = model.includes('v2') ? { embeddingsByType: { float: embedding } } : {};
  return { answer: { embedding, ...typed, inputTextTokenCount }, tokens: inputTextTokenCount, key: inputText };
}

function cohereAnswer({ json }: Received, model: string) {
  const { texts, embedding_types, output_dimension } = checkShape(cohere, json, refuseFlaw);
  const vectors = texts.map((text) => embed(hashText(`${model}\n${text}`), output_dimension ?? cohereDimensions));
  const key = texts.join('\n');
  const typed = embedding_types !== undefined;
  const answer = {
    id: hexOf(hashText(key), 32),
    texts,
    embeddings: typed ? { float: vectors } : vectors,
    response_type: typed ? 'embeddings_by_type' : 'embeddings_floats',
  };
  return { answer, tokens: countTokens(key), key };
}
