import { mkdir, stat } from 'node:fs/promises';
import path from 'node:path';

/**
 * Creates a folder and those above it that are missing, with this mode. Resolves with whether it was created; rejects with the
 * file system's error. Node's own `recursive` does not end where a file system refuses a folder as if the one above were
 * missing, as /proc does.
 */
export async function makeFolder(folder: string, mode: number): Promise<boolean> {
  try {
    await mkdir(folder, { mode });
    return true;
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code === 'EEXIST' && (await stat(folder)).isDirectory()) return false;
    const parent = path.dirname(folder);
    // One that was missing is there now, so that the next round ends.
    if (code !== 'ENOENT' || parent === folder || !(await makeFolder(parent, mode))) throw error;
    return await makeFolder(folder, mode);
  }
}
