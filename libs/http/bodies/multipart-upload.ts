import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Readable } from 'node:stream';
import { Busboy } from '@fastify/busboy';
import type { ZodType, z } from 'zod';
import type { BlobStore, StoredBlob } from '#libs/blobs/blob-store.ts';
import { fileTooLarge } from '#libs/blobs/blob-errors.ts';
import { parseWith } from '#libs/contracts/parse.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { countTransferred } from '#libs/kernel/heap-growth.ts';
import { clientDisconnected, refuseCompressed } from './json-body.ts';
import { defaultUploadRate, watchUploadRate, type UploadRate } from './watch-upload-rate.ts';

export type UploadLimits = {
  fileSizeBytesMax: number;
  /** A client that sends more slowly is disconnected. */
  rate: UploadRate;
  totalTimeoutMs: number;
};

/** 2 GiB is four times OpenAI's 512 MB, because batches can be larger here. Within an hour that is 600 kB/s. */
const defaultUploadLimits: UploadLimits = {
  fileSizeBytesMax: 2 * 1_073_741_824,
  rate: defaultUploadRate,
  totalTimeoutMs: 3_600_000,
};

export type Upload<Fields> = { readonly file: StoredBlob & { readonly filename: string }; readonly fields: Fields };

const fieldsMax = 10;
const nameLengthMax = 1_024;
const fieldSizeBytesMax = 8_192;
const filenameLengthMax = 512;
// The name that OpenAI's Python SDK gives to bytes without a name. Some clients send none at all.
const filenameDefault = 'upload';
const partHeaderBytesMax = 8_192;
const overheadBytesMax = 1_048_576; // The maximum for the rest of the body besides the file.
const boundaryShape =
  /^multipart\/form-data[\t ]*;.*\bboundary=(?:"[\w'()+,\-./:=? ]{1,70}"|[\w'()+,\-./:=?]{1,70})[\t ]*(?:;|$)/i;

/**
 * Reads a multipart/form-data body with one part of bytes (`file`) and a few text fields in any order (SDKs send the file first).
 * The file is streamed to the store at the store's pace; `fields`, a strict object, checks the fields. If anything fails
 * (the form, a field, the disk, the client disconnects) the stored file is removed before it throws: invalid_request with
 * the param, payload_too_large, unsupported_media_type or storage_full.
 */
export async function receiveUpload<Fields extends ZodType>(
  request: IncomingMessage,
  response: ServerResponse,
  options: {
    store: Pick<BlobStore, 'put' | 'remove'>;
    fields: Fields;
    limits?: Partial<UploadLimits>;
    /** The name of the part with the bytes. */
    part?: string;
  },
): Promise<Upload<z.output<Fields>>> {
  const limits = { ...defaultUploadLimits, ...options.limits };
  checkHeaders(request, limits);
  const part = options.part ?? 'file';
  const form = readForm(request, options.store, limits, part);
  if (request.headers.expect !== undefined) response.writeContinue();
  let stored: StoredBlob | null = null;
  try {
    await form.finished;
    stored = (await form.storing()) ?? null;
    if (stored === null) throw formError('missing_required_parameter', `Missing required parameter: '${part}'.`, part);
    const fields = parseWith(options.fields, Object.fromEntries(form.fields));
    return { file: { ...stored, filename: form.filename() }, fields };
  } catch (error) {
    form.stop(error instanceof Error ? error : new Error('upload failed', { cause: error }));
    stored ??= (await form.storing()?.catch(() => null)) ?? null;
    if (stored !== null) await options.store.remove(stored.blob);
    throw error;
  }
}

function checkHeaders(request: IncomingMessage, limits: UploadLimits): void {
  const type = request.headers['content-type'] ?? '';
  if (!/^multipart\/form-data\b/i.test(type)) {
    const message = "Send the file as multipart/form-data with the parts 'file' and 'purpose'.";
    throw new GatewayError('unsupported_media_type', 'unsupported_media_type', message);
  }
  if (!boundaryShape.test(type)) {
    throw formError(
      'invalid_multipart',
      'The boundary of the multipart body is missing, malformed or over 70 characters.',
    );
  }
  refuseCompressed(request);
  if (Number(request.headers['content-length'] ?? 0) > limits.fileSizeBytesMax + overheadBytesMax) {
    throw fileTooLarge(limits.fileSizeBytesMax);
  }
}

type Form = {
  /** Resolves when the whole form has been read; rejects on the first error. */
  finished: Promise<void>;
  /** The file that is being stored; undefined if no file part has arrived. */
  storing: () => Promise<StoredBlob> | undefined;
  filename: () => string;
  fields: Map<string, string>;
  stop: (error: Error) => void;
};

function readForm(request: IncomingMessage, store: Pick<BlobStore, 'put'>, limits: UploadLimits, part: string): Form {
  const { promise: finished, resolve, reject } = Promise.withResolvers<void>();
  finished.catch(() => {}); // receiveUpload awaits this too, but it can reject before that.
  const fields = new Map<string, string>();
  let storing: Promise<StoredBlob> | undefined;
  let file: (NodeJS.ReadableStream & { destroy: (error?: Error) => unknown }) | null = null;
  let filename = '';
  let received = 0;
  const parser = openParser(request, part);
  const fail = (error: unknown): void => reject(error);
  const unwatch = watchUploadRate(request, limits.rate, fail);
  const onTotal = (): void =>
    fail(formError('request_timeout', `The upload took longer than ${limits.totalTimeoutMs} ms.`));
  const total = setTimeout(onTotal, limits.totalTimeoutMs);

  // An exception inside an event of the parser would end the process with all other requests.
  const guarded = <Arguments extends unknown[]>(listen: (...args: Arguments) => void) => {
    return (...args: Arguments): void => {
      try {
        listen(...args);
      } catch (error) {
        fail(error);
      }
    };
  };

  parser.on(
    'file',
    guarded((_name, stream: Readable, sentName: string | undefined) => {
      file = stream;
      stream.on('error', () => {}); // Reported through put(), or through the parser.
      const name = sentName === undefined || sentName === '' ? filenameDefault : sentName;
      const problem = filenameProblem(name);
      if (problem !== null) return fail(formError('invalid_value', problem, part));
      // Browsers and SDKs percent-encode only the quotation mark in a name (WHATWG HTML, multipart/form-data), so only
      // that is decoded.
      filename = name.replaceAll('%22', '"');
      // Leaves disk space for the results of running batches.
      storing = store.put(stream, { sizeBytesMax: limits.fileSizeBytesMax, leavesReserve: true });
      storing.catch(fail);
    }),
  );
  // The parser's types ignore that a part's Content-Disposition can lack a name.
  parser.on(
    'field',
    guarded((name: string | undefined, value: string, _isNameCut: boolean, isValueCut: boolean) => {
      const flaw = isValueCut ? 'cut' : name !== undefined && fields.has(name) ? 'repeated' : null;
      const problem = fieldProblem(name, value, flaw);
      if (problem === null) fields.set(name ?? '', value);
      else fail(formError('invalid_value', problem, name?.slice(0, 64) ?? null));
    }),
  );
  parser.on('filesLimit', () => fail(formError('invalid_value', `The form can have only one part '${part}'.`, part)));
  for (const limit of ['fieldsLimit', 'partsLimit'] as const) {
    parser.on(limit, () => fail(formError('invalid_multipart', `A form can have at most ${fieldsMax} fields.`)));
  }
  parser.on('error', () => fail(formError('invalid_multipart', 'The multipart body is malformed or ends too early.')));
  parser.on('finish', () => resolve());
  const onData = (chunk: Buffer): void => {
    received += chunk.length;
    countTransferred(chunk.length);
    if (received > limits.fileSizeBytesMax + overheadBytesMax) fail(fileTooLarge(limits.fileSizeBytesMax));
  };
  const onGone = (): void => {
    if (!request.complete) fail(clientDisconnected());
  };
  const detach = (): void => {
    unwatch();
    clearTimeout(total);
    request.off('data', onData).off('close', onGone).off('error', onGone);
    request.unpipe(parser);
  };
  finished.then(detach, detach);
  request.on('data', onData).on('close', onGone).on('error', onGone);
  request.pipe(parser);
  return {
    finished,
    storing: () => storing,
    filename: () => filename,
    fields,
    stop: (error) => {
      detach();
      file?.destroy(error);
      parser.destroy();
    },
  };
}

/** Makes a parser that bounds everything but the size of the file. */
function openParser(request: IncomingMessage, part: string) {
  return new Busboy({
    headers: { ...request.headers, 'content-type': request.headers['content-type'] ?? '' },
    limits: {
      fields: fieldsMax,
      fieldSize: fieldSizeBytesMax,
      files: 1,
      parts: fieldsMax + 2,
      headerPairs: 16,
      headerSize: partHeaderBytesMax,
    },
    // The file is found by its name, because some clients also send text fields with a content type or filename.
    isPartAFile: (name) => name === part,
  });
}

function filenameProblem(name: string): string | null {
  if (name.length > filenameLengthMax) return `The filename is longer than ${filenameLengthMax} characters.`;
  // oxlint-disable-next-line no-control-regex -- control characters are what is refused
  if (/[\x00-\x1f\x7f]/.test(name) || !name.isWellFormed()) return 'The filename contains control characters.';
  return null;
}

function fieldProblem(name: string | undefined, value: string, flaw: 'cut' | 'repeated' | null): string | null {
  if (name === undefined || name === '' || name.length > nameLengthMax) {
    return `A field has no name, or a name with more than ${nameLengthMax} characters.`;
  }
  // A plain object would lose this member silently.
  if (/(?:^|\[)__proto__(?:\]|$)/.test(name)) {
    return `Invalid field '${name.slice(0, 64)}': the name '__proto__' is not allowed. Leave the field out.`;
  }
  if (flaw === 'cut') return `A field can have at most ${fieldSizeBytesMax} bytes.`;
  if (flaw === 'repeated') return `The field '${name.slice(0, 64)}' appears twice. Send it only once.`;
  return value.includes('\0') || !value.isWellFormed() ? 'A field contains U+0000 or is not valid text.' : null;
}

function formError(code: string, message: string, param: string | null = null): GatewayError {
  return new GatewayError('invalid_request', code, message, { param });
}
