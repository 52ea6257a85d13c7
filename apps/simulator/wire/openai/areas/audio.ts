import { createRandom, hashText } from '../../../model/hash.ts';
import { piecesOf } from '../../../model/pieces.ts';
import { readTraits } from '../../../read-traits.ts';
import { missing, optionalText, refuse, requiredModel } from '../checks.ts';
import { openai } from '../openai.ts';
import type { Call, Received } from '../../wire-format.ts';
import { fieldOf, fileOf, jsonCall, sha256Of } from './area-call.ts';

const inputLengthMax = 4_096;
const bytesPerCharacter = 1_000; // about a second of speech for a dozen characters at 128 kbit/s
const soundSizeMax = 268_435_456;
const pieceSize = 16_384;
const contentTypes: Record<string, string> = {
  mp3: 'audio/mpeg',
  opus: 'audio/ogg',
  aac: 'audio/aac',
  flac: 'audio/flac',
  wav: 'audio/wav',
  pcm: 'audio/pcm',
};

/**
 * POST /v1/audio/speech: bytes derived from the request, in pieces. Their number depends on the input's length, unless the
 * model's name (`+3000000bytes`) or the header x-simulator-bytes sets it.
 */
export function speechCall(received: Received): Call {
  const { json, headers } = received;
  const model = requiredModel(json);
  const input = optionalText(json['input']);
  if (input === undefined) return missing('input');
  if (json['voice'] === undefined) return missing('voice');
  if (input.length > inputLengthMax) {
    refuse(
      `Invalid 'input': string too long. Expected a string with maximum length ${inputLengthMax}.`,
      'input',
      'string_above_max_length',
    );
  }
  const format = optionalText(json['response_format']) ?? 'mp3';
  const contentType = contentTypes[format] ?? refuse(`Invalid value: '${format}'.`, 'response_format', 'invalid_value');
  const asked = headers['x-simulator-bytes'];
  const size = Number(asked ?? readTraits(model).sizeBytes ?? input.length * bytesPerCharacter);
  if (!Number.isInteger(size) || size < 0 || size > soundSizeMax) {
    refuse(`x-simulator-bytes must be an integer from 0 to ${soundSizeMax}.`, null, 'invalid_value');
  }
  const hash = hashText(`${model}\n${input}`);
  const asEvents = json['stream_format'] === 'sse';
  return {
    model,
    hash,
    user: undefined,
    stream: true,
    body: () => Buffer.concat([...soundPieces(hash, size)]),
    contentType,
    frames: () => (asEvents ? soundEvents(hash, size) : soundPieces(hash, size)),
    form: asEvents ? openai.form : { ...openai.form, contentType },
  };
}

function* soundEvents(hash: number, size: number): Generator<string> {
  for (const piece of soundPieces(hash, size)) {
    yield eventFrame({ type: 'speech.audio.delta', audio: Buffer.from(piece).toString('base64') });
  }
  yield eventFrame({ type: 'speech.audio.done', usage: { input_tokens: 1, output_tokens: 1, total_tokens: 2 } });
}

/** Noise: one block, repeated. */
function* soundPieces(hash: number, size: number): Generator<Uint8Array> {
  const random = createRandom(hash);
  const block = Uint8Array.from({ length: Math.min(pieceSize, size) }, () => Math.floor(random() * 256));
  for (let at = 0; at < size; at += pieceSize) yield block.subarray(0, Math.min(pieceSize, size - at));
}

/** POST /v1/audio/transcriptions and /v1/audio/translations: "text" describes the bytes that were received. */
export async function transcriptionCall(received: Received): Promise<Call> {
  const file = await fileOf(received, 'file');
  const model = fieldOf(received, 'model');
  if (file === undefined) return missing('file');
  if (model === undefined) return missing('model');
  const text = `Received ${file.bytes.length} bytes with SHA-256 ${sha256Of(file.bytes)} as ${file.name}.`;
  const format = fieldOf(received, 'response_format') ?? 'json';
  const call = jsonCall(received, model, () => transcriptOf(text, format));
  if (fieldOf(received, 'stream') === 'true') return { ...call, stream: true, frames: () => transcriptEvents(text) };
  if (format === 'json' || format === 'verbose_json') return call;
  if (format === 'text') return { ...call, contentType: 'text/plain; charset=utf-8', body: () => `${text}\n` };
  if (format === 'srt') {
    return {
      ...call,
      contentType: 'text/plain; charset=utf-8',
      body: () => `1\n00:00:00,000 --> 00:00:01,000\n${text}\n`,
    };
  }
  if (format === 'vtt') {
    return {
      ...call,
      contentType: 'text/plain; charset=utf-8',
      body: () => `WEBVTT\n\n00:00:00.000 --> 00:00:01.000\n${text}\n`,
    };
  }
  return refuse(`Invalid value: '${format}'.`, 'response_format', 'invalid_value');
}

function transcriptOf(text: string, format: string): object {
  const usage = { type: 'duration', seconds: 1 };
  if (format !== 'verbose_json') return { text, usage };
  const segment = {
    id: 0,
    seek: 0,
    start: 0,
    end: 1,
    text,
    tokens: [1],
    temperature: 0,
    avg_logprob: -0.1,
    compression_ratio: 1,
    no_speech_prob: 0,
  };
  return { task: 'transcribe', language: 'english', duration: 1, text, segments: [segment], usage };
}

function* transcriptEvents(text: string): Generator<string> {
  for (const { piece } of piecesOf(text, false)) yield eventFrame({ type: 'transcript.text.delta', delta: piece });
  yield eventFrame({ type: 'transcript.text.done', text });
}

function eventFrame(data: { type: string; [member: string]: unknown }): string {
  return `data: ${JSON.stringify(data)}\n\n`;
}
