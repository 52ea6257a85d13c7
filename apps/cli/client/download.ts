import { createHash, type Hash } from 'node:crypto';
import { once } from 'node:events';
import { createReadStream, createWriteStream } from 'node:fs';
import { rename, rm, stat } from 'node:fs/promises';
import { Writable } from 'node:stream';
import { setTimeout as wait } from 'node:timers/promises';
import { ApiError, CliError, UnreachableError } from './cli-error.ts';
import { piecesOf, type Client } from './http-client.ts';

export type Downloaded = { bytes: number; lines: number };
type Options = { onProgress?: (bytes: number, of: number) => void; signal?: AbortSignal };

const attemptsMax = 6;
const retryDelayMs = 1_000;

/**
 * Downloads a file of the server to `target`, a path, or to stdout (null). A broken connection is taken up where it broke. A
 * path appears when all of it is there and its SHA-256 is right; before that, what came stays in `PATH.<file id>.part`, and
 * the next download of the same file goes on from there. Throws ApiError, UnreachableError, CliError.
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
  const part = `${target}.${fileId}.part`;
  const before = await stat(part).catch(() => null);
  if (before !== null) for await (const piece of createReadStream(part) as AsyncIterable<Buffer>) progress.add(piece);
  const file = createWriteStream(part, { flags: 'a' });
  try {
    await once(file, 'open').catch((error: unknown) => {
      throw new CliError(`${part} cannot be written: ${error instanceof Error ? error.message : String(error)}.`);
    });
    await fetchRest(client, fileId, file, progress, options);
  } finally {
    file.end();
    if (!file.closed) await once(file, 'close');
  }
  try {
    const downloaded = progress.checked(fileId);
    await rename(part, target);
    return downloaded;
  } catch (error) {
    await rm(part, { force: true });
    throw error;
  }
}

/**
 * Reads a file of the server piece by piece without keeping it, with the same care. Throws what `download` throws; `onPiece`
 * may have got pieces by then.
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

/** What came so far, and what the whole must be. */
class Progress {
  bytes = 0;
  lines = 0;
  /** Of the whole file; null until the server has said it. */
  digest: string | null = null;
  readonly #hash: Hash = createHash('sha256');

  add(piece: Uint8Array): void {
    this.#hash.update(piece);
    this.bytes += piece.length;
    for (let at = piece.indexOf(10); at !== -1; at = piece.indexOf(10, at + 1)) this.lines += 1;
  }

  /** Throws CliError if the bytes are not those that the server has. */
  checked(fileId: string): Downloaded {
    if (this.digest !== null && this.#hash.digest('base64') !== this.digest) {
      throw new CliError(`The SHA-256 of what came is not that of ${fileId}, so it was thrown away.`, {
        hint: 'Download it again. If that happens twice, something between you and the server changes what it sends.',
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
  { onProgress, signal }: Options,
): Promise<void> {
  for (let attempt = 1; ; attempt += 1) {
    const start = progress.bytes;
    try {
      await fetchFrom(client, fileId, target, progress, {
        ...(onProgress ? { onProgress } : {}),
        ...(signal ? { signal } : {}),
      });
      return;
    } catch (error) {
      if (error instanceof ApiError && error.code === 'range_not_satisfiable') return; // all of it was there already
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
  { onProgress, signal }: Options,
): Promise<void> {
  const start = progress.bytes;
  const response = await client.open('GET', `/v1/files/${encodeURIComponent(fileId)}/content`, {
    headers: { 'accept-encoding': 'identity', ...(start === 0 ? {} : { range: `bytes=${start}-` }) },
    signal,
  });
  progress.digest = /sha-256=:([\w+/=]+):/.exec(response.headers.get('repr-digest') ?? '')?.[1] ?? null;
  const length = Number(response.headers.get('content-length') ?? Number.NaN);
  // A server without ranges sends the file from its beginning.
  let skip = response.status === 206 ? 0 : start;
  const total = Number.isFinite(length) ? length + (response.status === 206 ? start : 0) : null;
  for await (const piece of piecesOf(response, client.server)) {
    signal?.throwIfAborted();
    const fresh = piece.subarray(Math.min(skip, piece.length));
    skip -= piece.length - fresh.length;
    if (fresh.length === 0) continue;
    progress.add(fresh);
    if (!target.write(fresh)) await once(target, 'drain');
    if (total !== null) onProgress?.(progress.bytes, total);
  }
  if (total !== null && progress.bytes < total)
    throw new UnreachableError(`The connection to ${client.server} ended after ${progress.bytes} of ${total} bytes.`);
}
