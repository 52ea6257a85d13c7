import { randomBytes } from 'node:crypto';
import { open, readFile, rename, rm, unlink } from 'node:fs/promises';
import { dirname, join, resolve } from 'node:path';
import { makeFolder } from '#libs/kernel/make-folder.ts';
import { assertPath, type BlobFolder } from './blob-folder.ts';
import { guardSpace, ignoreMissing, syncFolder } from './disk-blob-writer.ts';

/** Files below `folder`, which is created. `beforeWrite` can refuse a write. */
export function createDiskBlobFolder(folder: string, beforeWrite?: () => Promise<void>): BlobFolder {
  const root = resolve(folder);
  const place = (path: string): string => {
    assertPath(path);
    return join(root, path);
  };
  return {
    async write(path, bytes) {
      await beforeWrite?.();
      const finalPath = place(path);
      const partialPath = `${finalPath}.${randomBytes(8).toString('hex')}.partial`;
      await guardSpace(async () => {
        await makeDurableFolder(root, dirname(finalPath));
        const handle = await open(partialPath, 'wx', 0o600);
        try {
          await handle.writeFile(bytes);
          await handle.sync();
          await rename(partialPath, finalPath);
        } catch (error) {
          await unlink(partialPath).catch(ignoreMissing);
          throw error;
        } finally {
          await handle.close();
        }
        await syncFolder(dirname(finalPath));
      });
    },

    async read(path) {
      try {
        return await readFile(place(path));
      } catch (error) {
        ignoreMissing(error);
        return null;
      }
    },

    removeAll: (path) => rm(place(path), { recursive: true, force: true }),
  };
}

/**
 * Creates a folder and its missing parents below `root`, level by level because concurrent writes create the same ones, and
 * makes their names durable.
 */
async function makeDurableFolder(root: string, folder: string): Promise<void> {
  if (folder !== root) await makeDurableFolder(root, dirname(folder));
  if (await makeFolder(folder, 0o700)) await syncFolder(dirname(folder));
}
