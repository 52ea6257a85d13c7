import { readFile } from 'node:fs/promises';
import { StartError } from '../start-error.ts';
import { writeWhole } from './write-whole.ts';

/** The secret in a file; undefined if the file is absent. Throws StartError if it is empty, instead of making a new key. */
export async function readKeyFile(file: string): Promise<string | undefined> {
  const text = await readFile(file, 'utf8').catch((error: NodeJS.ErrnoException) => {
    if (error.code === 'ENOENT') return undefined;
    throw new StartError(`${file} is not readable (${error.code}).`, { cause: error });
  });
  if (text?.trim() === '') throw new StartError(`${file} is empty. Restore it from a backup, or delete it.`);
  return text?.trim();
}

/** Stores a secret in a file that only its owner can read. Returns when it is on disk. */
export async function writeKeyFile(file: string, secret: string): Promise<void> {
  await writeWhole(file, `${secret}\n`, 0o600);
}
