import { embed, toBase64 } from '../../model/embed.ts';
import { hashText } from '../../model/hash.ts';
import { countTokens } from '../../model/tokens.ts';
import { reflection, type Call, type Received } from '../wire-format.ts';
import {
  isTokens,
  missing,
  optionalNumber,
  optionalText,
  refuse,
  requiredModel,
  tooLong,
  wrongType,
} from './checks.ts';

// The lengths of the real models; other names get a short vector.
const knownDimensions: Record<string, number> = {
  'text-embedding-ada-002': 1536,
  'text-embedding-3-small': 1536,
  'text-embedding-3-large': 3072,
};
const dimensionsDefault = 256;
const dimensionsMax = 8_192;
const inputsMax = 2_048;

/** POST /v1/embeddings. A vector depends only on the model, the input and the length. Never streamed. */
export function embeddingsCall(received: Received): Call {
  const body = received.json;
  const model = requiredModel(body);
  const inputs = readInputs(body['input']);
  const dimensions =
    optionalNumber(body, 'dimensions', { min: 1, max: dimensionsMax, whole: true }) ??
    (Object.hasOwn(knownDimensions, model) ? knownDimensions[model] : undefined) ??
    dimensionsDefault;
  const format = body['encoding_format'] ?? 'float';
  if (format !== 'float' && format !== 'base64') {
    refuse(
      `Invalid value: ${JSON.stringify(format)}. Supported values are: 'float' and 'base64'.`,
      'encoding_format',
      'invalid_value',
    );
  }
  return {
    model,
    hash: hashText(`${model}\n${JSON.stringify(body['input'])}`),
    user: optionalText(body['user']),
    stream: false,
    frames: () => [],
    body: (behaviour) => {
      let promptTokens = 0;
      const data = inputs.map(({ text, tokens }, index) => {
        promptTokens += tokens;
        const vector = embed(hashText(`${model}\n${text}`), dimensions);
        const value = format === 'base64' ? `"${toBase64(vector)}"` : `[${vector.join(',')}]`;
        return `{"object":"embedding","index":${index},"embedding":${value}}`;
      });
      const usage =
        behaviour.omitUsage === true ? '' : `,"usage":{"prompt_tokens":${promptTokens},"total_tokens":${promptTokens}}`;
      // There is no answer text, so sim-reflect returns the request's body next to the vectors.
      const extra =
        behaviour.manner === 'reflect'
          ? `,"reflected":${reflection(received)},"reflected_body":${JSON.stringify(received.text)}`
          : '';
      return `{"object":"list","data":[${data.join(',')}],"model":${JSON.stringify(behaviour.answersAs ?? model)}${usage}${extra}}`;
    },
  };
}

function readInputs(input: unknown): { text: string; tokens: number }[] {
  if (input === undefined || input === null) return missing('input');
  if (typeof input === 'string') return [readText(input)];
  if (!Array.isArray(input)) return wrongType('input', 'a string, an array of strings or arrays of integers', input);
  if (input.length === 0) return refuse("Invalid 'input': input cannot be an empty array.", 'input', 'empty_array');
  if (isTokens(input)) return [readTokens(input)];
  if (input.length > inputsMax) return tooLong('input', input.length, inputsMax);
  return input.map((item: unknown, index) => {
    if (typeof item === 'string') return readText(item);
    if (isTokens(item) && item.length > 0) return readTokens(item);
    return wrongType(`input[${index}]`, 'a string or an array of integers', item);
  });
}

function readText(text: string): { text: string; tokens: number } {
  if (text === '') return refuse("Invalid 'input': input cannot be an empty string.", 'input', 'invalid_value');
  return { text, tokens: countTokens(text) };
}

function readTokens(tokens: readonly number[]): { text: string; tokens: number } {
  return { text: JSON.stringify(tokens), tokens: tokens.length };
}
