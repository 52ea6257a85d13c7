import { mkdir, stat } from 'node:fs/promises';
import path from 'node:path';

/**
 * Creates a folder and its missing parents, with this mode. Resolves with whether it was created; rejects with the file
 * system's error. Node's own `recursive` does not end if a file system refuses a folder with the error for a missing
 * parent, as /proc does.
 */
export async function makeFolder(folder: string, mode: number, hasParent = false): Promise<boolean> {
  try {
    await mkdir(folder, { mode });
    return true;
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code === 'EEXIST' && (await stat(folder)).isDirectory()) return false;
    const parent = path.dirname(folder);
    if (code !== 'ENOENT' || parent === folder || hasParent) throw error;
    // Somebody else can have created the parent meanwhile.
    await makeFolder(parent, mode);
    return await makeFolder(folder, mode, true);
  }
}
