import { createHash, type Hash } from 'node:crypto';
import { once } from 'node:events';
import { createReadStream, createWriteStream } from 'node:fs';
import { rename, rm, stat } from 'node:fs/promises';
import { Writable } from 'node:stream';
import { setTimeout as wait } from 'node:timers/promises';
import { ApiError, CliError, UnreachableError } from '../server/cli-error.ts';
import { unwritableFile } from '../terminal/file-problem.ts';
import { readPieces, type Client } from '../server/http-client.ts';

export type Downloaded = { bytes: number; lines: number };
type Options = {
  onProgress?: (bytes: number, of: number) => void;
  signal?: AbortSignal;
  /** The path of the file, with its query. Default: the content of a file on the server. With a path, no part is kept. */
  path?: string;
};

const attemptsMax = 6;
const retryDelayMs = 1_000;

/**
 * Downloads a file of the server to `target`, a path, or to stdout (null). An interrupted download resumes. The path
 * appears once the file is complete and its SHA-256 matches; until then, the downloaded part stays in
 * `PATH.<file id>.part`, and the next download of the same file resumes there. A pipe or a device such as /dev/null is
 * written directly. Throws ApiError, UnreachableError, CliError.
 */
export async function download(
  client: Client,
  fileId: string,
  target: string | null,
  options: Options = {},
): Promise<Downloaded> {
  const progress = new Progress();
  if (target === null) {
    await fetchRest(client, fileId, process.stdout, progress, options);
    return progress.checked(fileId);
  }
  if (await isDevice(target)) {
    await write(target, 'w', (stream) => fetchRest(client, fileId, stream, progress, options), null);
    return progress.checked(fileId);
  }
  const part = `${target}.${fileId}.part`;
  const before = await stat(part).catch(() => null);
  if (before !== null) for await (const piece of createReadStream(part) as AsyncIterable<Buffer>) progress.add(piece);
  const discard = async (error: unknown): Promise<never> => {
    await rm(part, { force: true });
    throw error;
  };
  const isKept = options.path === undefined;
  const fetching = write(part, 'a', (stream) => fetchRest(client, fileId, stream, progress, options), keptHint);
  await (isKept ? fetching : fetching.catch(discard));
  await Promise.try(() => progress.checked(fileId)).catch(discard);
  await putInPlace(part, target);
  return { bytes: progress.bytes, lines: progress.lines };
}

/** Renaming a file to the name of a device or pipe would replace it, so these are written directly. */
const isDevice = async (target: string): Promise<boolean> => {
  const found = await stat(target).catch(() => null);
  return found !== null && !found.isFile();
};

async function putInPlace(part: string, target: string): Promise<void> {
  await rename(part, target).catch((error: unknown) => {
    throw unwritableFile(target, error, `The complete file is ${part}.`);
  });
}

/** Writes a piece, and waits until the target accepts more. */
export async function writePiece(target: Writable, piece: Uint8Array): Promise<void> {
  const hasRoom = target.write(piece);
  if (target === process.stdout && target.errored !== null) return; // this ends the process
  // A failed stream never drains.
  if (!hasRoom && target.errored === null) await once(target, 'drain');
  if (target.errored !== null) throw target.errored;
}

const keptHint = 'The downloaded part is kept. To resume, repeat the command.';

/** Opens a file, lets `work` write it, and closes it. Throws CliError if that fails, and the errors of `work`. */
async function write(
  file: string,
  flags: 'a' | 'w',
  work: (stream: Writable) => Promise<void>,
  hint: string | null,
): Promise<void> {
  const stream = createWriteStream(file, { flags });
  const closed = new Promise<void>((resolve) => stream.once('close', resolve));
  stream.on('error', () => undefined); // the error is in `errored`
  try {
    await once(stream, 'open');
    await work(stream);
  } catch (error) {
    if (stream.errored === null) throw error;
  } finally {
    stream.end();
    await closed;
  }
  if (stream.errored !== null) throw unwritableFile(file, stream.errored, hint);
}

/**
 * Reads a file of the server piece by piece without storing it, and resumes and checks it as `download` does. Throws the
 * errors of `download`, possibly after calls of `onPiece`.
 */
export async function readThrough(
  client: Client,
  fileId: string,
  onPiece: (piece: Uint8Array) => void,
  signal?: AbortSignal,
): Promise<Downloaded> {
  const progress = new Progress();
  const target = new Writable({
    write(piece: Uint8Array, _encoding, done) {
      onPiece(piece);
      done();
    },
  });
  await fetchRest(client, fileId, target, progress, signal ? { signal } : {});
  return progress.checked(fileId);
}

/** The downloaded part, and the expected digest of the whole. */
class Progress {
  bytes = 0;
  lines = 0;
  /** The digest of the whole file; null until the server sends it. */
  digest: string | null = null;
  readonly #hash: Hash = createHash('sha256');

  add(piece: Uint8Array): void {
    this.#hash.update(piece);
    this.bytes += piece.length;
    for (let at = piece.indexOf(10); at !== -1; at = piece.indexOf(10, at + 1)) this.lines += 1;
  }

  /** Throws CliError if the bytes do not match the digest of the server. */
  checked(fileId: string): Downloaded {
    if (this.digest !== null && this.#hash.digest('base64') !== this.digest) {
      throw new CliError(`The downloaded bytes do not have the SHA-256 of ${fileId} and were discarded.`, {
        hint: 'Download it again. If this happens twice, something between you and the server changes the data.',
      });
    }
    return { bytes: this.bytes, lines: this.lines };
  }
}

async function fetchRest(
  client: Client,
  fileId: string,
  target: Writable,
  progress: Progress,
  options: Options,
): Promise<void> {
  const { signal } = options;
  for (let attempt = 1; ; attempt += 1) {
    const start = progress.bytes;
    try {
      await fetchFrom(client, fileId, target, progress, options);
      return;
    } catch (error) {
      if (error instanceof ApiError && error.code === 'range_not_satisfiable') return; // the file was already complete
      if (progress.bytes > start) attempt = 1;
      if (!(error instanceof UnreachableError) || attempt >= attemptsMax) throw error;
      await wait(retryDelayMs * attempt, undefined, signal ? { signal } : {});
    }
  }
}

async function fetchFrom(
  client: Client,
  fileId: string,
  target: Writable,
  progress: Progress,
  { onProgress, signal, path = `/v1/files/${encodeURIComponent(fileId)}/content` }: Options,
): Promise<void> {
  const start = progress.bytes;
  const response = await client.open('GET', path, {
    headers: { 'accept-encoding': 'identity', ...(start === 0 ? {} : { range: `bytes=${start}-` }) },
    signal,
  });
  progress.digest = /sha-256=:([\w+/=]+):/.exec(response.headers.get('repr-digest') ?? '')?.[1] ?? null;
  const length = Number(response.headers.get('content-length') ?? Number.NaN);
  // A server without range support sends the whole file.
  let skip = response.status === 206 ? 0 : start;
  const total = Number.isFinite(length) ? length + (response.status === 206 ? start : 0) : null;
  for await (const piece of readPieces(response, client.server)) {
    signal?.throwIfAborted();
    const fresh = piece.subarray(Math.min(skip, piece.length));
    skip -= piece.length - fresh.length;
    if (fresh.length === 0) continue;
    progress.add(fresh);
    await writePiece(target, fresh);
    if (total !== null) onProgress?.(progress.bytes, total);
  }
  if (total !== null && progress.bytes < total)
    throw new UnreachableError(`The connection to ${client.server} closed after ${progress.bytes} of ${total} bytes.`);
}
