import { GatewayError } from '#libs/kernel/errors.ts';
import { storageUnavailable } from './blob-errors.ts';

export const isNamed = (error: unknown, ...names: string[]): boolean =>
  error instanceof Error && names.includes(error.name);

/** Whether an object does not exist. A missing bucket is a different error, except for HEAD requests. */
export const isMissing = (error: unknown): boolean => isNamed(error, 'NoSuchKey', 'NotFound');

/** From Ceph, MinIO and SeaweedFS, and the status of WebDAV that others use. AWS has no such error. */
const fullNames = ['QuotaExceeded', 'XMinioStorageFull', 'XMinioAdminBucketQuotaExceeded', 'InsufficientStorage'];

/** Turns the failure of a request into storage_full or unavailable. The SDK has already repeated the request. */
export async function toStoreError<Result>(request: Promise<Result>): Promise<Result> {
  try {
    return await request;
  } catch (error) {
    if (error instanceof GatewayError) throw error;
    if (!isNamed(error, ...fullNames)) throw storageUnavailable(error);
    const message = 'The file storage is full. Nothing was stored. Free some space, or try again later.';
    throw new GatewayError('storage_full', 'storage_full', message, { retryAfterMs: 1_000, cause: error });
  }
}
