import { hashText, mixHash } from '../../../model/hash.ts';
import { countTokens } from '../../../model/tokens.ts';
import { missing, optionalNumber, optionalText } from '../checks.ts';
import { createdAt } from '../shapes.ts';
import type { Call, Received } from '../../wire-format.ts';
import { fieldOf, fileOf, jsonCall, sha256Of } from './area-call.ts';
import { makePng } from './make-png.ts';

const imageTokens = 272;

/** POST /v1/images/generations. */
export function generationsCall(received: Received): Call {
  const prompt = optionalText(received.json['prompt']);
  if (prompt === undefined) return missing('prompt');
  const count = optionalNumber(received.json, 'n', { min: 1, max: 10, whole: true }) ?? 1;
  const model = optionalText(received.json['model']) ?? 'gpt-image-1';
  return jsonCall(received, model, () => imagesOf(`${model}\n${prompt}`, prompt, count));
}

/** POST /v1/images/edits and /v1/images/variations; `received` tells which bytes came. */
export async function editsCall(received: Received): Promise<Call> {
  const image = await fileOf(received, 'image');
  const prompt = fieldOf(received, 'prompt');
  if (image === undefined) return missing('image');
  if (prompt === undefined && received.path.endsWith('/edits')) return missing('prompt');
  const count = optionalNumber({ n: Number(fieldOf(received, 'n') ?? 1) }, 'n', { min: 1, max: 10, whole: true }) ?? 1;
  const model = fieldOf(received, 'model') ?? 'gpt-image-1';
  const file = { filename: image.name, bytes: image.bytes.length, sha256: sha256Of(image.bytes) };
  return jsonCall(received, model, () => ({
    ...imagesOf(`${model}\n${prompt ?? ''}\n${file.sha256}`, prompt ?? '', count),
    received: file,
  }));
}

function imagesOf(key: string, prompt: string, count: number) {
  const hash = hashText(key);
  const data = Array.from({ length: count }, (_, index) => ({
    b64_json: makePng(mixHash(hash, index)).toString('base64'),
  }));
  const textTokens = countTokens(prompt);
  return {
    created: createdAt(hash),
    background: 'opaque',
    data,
    output_format: 'png',
    quality: 'low',
    size: '1024x1024',
    usage: {
      input_tokens: textTokens,
      input_tokens_details: { image_tokens: 0, text_tokens: textTokens },
      output_tokens: imageTokens * count,
      total_tokens: textTokens + imageTokens * count,
    },
  };
}
