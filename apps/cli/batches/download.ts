import { createHash, type Hash } from 'node:crypto';
import { once } from 'node:events';
import { createReadStream, createWriteStream } from 'node:fs';
import { rename, rm, stat } from 'node:fs/promises';
import { Writable } from 'node:stream';
import { setTimeout as wait } from 'node:timers/promises';
import { ApiError, CliError, UnreachableError } from '../server/cli-error.ts';
import { cannotWrite } from '../terminal/file-problem.ts';
import { piecesOf, type Client } from '../server/http-client.ts';

export type Downloaded = { bytes: number; lines: number };
type Options = { onProgress?: (bytes: number, of: number) => void; signal?: AbortSignal };

const attemptsMax = 6;
const retryDelayMs = 1_000;

/**
 * Downloads a file of the server to `target`, a path, or to stdout (null). A broken connection is taken up where it broke. A
 * path appears when all of it is there and its SHA-256 is right; before that, what came stays in `PATH.<file id>.part`, and
 * the next download of the same file goes on from there. A path that is no file, such as a pipe or /dev/null, is written to as
 * it is. Throws ApiError, UnreachableError, CliError.
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
  await write(part, 'a', (stream) => fetchRest(client, fileId, stream, progress, options), keptHint);
  try {
    progress.checked(fileId);
  } catch (error) {
    await rm(part, { force: true });
    throw error;
  }
  await putInPlace(part, target);
  return { bytes: progress.bytes, lines: progress.lines };
}

/** Downloads what a path of the server answers with once. What does not arrive whole is thrown away. Throws what `download` throws. */
export async function downloadOnce(
  client: Client,
  path: string,
  target: string,
  signal: AbortSignal,
): Promise<Downloaded> {
  const progress = new Progress();
  const isDirect = await isDevice(target);
  const part = isDirect ? target : `${target}.part`;
  try {
    await write(
      part,
      'w',
      async (stream) => {
        const response = await client.open('GET', path, { signal });
        for await (const piece of piecesOf(response, client.server)) {
          signal.throwIfAborted();
          progress.add(piece);
          await writePiece(stream, piece);
        }
      },
      null,
    );
  } catch (error) {
    if (!isDirect) await rm(part, { force: true }).catch(() => undefined);
    throw error;
  }
  if (!isDirect) await putInPlace(part, target);
  return { bytes: progress.bytes, lines: progress.lines };
}

/** A file that is renamed to the name of a device or a pipe would take its place, so these are written to as they are. */
const isDevice = async (target: string): Promise<boolean> => {
  const found = await stat(target).catch(() => null);
  return found !== null && !found.isFile();
};

async function putInPlace(part: string, target: string): Promise<void> {
  await rename(part, target).catch((error: unknown) => {
    throw cannotWrite(target, error, `All of it is in ${part}.`);
  });
}

async function writePiece(target: Writable, piece: Uint8Array): Promise<void> {
  const hasRoom = target.write(piece);
  if (target === process.stdout && target.errored !== null) return; // the process ends by that
  // A stream that has failed is never drained.
  if (!hasRoom && target.errored === null) await once(target, 'drain');
  if (target.errored !== null) throw target.errored;
}

const keptHint = 'What came is kept, and the same command goes on from there.';

/** Opens a file, has it written, and closes it. Throws CliError if that fails, and what `work` throws. */
async function write(
  file: string,
  flags: 'a' | 'w',
  work: (stream: Writable) => Promise<void>,
  hint: string | null,
): Promise<void> {
  const stream = createWriteStream(file, { flags });
  const closed = new Promise<void>((resolve) => stream.once('close', resolve));
  stream.on('error', () => undefined); // it is in `errored`
  try {
    await once(stream, 'open');
    await work(stream);
  } catch (error) {
    if (stream.errored === null) throw error;
  } finally {
    stream.end();
    await closed;
  }
  if (stream.errored !== null) throw cannotWrite(file, stream.errored, hint);
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
    await writePiece(target, fresh);
    if (total !== null) onProgress?.(progress.bytes, total);
  }
  if (total !== null && progress.bytes < total)
    throw new UnreachableError(`The connection to ${client.server} ended after ${progress.bytes} of ${total} bytes.`);
}
