import { randomBytes } from 'node:crypto';
import { open, rename, rm } from 'node:fs/promises';
import path from 'node:path';

/** Replaces a file so that a reader sees the old or the new text, never half of it, also after a power failure. */
export async function writeWhole(file: string, text: string, mode: number): Promise<void> {
  const aside = `${file}.${randomBytes(6).toString('hex')}`;
  try {
    const handle = await open(aside, 'wx', mode);
    try {
      await handle.writeFile(text);
      await handle.sync();
    } finally {
      await handle.close();
    }
    await rename(aside, file);
  } catch (error) {
    await rm(aside, { force: true });
    throw error;
  }
  const folder = await open(path.dirname(file), 'r');
  try {
    await folder.sync();
  } finally {
    await folder.close();
  }
}
