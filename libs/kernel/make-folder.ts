import { mkdir, stat } from 'node:fs/promises';
import path from 'node:path';

/**
 * Creates a folder and its missing parents, with this mode. Resolves with whether it was created; rejects with the file
 * system's error. Node's own `recursive` does not end if a file system refuses a folder with the error for a missing
 * parent, as /proc does.
 */
export async function makeFolder(folder: string, mode: number): Promise<boolean> {
  try {
    return await makeOne(folder, mode);
  } catch (error) {
    const parent = path.dirname(folder);
    if ((error as NodeJS.ErrnoException).code !== 'ENOENT' || parent === folder) throw error;
    // A concurrent call can create the parent first, so the folder is tried again in either case, but only once.
    await makeFolder(parent, mode);
    return await makeOne(folder, mode);
  }
}

async function makeOne(folder: string, mode: number): Promise<boolean> {
  try {
    await mkdir(folder, { mode });
    return true;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'EEXIST' && (await stat(folder)).isDirectory()) return false;
    throw error;
  }
}
