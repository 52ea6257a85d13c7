import type { S3Client as Client } from '@aws-sdk/client-s3';
import { assertPath, type BlobFolder } from './blob-folder.ts';
import { isMissing, toStoreError } from './s3-errors.ts';
import type { S3Module } from './s3-target.ts';

/** Files as objects below `prefix`, which ends with a slash. */
export function createS3BlobFolder(
  s3: S3Module,
  client: Client,
  { bucket: Bucket, prefix }: { bucket: string; prefix: string },
): BlobFolder {
  const place = (path: string) => {
    assertPath(path);
    return { Bucket, Key: prefix + path };
  };
  const read = async (object: { Bucket: string; Key: string }): Promise<Buffer | null> => {
    try {
      const { Body } = await client.send(new s3.GetObjectCommand(object));
      return Buffer.from((await Body?.transformToByteArray()) ?? []);
    } catch (error) {
      if (isMissing(error)) return null;
      throw error;
    }
  };
  const removeAll = async (Prefix: string): Promise<void> => {
    for (;;) {
      const { Contents: objects = [] } = await client.send(new s3.ListObjectsV2Command({ Bucket, Prefix }));
      if (objects.length === 0) return;
      const Delete = { Objects: objects.map(({ Key }) => ({ Key })), Quiet: true };
      const { Errors: errors = [] } = await client.send(new s3.DeleteObjectsCommand({ Bucket, Delete }));
      if (errors[0] !== undefined) throw new Error(`${errors.length} objects were not deleted: ${errors[0].Message}`);
    }
  };
  return {
    write: async (path, Body) =>
      void (await toStoreError(client.send(new s3.PutObjectCommand({ ...place(path), Body })))),
    read: async (path) => await toStoreError(read(place(path))),
    removeAll: async (path) => await toStoreError(removeAll(`${place(path).Key}/`)),
  };
}
