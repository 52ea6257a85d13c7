import { randomBytes } from 'node:crypto';
import { link, open, opendir, readFile, stat, statfs, unlink, type FileHandle } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { Readable } from 'node:stream';
import { GatewayError } from '#libs/kernel/errors.ts';
import { blobNotFound, storageUnavailable } from './blob-errors.ts';
import { openIdentity, type BlobEntry, type BlobStore } from './blob-store.ts';
import { assertBlobName, newBlobName, putBlob, readJoined } from './blob-writer.ts';
import { makeFolder } from '#libs/kernel/make-folder.ts';
import { createDiskBlobFolder } from './disk-blob-folder.ts';
import { guardSpace, hasCode, ignoreMissing, openDiskBlobWriter, syncFolder } from './disk-blob-writer.ts';
import { sweepBlobs } from './sweep-blobs.ts';

const partialSuffix = '.partial';
const idFile = 'store-id';
const readChunkBytes = 262_144;

/**
 * Blobs as files below `folder`, in two levels of 256 folders (a million blobs make 16 files per folder). Several
 * processes can share the folder. A missing folder is created with its ID. Its methods throw unavailable
 * (`storage_unavailable`) while the folder is not the one that was opened.
 */
export async function createDiskBlobStore(options: {
  folder: string;
  /** Free space that writes with `leavesReserve` must leave. Default: none. */
  reservedBytes?: number;
}): Promise<BlobStore> {
  const { folder: root, reservedBytes = 0 } = options;
  const identity = await openIdentity({
    read: () => readStoreId(root),
    create: () => guardSpace(() => createStoreId(root)),
  });

  const pathOf = (blob: string): string => {
    assertBlobName(blob);
    return join(root, blob.slice(0, 2), blob.slice(2, 4), blob);
  };
  // A volume can be unmounted or replaced while processes run. Its blobs are not lost then, and nothing must be written
  // into the folder below it.
  const requireStore = async (cause?: unknown): Promise<void> => {
    if (!(await identity.isAvailable())) throw storageUnavailable(cause);
  };
  const openBlob = async (blob: string): Promise<FileHandle> => {
    try {
      return await open(pathOf(blob), 'r');
    } catch (error) {
      if (!hasCode(error) || error.code !== 'ENOENT') throw error;
      await requireStore(error);
      throw blobNotFound(error);
    }
  };

  const store: BlobStore = {
    ...identity,

    async openWriter({ sizeBytesMax = Number.MAX_SAFE_INTEGER } = {}) {
      const blob = newBlobName();
      const finalPath = pathOf(blob);
      const folder = dirname(finalPath);
      await store.storeId();
      await requireStore();
      await guardSpace(() => makeFolders(root, folder));
      return openDiskBlobWriter({ blob, partialPath: finalPath + partialSuffix, finalPath, folder, sizeBytesMax });
    },

    put(source, options = {}) {
      return putBlob(store, source, options, leaveFree(root, options.leavesReserve === true ? reservedBytes : 0));
    },

    join: (parts, { onBytes, ...options } = {}) => store.put(readJoined(store, parts, onBytes), options),

    async read(blob, { offset = 0, length } = {}) {
      if (length === 0) return Readable.from([]);
      const handle = await openBlob(blob);
      const end = length === undefined ? Number.MAX_SAFE_INTEGER : offset + length - 1;
      return handle.createReadStream({ start: offset, end, highWaterMark: readChunkBytes });
    },

    async readRange(blob, offset, length) {
      const handle = await openBlob(blob);
      try {
        return await readExactly(handle, offset, length);
      } finally {
        await handle.close();
      }
    },

    remove: (blob) => unlink(pathOf(blob)).catch(ignoreMissing),

    async sizeOf(blob) {
      const found = await describe(pathOf(blob));
      if (found === null) await requireStore();
      return found?.sizeBytes ?? null;
    },

    async *list() {
      for await (const path of files(root)) {
        if (path.endsWith(partialSuffix)) continue;
        const entry = await describe(path);
        if (entry !== null) yield entry;
      }
    },

    async sweep({ olderThanMs, findReferenced }) {
      await requireStore();
      const beforeMs = (await timeOf(root)) - olderThanMs;
      const partialsRemoved = await sweepPartials(root, beforeMs);
      const removeAll = async (blobs: readonly string[]): Promise<void> => {
        for (const blob of blobs) await store.remove(blob);
      };
      const blobsRemoved = await sweepBlobs({ list: () => store.list(), removeAll }, { beforeMs, findReferenced });
      return { blobsRemoved, partialsRemoved };
    },

    folder: (name) => createDiskBlobFolder(join(root, name), requireStore),
  };
  return store;
}

/** The maximum of written bytes before free space is checked again. */
const askedEveryBytes = 16 * 1_048_576;

/** Checks before chunks are written that some space stays free. */
function leaveFree(folder: string, reservedBytes: number): (chunk: Uint8Array) => Promise<void> {
  let unaskedBytes = askedEveryBytes;
  return async (chunk) => {
    if (reservedBytes > 0 && unaskedBytes >= askedEveryBytes) {
      await assertFree(folder, reservedBytes);
      unaskedBytes = 0;
    }
    unaskedBytes += chunk.length;
  };
}

/** Throws storage_full while some space is left, because the rest is reserved for batches that are already running. */
async function assertFree(folder: string, reservedBytes: number): Promise<void> {
  const { bavail, bsize } = await statfs(folder);
  if (bavail * bsize >= reservedBytes) return;
  const message =
    "The server's remaining disk space is reserved for results. Nothing was stored. Free some space, or try again later.";
  throw new GatewayError('storage_full', 'storage_full', message);
}

async function readExactly(handle: FileHandle, offset: number, length: number): Promise<Buffer> {
  const bytes = Buffer.allocUnsafe(length);
  for (let filled = 0; filled < length;) {
    const { bytesRead } = await handle.read(bytes, filled, length - filled, offset + filled);
    if (bytesRead === 0) throw new Error(`the blob ends at byte ${offset + filled}, before ${offset + length}`);
    filled += bytesRead;
  }
  return bytes;
}

/**
 * The current time of the file system, for the age of its files. A process whose own clock is ahead would otherwise
 * sweep files that were just uploaded.
 */
async function timeOf(root: string): Promise<number> {
  const path = join(root, `time.${randomBytes(8).toString('hex')}${partialSuffix}`);
  const handle = await open(path, 'wx', 0o600);
  try {
    await handle.write('\n');
    return (await handle.stat()).mtimeMs;
  } finally {
    await handle.close();
    await unlink(path).catch(ignoreMissing);
  }
}

/** Creates both levels of folders and makes the new names durable, from the root down. */
async function makeFolders(root: string, folder: string): Promise<void> {
  if (!(await makeFolder(folder, 0o700))) return;
  await syncFolder(dirname(folder));
  await syncFolder(root);
}

/** Paths of all files two levels down. Folders and files can disappear in the meantime. */
async function* files(root: string): AsyncGenerator<string> {
  for await (const first of entries(root)) {
    if (!first.isFolder || !/^[0-9a-f]{2}$/.test(first.name)) continue;
    for await (const second of entries(join(root, first.name))) {
      if (!second.isFolder) continue;
      const folder = join(root, first.name, second.name);
      for await (const file of entries(folder)) if (!file.isFolder) yield join(folder, file.name);
    }
  }
}

async function* entries(folder: string): AsyncGenerator<{ name: string; isFolder: boolean }> {
  for await (const entry of await opendir(folder)) yield { name: entry.name, isFolder: entry.isDirectory() };
}

async function describe(path: string): Promise<BlobEntry | null> {
  try {
    const { size, mtimeMs } = await stat(path);
    return { blob: path.slice(path.lastIndexOf('/') + 1), sizeBytes: size, modifiedMs: mtimeMs };
  } catch (error) {
    ignoreMissing(error); // It was removed since it was listed.
    return null;
  }
}

async function readStoreId(root: string): Promise<string | null> {
  try {
    return (await readFile(join(root, idFile), 'utf8')).trim();
  } catch (error) {
    ignoreMissing(error);
    return null;
  }
}

/** Creates the folder with an ID. If several processes start together, one wins and all read the same ID. */
async function createStoreId(root: string): Promise<string> {
  await makeFolder(root, 0o700);
  const path = join(root, idFile);
  const partialPath = `${path}.${randomBytes(8).toString('hex')}${partialSuffix}`;
  const handle = await open(partialPath, 'wx', 0o600);
  try {
    await handle.writeFile(`store_${randomBytes(16).toString('hex')}\n`);
    await handle.sync();
    // Uses link instead of rename, because link fails if another process was first.
    await link(partialPath, path);
    await syncFolder(root);
  } catch (error) {
    if (!hasCode(error) || error.code !== 'EEXIST') throw error;
  } finally {
    await handle.close();
    await unlink(partialPath).catch(ignoreMissing);
  }
  return (await readFile(path, 'utf8')).trim();
}

/** Removes what writers left behind before this time, and returns the number of files. */
async function sweepPartials(root: string, beforeMs: number): Promise<number> {
  let removed = 0;
  for await (const path of files(root)) {
    if (!path.endsWith(partialSuffix)) continue;
    const entry = await describe(path);
    if (entry === null || entry.modifiedMs > beforeMs) continue;
    await unlink(path).catch(ignoreMissing);
    removed += 1;
  }
  return removed;
}
