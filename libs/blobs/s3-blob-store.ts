import type { S3Client as Client } from '@aws-sdk/client-s3';
import { createHash, randomBytes } from 'node:crypto';
import { Readable } from 'node:stream';
import { buffer } from 'node:stream/consumers';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { MemoryBudget } from '#libs/kernel/sharing/memory-budget.ts';
import { blobNotFound } from './blob-errors.ts';
import { openIdentity, type BlobStore, type StoredBlob } from './blob-store.ts';
import { assertBlobName, createBlobWriter, isBlobName, newBlobName, putBlob, readJoined } from './blob-writer.ts';
import { createS3BlobFolder } from './s3-blob-folder.ts';
import { isMissing, isNamed, toStoreError } from './s3-errors.ts';
import { canCopyParts, createS3Target, partBytes, partsMax, type S3Module } from './s3-target.ts';
import { sweepBlobs } from './sweep-blobs.ts';

export type S3BlobStoreOptions = {
  bucket: string;
  /** Empty, or ends with a slash. */
  prefix: string;
  /** Default: the one of AWS. */
  endpoint?: string | undefined;
  region: string;
  /** Whether the bucket is in the path of a URL instead of its host name. */
  pathStyle: boolean;
  /** How long a connection can be silent before the request is repeated. Default: a minute. Tests shorten it. */
  idleTimeoutMs?: number;
  /** Writers of more than 4 MiB are charged to it, and wait for room. They then throw unavailable. */
  memory?: MemoryBudget | undefined;
};

const readChunkBytes = 262_144;
/** How often reading resumes after an interruption without a new byte. */
const resumesMax = 3;

/**
 * Blobs as objects below `prefix` in a bucket of S3 or a compatible server. Credentials come from the SDK's default chain.
 * Throws if the bucket cannot be read.
 */
export async function createS3BlobStore(options: S3BlobStoreOptions): Promise<BlobStore> {
  const s3 = await import('@aws-sdk/client-s3');
  const client = createClient(s3, options);
  const { bucket: Bucket, prefix: Prefix } = options;
  const serverOffsetMs = followServerClock(client);
  const idPlace = { Bucket, Key: `${Prefix}store-id` };
  const { findId, storeId, isAvailable } = await openIdentity({
    read: () => toStoreError(readStoreId(s3, client, idPlace)),
    create: () => toStoreError(createStoreId(s3, client, idPlace)),
  });
  const place = (blob: string) => {
    assertBlobName(blob);
    return { Bucket, Key: Prefix + blob };
  };

  const get = async (blob: string, start: number, end: number | undefined) => {
    const range = start === 0 && end === undefined ? {} : { Range: `bytes=${start}-${end ?? ''}` };
    try {
      return await client.send(new s3.GetObjectCommand({ Bucket, Key: Prefix + blob, ...range }));
    } catch (error) {
      if (isNamed(error, 'InvalidRange')) return null; // The range starts at the end of the blob or behind it.
      throw isMissing(error) ? blobNotFound(error) : error;
    }
  };

  const store: BlobStore = {
    findId,
    storeId,
    isAvailable,

    async openWriter({ sizeBytesMax = Number.MAX_SAFE_INTEGER } = {}) {
      const blob = newBlobName();
      await store.storeId();
      const limits = { sizeBytesMax: Math.min(sizeBytesMax, partBytes * partsMax), flushBytes: partBytes };
      return createBlobWriter(blob, createS3Target({ s3, client, place: place(blob), memory: options.memory }), limits);
    },

    put: (source, putOptions = {}) => putBlob(store, source, putOptions),

    async join(parts, { onBytes } = {}) {
      if (!canCopyParts(parts.map(({ sizeBytes }) => sizeBytes))) return store.put(readJoined(store, parts, onBytes));
      const blob = newBlobName();
      const target = createS3Target({ s3, client, place: place(blob) });
      const copies = parts.map((part) => ({ ...part, key: place(part.blob).Key }));
      return { blob, ...(await copyJoined(store, target, copies, onBytes)) };
    },

    async read(blob, { offset = 0, length } = {}) {
      assertBlobName(blob);
      if (length === 0) return Readable.from([]);
      const end = length === undefined ? undefined : offset + length - 1;
      const first = await toStoreError(get(blob, offset, end));
      if (first === null) return Readable.from([]);
      const body = first.Body as Readable;
      const endsAt = offset + (first.ContentLength ?? 0);
      const pieces = readAll(body, { from: offset, endsAt, resume: (at) => toStoreError(get(blob, at, endsAt - 1)) });
      const stream = Readable.from(pieces, { objectMode: false, highWaterMark: readChunkBytes });
      // A stream that is destroyed before its first read never enters the generator.
      return stream.once('close', () => body.destroy());
    },

    async readRange(blob, offset, length) {
      const bytes = await buffer(await store.read(blob, { offset, length }));
      if (bytes.length === length) return bytes;
      throw new Error(`the blob ends at byte ${offset + bytes.length}, before ${offset + length}`);
    },

    remove: async (blob) => void (await toStoreError(client.send(new s3.DeleteObjectCommand(place(blob))))),

    sizeOf: async (blob) => await toStoreError(findSize(s3, client, place(blob))),

    async *list() {
      for (let token: string | undefined; ;) {
        const command = new s3.ListObjectsV2Command({ Bucket, Prefix, ContinuationToken: token });
        const page = await toStoreError(client.send(command));
        for (const { Key = '', Size = 0, LastModified } of page.Contents ?? []) {
          const blob = Key.slice(Prefix.length);
          if (isBlobName(blob)) yield { blob, sizeBytes: Size, modifiedMs: LastModified?.getTime() ?? Infinity };
        }
        token = page.NextContinuationToken;
        if (token === undefined) return;
      }
    },

    async sweep({ olderThanMs, findReferenced }) {
      // For the time of the server.
      await toStoreError(client.send(new s3.HeadObjectCommand({ Bucket, Key: `${Prefix}store-id` })));
      const beforeMs = Date.now() + serverOffsetMs() - olderThanMs;
      const partialsRemoved = await toStoreError(sweepUploads({ s3, client, Bucket, Prefix, beforeMs }));
      const removeAll = (blobs: readonly string[]) =>
        toStoreError(removeObjects(s3, client, { Bucket, keys: blobs.map((blob) => Prefix + blob) }));
      const blobsRemoved = await sweepBlobs({ list: () => store.list(), removeAll }, { beforeMs, findReferenced });
      return { blobsRemoved, partialsRemoved };
    },

    folder: (name) => createS3BlobFolder(s3, client, { bucket: Bucket, prefix: `${Prefix}${name}/` }),
  };
  return store;
}

function createClient(
  s3: S3Module,
  { endpoint, region, pathStyle, idleTimeoutMs = 60_000 }: S3BlobStoreOptions,
): Client {
  const agent = { keepAlive: true, maxSockets: 512 };
  return new s3.S3Client({
    ...(endpoint === undefined ? {} : { endpoint }),
    region,
    forcePathStyle: pathStyle,
    // Other servers do not know the checksums that the SDK adds by default.
    requestChecksumCalculation: 'WHEN_REQUIRED',
    responseChecksumValidation: 'WHEN_REQUIRED',
    maxAttempts: 5,
    requestHandler: {
      connectionTimeout: 10_000,
      socketTimeout: idleTimeoutMs,
      httpAgent: agent,
      httpsAgent: agent,
    },
  });
}

/**
 * Returns how far the server's clock is ahead, from the Date header of its latest answer. A process whose own clock is
 * ahead would otherwise sweep blobs that were just written.
 */
function followServerClock(client: Client): () => number {
  let offsetMs = 0;
  client.middlewareStack.add(
    (next) => async (args) => {
      const result = await next(args);
      const { headers } = result.response as { headers?: Record<string, string> };
      const serverMs = Date.parse(headers?.['date'] ?? '');
      if (!Number.isNaN(serverMs)) offsetMs = serverMs - Date.now();
      return result;
    },
    { step: 'deserialize', name: 'followServerClock' },
  );
  return () => offsetMs;
}

/**
 * Reads a body to its end. If it is interrupted (the server closes a connection that a slow reader leaves idle), it
 * resumes at the next byte, because a blob never changes.
 */
async function* readAll(
  first: Readable,
  options: { from: number; endsAt: number; resume: (at: number) => Promise<{ Body?: unknown } | null> },
): AsyncGenerator<Buffer> {
  let [body, position, resumes] = [first, options.from, 0];
  for (;;) {
    try {
      for await (const chunk of body as AsyncIterable<Buffer>) {
        position += chunk.length;
        resumes = 0;
        yield chunk;
      }
      if (position >= options.endsAt) return;
      throw new Error(`the answer ended at byte ${position} of ${options.endsAt}`);
    } catch (error) {
      if (position >= options.endsAt) return;
      if (++resumes > resumesMax) await toStoreError(Promise.reject(error));
    } finally {
      body.destroy();
    }
    const next = await options.resume(position);
    if (next === null) throw new Error(`the blob ends before byte ${position}`);
    body = next.Body as Readable;
  }
}

/** null for an object that does not exist. */
async function findSize(s3: S3Module, client: Client, place: { Bucket: string; Key: string }): Promise<number | null> {
  try {
    return (await client.send(new s3.HeadObjectCommand(place))).ContentLength ?? 0;
  } catch (error) {
    if (isMissing(error)) return null;
    throw error;
  }
}

/** Lets the server copy objects into one, and reads them for the hash meanwhile. */
async function copyJoined(
  store: Pick<BlobStore, 'read'>,
  target: ReturnType<typeof createS3Target>,
  parts: readonly { blob: string; key: string; sizeBytes: number }[],
  onBytes: ((bytes: Uint8Array) => void) | undefined,
): Promise<Omit<StoredBlob, 'blob'>> {
  const hash = createHash('sha256');
  let sizeBytes = 0;
  try {
    for (const part of parts) {
      await target.appendCopy(part.key, part.sizeBytes);
      for await (const bytes of readJoined(store, [part], onBytes)) hash.update(bytes);
      sizeBytes += part.sizeBytes;
    }
    await target.finish(Buffer.alloc(0));
    return { sizeBytes, sha256: hash.digest('hex') };
  } catch (error) {
    await target.discard();
    throw error;
  }
}

type ObjectPlace = { Bucket: string; Key: string };

async function readStoreId(s3: S3Module, client: Client, place: ObjectPlace): Promise<string | null> {
  try {
    const { Body } = await client.send(new s3.GetObjectCommand(place));
    return (await Body?.transformToString())?.trim() ?? null;
  } catch (error) {
    if (!isMissing(error)) throw error;
    return null;
  }
}

/** If several processes start together, one wins and all read the same ID. */
async function createStoreId(s3: S3Module, client: Client, place: ObjectPlace): Promise<string> {
  const Body = `store_${randomBytes(16).toString('hex')}\n`;
  try {
    await client.send(new s3.PutObjectCommand({ ...place, Body, IfNoneMatch: '*' }));
  } catch (error) {
    if (!isNamed(error, 'PreconditionFailed', 'ConditionalRequestConflict')) throw error;
  }
  const stored = await readStoreId(s3, client, place);
  if (stored === null) throw new GatewayError('unavailable', 'storage_unavailable', 'The file storage has no ID.');
  return stored;
}

/** Deletes at most 1,000 objects with one request. */
async function removeObjects(
  s3: S3Module,
  client: Client,
  { Bucket, keys }: { Bucket: string; keys: readonly string[] },
): Promise<void> {
  const Delete = { Objects: keys.map((Key) => ({ Key })), Quiet: true };
  const { Errors: errors = [] } = await client.send(new s3.DeleteObjectsCommand({ Bucket, Delete }));
  if (errors[0] !== undefined) throw new Error(`${errors.length} objects were not deleted: ${errors[0].Message}`);
}

/** Aborts the multipart uploads that were begun before this time, and returns their number. */
async function sweepUploads(options: {
  s3: S3Module;
  client: Client;
  Bucket: string;
  Prefix: string;
  beforeMs: number;
}): Promise<number> {
  const { s3, client, Bucket, Prefix, beforeMs } = options;
  let removed = 0;
  for (let marker: { KeyMarker?: string | undefined; UploadIdMarker?: string | undefined } = {}; ;) {
    const page = await client.send(new s3.ListMultipartUploadsCommand({ Bucket, Prefix, ...marker }));
    for (const { Key = '', UploadId, Initiated } of page.Uploads ?? []) {
      if (!isBlobName(Key.slice(Prefix.length)) || (Initiated?.getTime() ?? Infinity) > beforeMs) continue;
      await client.send(new s3.AbortMultipartUploadCommand({ Bucket, Key, UploadId })).catch((error: unknown) => {
        if (!isNamed(error, 'NoSuchUpload')) throw error; // It was completed or aborted since it was listed.
      });
      removed += 1;
    }
    if (page.IsTruncated !== true) return removed;
    marker = { KeyMarker: page.NextKeyMarker, UploadIdMarker: page.NextUploadIdMarker };
  }
}
