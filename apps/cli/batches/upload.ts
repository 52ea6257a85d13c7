import { createHash, hash, randomUUID } from 'node:crypto';
import { constants, createReadStream } from 'node:fs';
import { access, open, stat, type FileHandle } from 'node:fs/promises';
import path from 'node:path';
import { ApiError, CliError, UnreachableError } from '../server/cli-error.ts';
import { unreadableFile } from '../terminal/file-problem.ts';
import type { Client } from '../server/http-client.ts';

export type FileObject = { id: string; bytes: number; created_at: number; filename: string; purpose: string };

type UploadOptions = {
  purpose: string;
  filename?: string;
  /** The hash of the file, 64 hex digits, if it is already known. */
  sha256?: string;
  /** For files sent in one piece: repeating it with the same key does not create a second file. */
  idempotencyKey?: string;
  onProgress?: (bytes: number, of: number) => void;
  signal?: AbortSignal;
};
type Part = { id: string; bytes: number; sha256: string };
type Upload = { id: string; file: FileObject | null; parts?: Part[] };

/** Larger files are sent in parts of this size, one of which is in memory at a time. */
const partBytes = 16 * 1_048_576;
const pieceBytes = 262_144;
const howToResume = 'To resume, repeat the command within an hour.';
/** The timeout for one request. The server disconnects a client that sends too slowly long before that. */
const sendTimeoutMs = 1_800_000;

/**
 * Uploads a file of any size. An upload in parts that was interrupted, even by a kill, resumes when the same file is
 * uploaded again within an hour: the server knows its hash and parts. Throws ApiError, UnreachableError, CliError.
 */
export async function upload(client: Client, file: string, options: UploadOptions): Promise<FileObject> {
  const found = await stat(file).catch((error: unknown) => {
    throw unreadableFile(file, error);
  });
  if (!found.isFile()) throw new CliError(`${file} is not a regular file. Write its content to a regular file first.`);
  await access(file, constants.R_OK).catch((error: unknown) => {
    throw unreadableFile(file, error);
  });
  const { size } = found;
  const filename = (options.filename ?? path.basename(file)).replaceAll(/["\\\r\n]/g, '_');
  if (size > partBytes) {
    let hasBegun = false;
    const onProgress = (bytes: number, of: number): void => {
      hasBegun = true;
      options.onProgress?.(bytes, of);
    };
    try {
      return await uploadInParts(client, file, { ...options, onProgress, filename, size });
    } catch (error) {
      if (error instanceof UnreachableError && hasBegun)
        throw new UnreachableError(error.message, { hint: howToResume, cause: error });
      // An older server only accepts files in one piece.
      if (!(error instanceof ApiError) || error.code !== 'unknown_url') throw error;
    }
  }
  const { purpose, onProgress, idempotencyKey, signal } = options;
  const form = formOf({ purpose }, 'file', filename, async function* () {
    let sent = 0;
    for await (const piece of createReadStream(file, { highWaterMark: pieceBytes }) as AsyncIterable<Buffer>) {
      yield piece;
      sent += piece.length;
      onProgress?.(sent, size);
    }
    if (sent !== size) throw changed(file);
  });
  return await client.json<FileObject>('POST', '/v1/files', {
    ...form,
    ...(idempotencyKey === undefined ? {} : { idempotencyKey }),
    timeoutMs: sendTimeoutMs,
    signal,
  });
}

async function uploadInParts(
  client: Client,
  file: string,
  { size, purpose, filename, signal, onProgress, ...options }: UploadOptions & { filename: string; size: number },
): Promise<FileObject> {
  const sha256 = options.sha256 ?? (await hashOf(file));
  const made = await client.json<Upload>('POST', '/v1/uploads', {
    json: { filename, purpose, bytes: size, mime_type: 'application/octet-stream', sha256 },
    signal,
  });
  if (made.file !== null) return made.file;
  const at = `/v1/uploads/${made.id}`;
  // A file can contain the same bytes twice, but each part can be used only once.
  const there = Map.groupBy(made.parts ?? [], contentOf);
  const partIds: string[] = [];
  const handle = await open(file);
  try {
    for (let offset = 0; offset < size; offset += partBytes) {
      const bytes = await readPart(handle, file, offset, Math.min(partBytes, size - offset));
      const known = there.get(contentOf({ bytes: bytes.length, sha256: hash('sha256', bytes) }))?.shift();
      if (known !== undefined) {
        partIds.push(known.id);
        onProgress?.(offset + bytes.length, size);
        continue;
      }
      const form = formOf({}, 'data', 'part', async function* () {
        for (let from = 0; from < bytes.length; from += pieceBytes) {
          yield bytes.subarray(from, from + pieceBytes);
          onProgress?.(offset + Math.min(from + pieceBytes, bytes.length), size);
        }
      });
      const part = await client.json<Part>('POST', `${at}/parts`, {
        ...form,
        timeoutMs: sendTimeoutMs,
        signal,
        isPatient: true,
      });
      partIds.push(part.id);
    }
  } finally {
    await handle.close();
  }
  const json = { part_ids: partIds };
  const { file: completed } = await client.json<Upload>('POST', `${at}/complete`, {
    json,
    timeoutMs: sendTimeoutMs,
    signal,
    isPatient: true,
  });
  if (completed === null) throw new CliError(`The upload ${made.id} completed, but the server did not return a file.`);
  return completed;
}

const contentOf = ({ bytes, sha256 }: Pick<Part, 'bytes' | 'sha256'>): string => `${bytes} ${sha256}`;

async function readPart(handle: FileHandle, file: string, offset: number, length: number): Promise<Buffer> {
  const bytes = Buffer.alloc(length);
  for (let at = 0; at < length;) {
    const { bytesRead } = await handle.read(bytes, at, length - at, offset + at);
    if (bytesRead === 0) throw changed(file);
    at += bytesRead;
  }
  return bytes;
}

async function hashOf(file: string): Promise<string> {
  const sha256 = createHash('sha256');
  for await (const piece of createReadStream(file, { highWaterMark: 1_048_576 }) as AsyncIterable<Buffer>)
    sha256.update(piece);
  return sha256.digest('hex');
}

const changed = (file: string): CliError => new CliError(`${file} changed during the upload. Nothing was stored.`);

/** A multipart form of text fields and one part of bytes, which are streamed. */
function formOf(
  fields: Readonly<Record<string, string>>,
  name: string,
  filename: string,
  content: () => AsyncIterable<Uint8Array>,
): { body: () => AsyncIterable<Uint8Array>; headers: Record<string, string> } {
  const boundary = `sluice-${randomUUID()}`;
  const part = (of: string): string => `--${boundary}\r\ncontent-disposition: form-data; name="${of}"`;
  return {
    async *body() {
      for (const [field, value] of Object.entries(fields)) yield Buffer.from(`${part(field)}\r\n\r\n${value}\r\n`);
      yield Buffer.from(`${part(name)}; filename="${filename}"\r\ncontent-type: application/octet-stream\r\n\r\n`);
      yield* content();
      yield Buffer.from(`\r\n--${boundary}--\r\n`);
    },
    headers: { 'content-type': `multipart/form-data; boundary=${boundary}` },
  };
}
