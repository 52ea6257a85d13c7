import { shownHeaders, type Call, type Received, type Route } from '../../wire-format.ts';
import { speechCall, transcriptionCall } from './audio.ts';
import { responsesCall } from './responses.ts';
import { isUtf8 } from 'node:buffer';
import { createRandom, hashText, hexOf, mixHash } from '../../../model/hash.ts';
import {
  isObject,
  missing,
  optionalBoolean,
  optionalNumber,
  optionalText,
  requiredModel,
  wrongType,
} from '../checks.ts';
import { fieldOf, fileOf, jsonCall, sha256Of } from './area-call.ts';
import { countTokens } from '../../../model/tokens.ts';
import { crc32, deflateSync } from 'node:zlib';
import { createdAt } from '../shapes.ts';

type CallRoute = Extract<Route, { call: unknown }>;

const routes = new Map<string, CallRoute>(
  (
    [
      ['/v1/moderations', 'json', moderationsCall],
      ['/v1/images/generations', 'json', generationsCall],
      ['/v1/images/edits', 'form', editsCall],
      ['/v1/images/variations', 'form', editsCall],
      ['/v1/audio/speech', 'json', speechCall],
      ['/v1/audio/transcriptions', 'form', transcriptionCall],
      ['/v1/audio/translations', 'form', transcriptionCall],
      ['/v1/rerank', 'json', rerankCall],
      ['/v1/responses', 'json', responsesCall],
    ] as const
  ).map(([path, reads, call]) => [path, { name: `POST ${path}`, reads, call }]),
);
const echoed = /^\/v1\/(assistants|threads|vector_stores|responses|conversations)(\/|$)/;

/** The pass-through areas; those with state only return the request. */
export function findAreaRoute(method: string, path: string): Route | undefined {
  const route = routes.get(path);
  if (route !== undefined) return method === 'POST' ? route : { name: route.name, allow: 'POST' };
  const [, area] = echoed.exec(path) ?? [];
  return area === undefined ? undefined : { name: `/v1/${area}/**`, reads: 'anything', call: echoCall };
}

/** Returns the request: method, path, query, headers (without credentials), and the body's size and SHA-256. */
function echoCall(received: Received): Call {
  const { method, path, query, headers, bytes } = received;
  const sha256 = sha256Of(bytes);
  const json = parse(bytes);
  return {
    // As in all other routes, the model in the body can name a fault.
    model: isObject(json) ? (optionalText(json['model']) ?? '') : '',
    hash: hashText(`${method} ${path}?${query}\n${sha256}`),
    user: undefined,
    stream: false,
    frames: () => [],
    body: () => {
      const id = path.split('/')[3] ?? 'none';
      const body = { bytes: bytes.length, sha256, json: json ?? null };
      return JSON.stringify({
        id,
        object: 'simulator.echo',
        method,
        path,
        query,
        headers: shownHeaders(headers),
        body,
      });
    },
  };
}

function parse(bytes: Uint8Array): unknown {
  if (bytes.length === 0 || !isUtf8(bytes)) return undefined;
  try {
    return JSON.parse(Buffer.from(bytes).toString()) as unknown;
  } catch {
    return undefined;
  }
}

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
function moderationsCall(received: Received): Call {
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

const documentsMax = 1_000;

/** POST /v1/rerank: documents that share words with the query come first. */
function rerankCall(received: Received): Call {
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

const imageTokens = 272;
const side = 8;
const pngSignature = Buffer.from([0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a]);

/** POST /v1/images/generations. */
function generationsCall(received: Received): Call {
  const prompt = optionalText(received.json['prompt']);
  if (prompt === undefined) return missing('prompt');
  const count = optionalNumber(received.json, 'n', { min: 1, max: 10, whole: true }) ?? 1;
  const model = optionalText(received.json['model']) ?? 'gpt-image-1';
  return jsonCall(received, model, () => imagesOf(`${model}\n${prompt}`, prompt, count));
}

/** POST /v1/images/edits and /v1/images/variations; `received` describes the bytes that were received. */
async function editsCall(received: Received): Promise<Call> {
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
  header.set([8, 2, 0, 0, 0], 8); // 8 bits per channel, RGB, no interlacing
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
