import path from 'node:path';
import type { BlobStore } from '#libs/blobs/blob-store.ts';
import { createDiskBlobStore } from '#libs/blobs/disk-blob-store.ts';
import { createS3BlobStore } from '#libs/blobs/s3-blob-store.ts';
import { ConfigurationError } from '#libs/kernel/read-env.ts';
import type { MemoryBudget } from '#libs/kernel/sharing/memory-budget.ts';
import type { RowDisk } from '#libs/request-log/write/row-file.ts';
import type { PlatformConfig } from './platform.ts';

type BlobConfig = Pick<
  PlatformConfig,
  'SLUICE_BLOBS' | 'SLUICE_DATA_DIR' | 'SLUICE_S3_ENDPOINT' | 'SLUICE_S3_REGION' | 'SLUICE_S3_PATH_STYLE'
>;

/** The blob folder: SLUICE_BLOBS, or `blobs` in the data directory. null if the blobs are in S3. */
export function blobFolder({ SLUICE_BLOBS: blobs, SLUICE_DATA_DIR: dataDir }: BlobConfig): string | null {
  if (blobs === undefined) return path.resolve(dataDir, 'blobs');
  return blobs.startsWith('s3:') ? null : path.resolve(blobs.slice('file:'.length));
}

/** The folder, or the URL of the bucket. */
export const blobLocation = (config: BlobConfig): string => blobFolder(config) ?? config.SLUICE_BLOBS ?? '';

/** The folder of request-log rows that wait on disk: in the blob folder, or in the data directory if there is none. */
export const rowFolder = (config: BlobConfig): string =>
  path.join(blobFolder(config) ?? path.resolve(config.SLUICE_DATA_DIR), 'request-log');

/**
 * Where request-log rows wait on disk. They are only written to the blob folder while its volume is mounted. Otherwise they
 * would be hidden once it is mounted again.
 */
export const rowDisk = (
  config: BlobConfig,
  { isAvailable }: Pick<BlobStore, 'isAvailable'>,
): Omit<RowDisk, 'bytesMax'> => ({
  folder: rowFolder(config),
  ...(blobFolder(config) === null ? {} : { isAvailable }),
});

/** Room for both result files of a batch, next to lines and answers. */
const memoryBytesMin = 67_108_864;

/**
 * Opens the blob store of the configuration. Writers of blobs in S3 are charged to `memory`. Throws ConfigurationError if
 * the bucket cannot be used, or if writers would never get the memory that they need.
 */
export async function openBlobs(
  config: BlobConfig,
  { reservedBytes = 0, memory }: { reservedBytes?: number; memory?: MemoryBudget } = {},
): Promise<BlobStore> {
  const folder = blobFolder(config);
  if (folder !== null) return await createDiskBlobStore({ folder, reservedBytes });
  if (memory !== undefined && memory.stats().bytesMax < memoryBytesMin) {
    throw new ConfigurationError(
      'SLUICE_MEMORY_MAX must be at least 64MiB if SLUICE_BLOBS is a bucket, because each file that is being written ' +
        'takes 24 MiB. Raise it, or the heap limit of the process.',
    );
  }
  const [, bucket = '', prefix = ''] = /^s3:\/\/([^/]+)\/*(.*?)\/*$/.exec(config.SLUICE_BLOBS ?? '') ?? [];
  try {
    return await createS3BlobStore({
      bucket,
      prefix: prefix === '' ? '' : `${prefix}/`,
      endpoint: config.SLUICE_S3_ENDPOINT,
      region: config.SLUICE_S3_REGION,
      pathStyle: config.SLUICE_S3_PATH_STYLE,
      memory,
    });
  } catch (error) {
    const { name, message } = ((error as Error).cause ?? error) as Error;
    throw new ConfigurationError(
      `The bucket of ${config.SLUICE_BLOBS} cannot be used: ${name}: ${message}. Check SLUICE_BLOBS, SLUICE_S3_ENDPOINT, ` +
        'SLUICE_S3_REGION, SLUICE_S3_PATH_STYLE and the AWS credentials.',
    );
  }
}
