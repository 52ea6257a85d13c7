import { open, rename, unlink, type FileHandle } from 'node:fs/promises';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { BlobWriter } from './blob-store.ts';
import { createBlobWriter, type BlobTarget } from './blob-writer.ts';

// Small writes (lines of an output file) are collected, for one system call per 256 KiB.
const flushBytes = 262_144;

/**
 * Writes one blob: to `partialPath`, then fsync, rename to `finalPath` and fsync of the folder. After a crash the blob is
 * either complete or absent.
 */
export async function openDiskBlobWriter(target: {
  blob: string;
  partialPath: string;
  finalPath: string;
  folder: string;
  sizeBytesMax: number;
}): Promise<BlobWriter> {
  const { blob, partialPath, finalPath, folder, sizeBytesMax } = target;
  const handle = await guardSpace(() => open(partialPath, 'wx', 0o600));
  const onDisk: BlobTarget = {
    append: (bytes) => guardSpace(() => writeAll(handle, bytes)),
    finish: (rest) =>
      guardSpace(async () => {
        await writeAll(handle, rest);
        await handle.sync();
        await handle.close();
        await rename(partialPath, finalPath);
        await syncFolder(folder);
      }),
    async discard() {
      await handle.close().catch(() => {}); // An error of close would hide the original one.
      await unlink(partialPath).catch(ignoreMissing);
      await unlink(finalPath).catch(ignoreMissing); // It only exists if the fsync of the folder failed.
    },
  };
  return createBlobWriter(blob, onDisk, { sizeBytesMax, flushBytes });
}

async function writeAll(handle: FileHandle, bytes: Uint8Array): Promise<void> {
  // A full disk accepts a part of the write, and fails only at the next one.
  for (let offset = 0; offset < bytes.length;) {
    const { bytesWritten } = await handle.write(bytes, offset, bytes.length - offset);
    offset += bytesWritten;
  }
}

/** Makes the names in a folder durable. A rename without this can be lost in a power failure. */
export async function syncFolder(folder: string): Promise<void> {
  const handle = await open(folder, 'r');
  try {
    await handle.sync();
  } finally {
    await handle.close();
  }
}

const fullCodes = new Set(['ENOSPC', 'EDQUOT', 'EFBIG']);

/** Runs a file operation; a full disk, quota or file-size limit becomes storage_full. */
export async function guardSpace<Result>(action: () => Promise<Result>): Promise<Result> {
  try {
    return await action();
  } catch (error) {
    if (!hasCode(error) || !fullCodes.has(error.code)) throw error;
    const message = 'The disk of the server is full. Nothing was stored. Free some space, or try again later.';
    throw new GatewayError('storage_full', 'storage_full', message, { cause: error });
  }
}

export function ignoreMissing(error: unknown): void {
  if (!hasCode(error) || error.code !== 'ENOENT') throw error;
}

export function hasCode(error: unknown): error is Error & { code: string } {
  return error instanceof Error && 'code' in error && typeof error.code === 'string';
}
