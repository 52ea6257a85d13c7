import { crc32, deflateSync } from 'node:zlib';
import { hashText, mixHash } from '../../../model/hash.ts';
import { countTokens } from '../../../model/tokens.ts';
import { missing, optionalNumber, optionalText } from '../checks.ts';
import { createdAt } from '../shapes.ts';
import type { Call, Received } from '../../wire-format.ts';
import { fieldOf, fileOf, jsonCall, sha256Of } from './area-call.ts';

const imageTokens = 272;
const side = 8;
const pngSignature = Buffer.from([0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a]);

/** POST /v1/images/generations. */
export function generationsCall(received: Received): Call {
  const prompt = optionalText(received.json['prompt']);
  if (prompt === undefined) return missing('prompt');
  const count = optionalNumber(received.json, 'n', { min: 1, max: 10, whole: true }) ?? 1;
  const model = optionalText(received.json['model']) ?? 'gpt-image-1';
  return jsonCall(received, model, () => imagesOf(`${model}\n${prompt}`, prompt, count));
}

/** POST /v1/images/edits and /v1/images/variations; `received` says which bytes were received. */
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

/** A real PNG image of 8 by 8 pixels, in a colour derived from the hash. */
function makePng(hash: number): Buffer {
  const header = Buffer.alloc(13);
  header.writeUInt32BE(side, 0);
  header.writeUInt32BE(side, 4);
  header.set([8, 2, 0, 0, 0], 8); // 8 bits a channel, RGB, no interlacing
  const row = Buffer.from([
    0,
    ...Array.from({ length: side }, () =>
      [hash, hash / 256, hash / 65_536].map((part) => Math.floor(part) % 256),
    ).flat(),
  ]);
  const pixels = deflateSync(Buffer.concat(Array.from({ length: side }, () => row)));
  return Buffer.concat([
    pngSignature,
    pngChunk('IHDR', header),
    pngChunk('IDAT', pixels),
    pngChunk('IEND', Buffer.alloc(0)),
  ]);
}

function pngChunk(type: string, data: Buffer): Buffer {
  const body = Buffer.concat([Buffer.from(type), data]);
  const length = Buffer.alloc(4);
  length.writeUInt32BE(data.length);
  const checksum = Buffer.alloc(4);
  checksum.writeUInt32BE(crc32(body));
  return Buffer.concat([length, body, checksum]);
}
