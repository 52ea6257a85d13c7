import { createRandom, hashText, hexOf } from '../../../model/hash.ts';
import { countTokens } from '../../../model/tokens.ts';
import {
  isObject,
  missing,
  optionalBoolean,
  optionalNumber,
  optionalText,
  requiredModel,
  wrongType,
} from '../checks.ts';
import type { Call, Received } from '../../wire-format.ts';
import { jsonCall } from './area-call.ts';

const documentsMax = 1_000;

/** POST /v1/rerank: documents that share words with the query come first. */
export function rerankCall(received: Received): Call {
  const { json } = received;
  const model = requiredModel(json);
  const query = optionalText(json['query']);
  if (query === undefined) return missing('query');
  const { documents } = json;
  if (!Array.isArray(documents) || documents.length === 0 || documents.length > documentsMax) {
    return wrongType('documents', `an array of 1 to ${documentsMax} documents`, documents);
  }
  const texts = documents.map((document: unknown) =>
    typeof document === 'string'
      ? document
      : ((isObject(document) ? optionalText(document['text']) : undefined) ?? JSON.stringify(document)),
  );
  const count = optionalNumber(json, 'top_n', { min: 1, whole: true }) ?? texts.length;
  const withDocuments = optionalBoolean(json, 'return_documents');
  const tokens = texts.reduce((sum, text) => sum + countTokens(text), countTokens(query));
  return jsonCall(received, model, () => {
    const results = texts
      .map((text, index) => ({
        index,
        relevance_score: scoreOf(query, text),
        ...(withDocuments ? { document: { text } } : {}),
      }))
      .sort((a, b) => b.relevance_score - a.relevance_score)
      .slice(0, count);
    return {
      id: hexOf(hashText(query), 32),
      model,
      results,
      usage: { total_tokens: tokens },
      meta: { billed_units: { search_units: 1 } },
    };
  });
}

function scoreOf(query: string, text: string): number {
  const wanted = new Set(wordsOf(query));
  const words = wordsOf(text);
  const shared = new Set(words.filter((word) => wanted.has(word))).size / Math.max(1, wanted.size);
  return Math.round((shared * 0.9 + createRandom(hashText(text))() * 0.1) * 1e6) / 1e6;
}

function wordsOf(text: string): string[] {
  return text.toLowerCase().match(/[\p{L}\p{N}]+/gu) ?? [];
}
