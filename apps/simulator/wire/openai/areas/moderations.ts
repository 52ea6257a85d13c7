import { createRandom, hashText, hexOf } from '../../../model/hash.ts';
import { isObject, missing, optionalText, wrongType } from '../checks.ts';
import type { Call, Received } from '../../wire-format.ts';
import { jsonCall } from './area-call.ts';

const categories = [
  'harassment',
  'harassment/threatening',
  'hate',
  'hate/threatening',
  'illicit',
  'illicit/violent',
  'self-harm',
  'self-harm/intent',
  'self-harm/instructions',
  'sexual',
  'sexual/minors',
  'violence',
  'violence/graphic',
];

/** POST /v1/moderations. A text with the word `violence` (or another category) is flagged for it. */
export function moderationsCall(received: Received): Call {
  const { input } = received.json;
  const model = optionalText(received.json['model']) ?? 'omni-moderation-latest';
  if (input === undefined) return missing('input');
  const texts = readInput(input);
  return jsonCall(received, model, ({ answersAs }) => ({
    id: `modr-${hexOf(hashText(texts.join('\n')), 24)}`,
    model: answersAs ?? model,
    results: texts.map((text) => judge(text)),
  }));
}

/** A list of parts is one input; a list of texts is several. */
function readInput(input: unknown): string[] {
  if (typeof input === 'string') return [input];
  if (!Array.isArray(input) || input.length === 0) return wrongType('input', 'a string or an array', input);
  if (input.every((item) => typeof item === 'string')) return input;
  if (!input.every((item) => isObject(item))) return wrongType('input', 'an array of strings or of objects', input);
  return [input.map((part) => optionalText(part['text']) ?? '').join('\n')];
}

function judge(text: string) {
  const random = createRandom(hashText(text));
  const found = (category: string): boolean => new RegExp(String.raw`\b${category}\b`, 'i').test(text);
  const each = <Value>(valueOf: (category: string) => Value) =>
    Object.fromEntries(categories.map((category) => [category, valueOf(category)]));
  return {
    flagged: categories.some(found),
    categories: each(found),
    category_scores: each((category) => (found(category) ? 0.9 + random() / 10 : random() / 1_000)),
    category_applied_input_types: each((category) => (found(category) ? ['text'] : [])),
  };
}
