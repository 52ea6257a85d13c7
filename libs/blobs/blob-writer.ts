import { createHash, randomBytes } from 'node:crypto';
import { addAbortSignal, Readable } from 'node:stream';
import type { BlobStore, BlobWriter, PutOptions, StoredBlob } from './blob-store.ts';
import { fileTooLarge } from './blob-errors.ts';

const blobShape = /^[0-9a-f]{32}$/;

export const newBlobName = (): string => randomBytes(16).toString('hex');

export const isBlobName = (name: string): boolean => blobShape.test(name);

/** Throws for a name that no store created, whatever it points to. */
export function assertBlobName(name: string): void {
  if (!isBlobName(name)) throw new Error(`not a name of a blob: ${JSON.stringify(name.slice(0, 64))}`);
}

/** The place that one blob is written to. */
export type BlobTarget = {
  /** Called before each write with the bytes so far. Waits until the process has memory for them. */
  reserve?: (sizeBytes: number) => Promise<void>;
  /** Writes the next bytes, at least `flushBytes`. */
  append: (bytes: Uint8Array) => Promise<void>;
  /** Writes the last bytes, if any, and makes the blob visible and durable. */
  finish: (rest: Uint8Array) => Promise<void>;
  /** Removes everything that was written. Does not throw: the sweep removes remains. */
  discard: () => Promise<void>;
};

/** The writer of every store: limits, hashes and collects the bytes, and passes `flushBytes` at a time to the target. */
export function createBlobWriter(
  blob: string,
  target: BlobTarget,
  { sizeBytesMax, flushBytes }: { sizeBytesMax: number; flushBytes: number },
): BlobWriter {
  const hash = createHash('sha256');
  let pending: Uint8Array[] = [];
  let pendingBytes = 0;
  let sizeBytes = 0;
  let state: 'open' | 'busy' | 'committed' | 'closed' = 'open';
  let stored: Promise<StoredBlob> | null = null;

  const discard = async (): Promise<void> => {
    if (state === 'closed' || state === 'committed') return;
    state = 'closed';
    pending = [];
    await target.discard();
  };
  const takePending = (): Uint8Array => {
    const bytes = pending.length === 1 && pending[0] !== undefined ? pending[0] : Buffer.concat(pending, pendingBytes);
    pending = [];
    pendingBytes = 0;
    return bytes;
  };
  const attempt = async (action: () => Promise<void>): Promise<void> => {
    if (state !== 'open') throw new Error(`blob writer is ${state}: make one call at a time, and none after its end`);
    state = 'busy';
    try {
      await action();
      if (state === 'busy') state = 'open';
    } catch (error) {
      await discard();
      throw error;
    }
  };
  const finish = async (): Promise<StoredBlob> => {
    await attempt(() => target.finish(takePending()));
    state = 'committed';
    return { blob, sizeBytes, sha256: hash.digest('hex') };
  };

  return {
    write: (chunk) =>
      attempt(async () => {
        sizeBytes += chunk.length;
        if (sizeBytes > sizeBytesMax) throw fileTooLarge(sizeBytesMax);
        await target.reserve?.(sizeBytes);
        hash.update(chunk);
        pending.push(chunk);
        pendingBytes += chunk.length;
        if (pendingBytes >= flushBytes) await target.append(takePending());
      }),
    commit: () => (stored ??= finish()),
    abort: discard,
  };
}

/** The bytes of blobs, one after the other. */
export async function* readJoined(
  store: Pick<BlobStore, 'read'>,
  parts: readonly { blob: string }[],
  onBytes?: (bytes: Uint8Array) => void,
): AsyncGenerator<Uint8Array> {
  for (const { blob } of parts) {
    for await (const bytes of (await store.read(blob)) as AsyncIterable<Buffer>) {
      onBytes?.(bytes);
      yield bytes;
    }
  }
}

/** The `put` of every store. `beforeWrite` runs before each chunk is written. */
export async function putBlob(
  store: Pick<BlobStore, 'openWriter'>,
  source: AsyncIterable<Uint8Array>,
  { sizeBytesMax, signal }: PutOptions,
  beforeWrite: (chunk: Uint8Array) => Promise<void> = async () => {},
): Promise<StoredBlob> {
  signal?.throwIfAborted();
  if (signal && source instanceof Readable) addAbortSignal(signal, source);
  const writer = await store.openWriter(sizeBytesMax === undefined ? {} : { sizeBytesMax });
  try {
    for await (const chunk of source) {
      signal?.throwIfAborted();
      await beforeWrite(chunk);
      await writer.write(chunk);
    }
    signal?.throwIfAborted();
    return await writer.commit();
  } catch (error) {
    await writer.abort();
    // The error of an aborted stream is AbortError; the reason is in the signal.
    throw signal?.aborted ? signal.reason : error;
  }
}
