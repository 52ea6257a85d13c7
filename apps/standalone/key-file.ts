import { readFile } from 'node:fs/promises';
import { StartError } from './start-error.ts';
import { writeWhole } from './write-whole.ts';

/** The secret in a file; undefined when there is none. Throws StartError when it is empty: a key is not replaced silently. */
export async function readKeyFile(file: string): Promise<string | undefined> {
  const text = await readFile(file, 'utf8').catch((error: NodeJS.ErrnoException) => {
    if (error.code === 'ENOENT') return undefined;
    throw new StartError(`${file} cannot be read (${error.code}).`, { cause: error });
  });
  if (text?.trim() === '') throw new StartError(`${file} is empty. Restore it from a backup, or delete it.`);
  return text?.trim();
}

/** Keeps a secret in a file that only its owner may read; it is on the disk before anything can depend on it. */
export async function writeKeyFile(file: string, secret: string): Promise<void> {
  await writeWhole(file, `${secret}\n`, 0o600);
}
