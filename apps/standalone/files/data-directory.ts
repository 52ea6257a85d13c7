import { access, chmod, constants, readFile } from 'node:fs/promises';
import path from 'node:path';
import { z } from 'zod';
import { acquireDirectoryLock, type DirectoryLock } from '#libs/database/embedded/directory-lock.ts';
import { makeFolder } from '#libs/kernel/make-folder.ts';
import { StartError } from '../start-error.ts';
import { writeWhole } from './write-whole.ts';

// <data directory>/
//   postgres/        the embedded database (libs/database/embedded/cluster.ts)
//   blobs/           input and result files
//   logs/            output of the processes
//   master.key       0600, encrypts the provider secrets in the database; without it they are lost
//   admin.key        0600, the first gateway key
//   standalone.json  settings that the next start reuses
//   standalone.lock  held while npm start runs on this directory
//   runtime.json     0600, the addresses of a running npm start

const lockWaitMs = 1_000; // The wait for another start that is just stopping.

/** Creates the directory if needed and locks it for this process. Throws StartError if that is not possible. */
export async function lockDataDirectory(dataDir: string): Promise<DirectoryLock> {
  try {
    const isCreated = await makeFolder(dataDir, 0o700);
    // If this process runs as root, the embedded Postgres runs as another user, who needs to reach its own folder.
    if (isCreated && process.getuid?.() === 0) await chmod(dataDir, 0o711);
    await access(dataDir, constants.W_OK | constants.X_OK);
  } catch (error) {
    throw new StartError(
      `The data directory ${dataDir} is not writable (${codeOf(error)}). Choose another SLUICE_DATA_DIR.`,
      { cause: error },
    );
  }
  const lock = await acquireDirectoryLock(lockFilePath(dataDir), lockWaitMs).catch((error: unknown) => {
    throw new StartError(
      `The data directory ${dataDir} could not be locked (${codeOf(error)}). Choose another SLUICE_DATA_DIR.`,
      { cause: error },
    );
  });
  if (lock !== undefined) return lock;
  throw new StartError(
    `Another Sluice is running in the data directory ${dataDir}. Stop it, or choose another SLUICE_DATA_DIR.`,
  );
}

export const lockFilePath = (dataDir: string): string => path.join(dataDir, 'standalone.lock');

const codeOf = (error: unknown): string =>
  error instanceof Error && 'code' in error ? String(error.code) : error instanceof Error ? error.message : 'unknown';

/** The state that one start stores for the next. An unreadable file counts as absent. */
const Remembered = z.object({ simulatorPort: z.int().min(1).max(65_535).optional() });
export type Remembered = z.output<typeof Remembered>;

export async function readRemembered(dataDir: string): Promise<Remembered> {
  try {
    return Remembered.parse(JSON.parse(await readFile(path.join(dataDir, 'standalone.json'), 'utf8')));
  } catch {
    return {};
  }
}

export async function writeRemembered(dataDir: string, remembered: Remembered): Promise<void> {
  await writeWhole(path.join(dataDir, 'standalone.json'), JSON.stringify(remembered), 0o600);
}
