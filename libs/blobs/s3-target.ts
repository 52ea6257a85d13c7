import type { CompletedPart, S3Client } from '@aws-sdk/client-s3';
import type { BlobTarget } from './blob-writer.ts';
import { toStoreError } from './s3-errors.ts';

/** The SDK takes about 80 ms and 16 MiB to load, so only a process that uses S3 loads it. */
export type S3Module = typeof import('@aws-sdk/client-s3');

/** A writer holds at most three of these: one that fills and two in flight. */
export const partBytes = 8_388_608;
/** The limit of S3. Blobs can have 78 GiB. */
export const partsMax = 10_000;

/** One object: a single request if it is smaller than a part, and otherwise a multipart upload. */
export function createS3Target(options: {
  s3: S3Module;
  client: S3Client;
  place: { Bucket: string; Key: string };
}): BlobTarget {
  const { s3, client, place } = options;
  const abandoned = new AbortController();
  const sending: Promise<CompletedPart>[] = [];
  let upload: Promise<string | undefined> | null = null;
  let sizeBytes = 0;
  let isFinishing = false;

  const begin = async (): Promise<string | undefined> =>
    (await client.send(new s3.CreateMultipartUploadCommand(place))).UploadId;
  const sendPart = async (bytes: Uint8Array): Promise<void> => {
    const UploadId = await (upload ??= begin());
    const PartNumber = sending.length + 1;
    const command = new s3.UploadPartCommand({ ...place, UploadId, PartNumber, Body: bytes });
    const part = client.send(command, { abortSignal: abandoned.signal }).then(({ ETag }) => ({ ETag, PartNumber }));
    part.catch(() => {}); // The next append, or finish, awaits it.
    sending.push(part);
    sizeBytes += bytes.length;
    await sending.at(-2);
  };
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
    append: (bytes) => toStoreError(sendPart(bytes)),
    finish: (rest) => toStoreError(finish(rest)),
    async discard() {
      abandoned.abort();
      await Promise.allSettled(sending);
      const UploadId = await upload?.catch(() => undefined);
      if (UploadId !== undefined)
        await client.send(new s3.AbortMultipartUploadCommand({ ...place, UploadId })).catch(() => {});
      if (isFinishing) await client.send(new s3.DeleteObjectCommand(place)).catch(() => {});
    },
  };
}
