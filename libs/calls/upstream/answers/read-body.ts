import { isUtf8 } from 'node:buffer';
import { GatewayError, type ErrorKind } from '#libs/kernel/errors.ts';
import { measureJson } from '#libs/kernel/json/measure-json.ts';
import type { Call, ProviderError, Translation } from '#libs/providers/provider.ts';
import { withBase64Vectors } from './embedding-format.ts';
import { splitAnswer } from '#libs/providers/dialects.ts';
import { answerLists, partsOf, scanParts, type AnswerParts } from './read-answer.ts';
import { asRecord } from './usage.ts';

/** The body of a success, with everything that is needed to read it. */
export type SuccessBody = {
  bytes: Buffer;
  status: number;
  call: Call;
  translation: Translation;
  /** The maximum size of a member that is parsed although the body is not. */
  memberBytesMax: number;
};

/** The content of a body. It contains no functions or class instances, so that it can be passed between threads. */
export type BodyRead =
  /** In OpenAI's format; the provider's own bytes if they pass unchanged. */
  | { kind: 'answer'; bytes: Buffer; parts: AnswerParts }
  /** For a call that requested a stream. */
  | { kind: 'payloads'; payloads: string[]; parts: AnswerParts }
  /** An error in spite of its status. */
  | { kind: 'error'; error: ProviderError }
  /** The translation found that it is not an answer. */
  | { kind: 'failed'; error: { kind: ErrorKind; code: string | null; message: string; param: string | null } }
  /**
   * `what` is the end of a sentence that begins with the provider's name. `sample` is the beginning of the body, not
   * scrubbed yet.
   */
  | { kind: 'invalid'; what: string; sample: string };

/** A body of this size or more is read in a thread; one that passes unchanged is not parsed. */
export const largeBytesMin = 262_144;
/** About 10 ms of parsing, translating and writing. More is done in a thread, however small the body is. */
export const quickWorkMax = 100_000;
/** About 30 ms of parsing, as for requests. Events are never read in a thread, because they must stay in order. */
export const eventWorkMax = 320_000;
/** The sample that an error can show fits in this. */
const sampleBytes = 4_096;
/** More than any real answer has, and far below the depth at which recursion over the value would fail. */
const depthMax = 512;

/** Whether a body has to be parsed. */
export const isParsed = (
  { call, translation }: Pick<SuccessBody, 'call' | 'translation'>,
  sizeBytes: number,
): boolean => sizeBytes < largeBytesMin || translation.decode !== undefined || call.stream;

/** In bytes of memory. `excess`: the limit that it exceeds; `bytes` then counts only the part up to there. */
export type BodyCost = { bytes: number; excess: 'depth' | 'bytes' | 'work' | null };

/** Measures the memory for parsing a body, up to `bytesMax`, and up to `workMax` of work (see `measureJson`). */
export function costToRead(bytes: Buffer, limits: { bytesMax: number; workMax?: number }): BodyCost {
  const { bytesMax, workMax = Number.POSITIVE_INFINITY } = limits;
  const membersMax = Number.POSITIVE_INFINITY;
  const { excess, textBytes, valueBytes } = measureJson(bytes, {
    depthMax,
    membersMax,
    valueBytesMax: bytesMax,
    workMax,
  });
  const cost = textBytes + valueBytes;
  if (excess === 'depth' || excess === 'work') return { excess, bytes: cost };
  return { excess: cost > bytesMax ? 'bytes' : null, bytes: cost };
}

export const tooDeep = `sent a body that is nested more than ${depthMax} levels deep`;

/** Reads the body of a success that `costToRead` found to be within the limits. Throws only for bugs. */
export function readBody(body: SuccessBody): BodyRead {
  if (body.bytes.length === 0)
    return { kind: 'invalid', what: `returned status ${body.status} with an empty body`, sample: '' };
  return isParsed(body, body.bytes.length) ? parseBody(body) : scanBody(body);
}

function parseBody(body: SuccessBody): BodyRead {
  const { bytes, call, translation, status } = body;
  const parsed = parseJson(bytes);
  if (parsed === undefined) return notJson(body);
  let parts = partsOf(call.operation, parsed);
  if (parts.hasError) return { kind: 'error', error: translation.decodeError(status, bytes.toString()) };
  let decoded: unknown;
  try {
    decoded = translation.decode ? translation.decode(parsed, call) : parsed;
  } catch (error) {
    if (!(error instanceof GatewayError)) throw error;
    const { kind, code, message, param } = error;
    return { kind: 'failed', error: { kind, code, message, param } };
  }
  if (decoded !== parsed) parts = partsOf(call.operation, decoded);
  const details = parts.usage === null ? null : translation.detailsOf?.(parsed);
  if (parts.usage !== null && details) Object.assign(parts.usage, details);
  if (!call.stream) return pass(body, decoded === parsed ? bytes : Buffer.from(JSON.stringify(decoded)), parts);
  if (!parts.hasList) return withoutList(body, Buffer.from(JSON.stringify(decoded)));
  const payloads = splitAnswer(call.operation, asRecord(decoded), call.includeUsage);
  if (payloads.length > 0) return { kind: 'payloads', payloads, parts };
  const sample = JSON.stringify(decoded).slice(0, sampleBytes);
  return { kind: 'invalid', what: `returned status ${status} without any choices`, sample };
}

/** Like `parseBody`, for a large body that passes unchanged. */
function scanBody(body: SuccessBody): BodyRead {
  const { bytes, call, translation, status, memberBytesMax } = body;
  const parts = scanParts(call.operation, bytes, memberBytesMax);
  if (parts === null) return notJson(body);
  if (!parts.hasError) return pass(body, bytes, parts);
  return { kind: 'error', error: translation.decodeError(status, `{"error":${parts.error}}`) };
}

function pass(body: SuccessBody, bytes: Buffer, parts: AnswerParts): BodyRead {
  if (!parts.hasList) return withoutList(body, bytes);
  try {
    return { kind: 'answer', bytes: withBase64Vectors(body.call, bytes) ?? bytes, parts };
  } catch {
    return notJson(body); // A vector contains something other than numbers. The scan reads only brackets and quotes.
  }
}

const notJson = ({ status, bytes }: SuccessBody): BodyRead => ({
  kind: 'invalid',
  what: `returned status ${status} with a body that is not valid JSON`,
  sample: beginningOf(bytes),
});

const withoutList = ({ call, status }: SuccessBody, bytes: Buffer): BodyRead => ({
  kind: 'invalid',
  what: `returned status ${status} with JSON that has no "${answerLists[call.operation]}" list`,
  sample: beginningOf(bytes),
});

const beginningOf = (bytes: Buffer): string => bytes.toString('utf8', 0, sampleBytes);

/** The value, or undefined when the bytes are not JSON in UTF-8. */
function parseJson(bytes: Buffer): unknown {
  if (!isUtf8(bytes)) return undefined;
  try {
    return JSON.parse(bytes.toString());
  } catch {
    return undefined;
  }
}
