import { readdir, readFile } from 'node:fs/promises';
import path from 'node:path';

/**
 * The files below a folder that a running platform writes to, with their bytes as Latin-1 text.
 *
 * @returns `name` is the path from the folder. A file that is renamed or removed while this reads is left out.
 */
export async function readFilesBelow(folder: string): Promise<{ name: string; text: string }[]> {
  const files: { name: string; text: string }[] = [];
  for (const entry of await readdir(folder, { recursive: true, withFileTypes: true })) {
    if (!entry.isFile()) continue;
    const file = path.join(entry.parentPath, entry.name);
    try {
      files.push({ name: path.relative(folder, file), text: await readFile(file, 'latin1') });
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'ENOENT') throw error;
    }
  }
  return files;
}
