import type { CompletedPart, S3Client } from '@aws-sdk/client-s3';
import type { MemoryBudget, MemoryLease } from '#libs/kernel/sharing/memory-budget.ts';
import type { BlobTarget } from './blob-writer.ts';
import { toStoreError } from './s3-errors.ts';

/** The SDK takes about 80 ms and 16 MiB to load, so only a process that uses S3 loads it. */
export type S3Module = typeof import('@aws-sdk/client-s3');

/** A writer holds at most three of these: one that fills and two in flight. */
export const partBytes = 8_388_608;
/** The memory of such a writer. */
const writerBytesMax = 3 * partBytes;
/** Smaller blobs are not charged, because results that wait to be settled already are. */
const unchargedBytesMax = partBytes / 2;
/** The limit of S3. Blobs can have 78 GiB. */
export const partsMax = 10_000;

/** The limits of S3 for each part of a multipart upload. The last part can be smaller. */
const [partBytesLeast, partBytesMost] = [5_242_880, 5_368_709_120];

/** Whether the server can copy objects of these sizes to the parts of another one. */
export const canCopyParts = (sizes: readonly number[]): boolean =>
  sizes.length > 0 &&
  sizes.length <= partsMax &&
  sizes.every((bytes) => bytes > 0 && bytes <= partBytesMost) &&
  sizes.slice(0, -1).every((bytes) => bytes >= partBytesLeast);

/** One object: a single request if it is smaller than a part, and otherwise a multipart upload. */
export function createS3Target(options: {
  s3: S3Module;
  client: S3Client;
  place: { Bucket: string; Key: string };
  /** Writers are charged to it. */
  memory?: MemoryBudget | undefined;
}): BlobTarget & {
  /** Like `append`, with the bytes of another object of the bucket, which the server copies. */
  appendCopy: (key: string, sizeBytes: number) => Promise<void>;
} {
  const { s3, client, place, memory } = options;
  let lease: MemoryLease | undefined;
  const abandoned = new AbortController();
  const sending: Promise<CompletedPart>[] = [];
  let upload: Promise<string | undefined> | null = null;
  let sizeBytes = 0;
  let isFinishing = false;

  const begin = async (): Promise<string | undefined> =>
    (await client.send(new s3.CreateMultipartUploadCommand(place))).UploadId;
  type Part = typeof place & { UploadId: string | undefined; PartNumber: number };
  const addPart = async (partBytes: number, send: (part: Part) => Promise<string | undefined>): Promise<void> => {
    const UploadId = await (upload ??= begin());
    const PartNumber = sending.length + 1;
    const part = send({ ...place, UploadId, PartNumber }).then((ETag) => ({ ETag, PartNumber }));
    part.catch(() => {}); // The next append, or finish, awaits it.
    sending.push(part);
    sizeBytes += partBytes;
    await sending.at(-2);
  };
  const whileWanted = { abortSignal: abandoned.signal };
  const sendPart = (bytes: Uint8Array): Promise<void> =>
    addPart(bytes.length, async (part) => {
      const command = new s3.UploadPartCommand({ ...part, Body: bytes });
      return (await client.send(command, whileWanted)).ETag;
    });
  const copyPart = (key: string, partBytes: number): Promise<void> =>
    addPart(partBytes, async (part) => {
      const CopySource = `${place.Bucket}/${key}`.split('/').map(encodeURIComponent).join('/');
      const command = new s3.UploadPartCopyCommand({ ...part, CopySource });
      return (await client.send(command, whileWanted)).CopyPartResult?.ETag;
    });
  const complete = async (): Promise<void> => {
    const MultipartUpload = { Parts: await Promise.all(sending) };
    const UploadId = (await upload) ?? undefined;
    try {
      await client.send(new s3.CompleteMultipartUploadCommand({ ...place, UploadId, MultipartUpload }));
    } catch (error) {
      // If an answer was lost, its repetition fails although the object is complete. Nothing else uses its name.
      const found = await client.send(new s3.HeadObjectCommand(place)).catch(() => null);
      if (found?.ContentLength !== sizeBytes) throw error;
    }
  };
  const finish = async (rest: Uint8Array): Promise<void> => {
    isFinishing = true;
    if (upload === null) return void (await client.send(new s3.PutObjectCommand({ ...place, Body: rest })));
    if (rest.length > 0) await sendPart(rest);
    await complete();
  };

  return {
    appendCopy: (key, partBytes) => toStoreError(copyPart(key, partBytes)),
    append: (bytes) => toStoreError(sendPart(bytes)),
    async reserve(bytes) {
      if (bytes <= unchargedBytesMax || lease !== undefined) return;
      lease = memory?.open(null);
      await lease?.chargeWhenFree(writerBytesMax, abandoned.signal);
    },
    async finish(rest) {
      await toStoreError(finish(rest));
      lease?.release();
    },
    async discard() {
      abandoned.abort();
      await Promise.allSettled(sending);
      const UploadId = await upload?.catch(() => undefined);
      if (UploadId !== undefined)
        await client.send(new s3.AbortMultipartUploadCommand({ ...place, UploadId })).catch(() => {});
      if (isFinishing) await client.send(new s3.DeleteObjectCommand(place)).catch(() => {});
      lease?.release();
    },
  };
}
