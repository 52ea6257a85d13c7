import { access, chmod, constants, mkdir, readFile } from 'node:fs/promises';
import path from 'node:path';
import { z } from 'zod';
import { takeDirectoryLock, type DirectoryLock } from '#libs/database/embedded/directory-lock.ts';
import { StartError } from './start-error.ts';
import { writeWhole } from './write-whole.ts';

// <data directory>/
//   postgres/        the embedded database (libs/database/embedded/cluster.ts)
//   blobs/           uploaded and written files
//   logs/            what the processes wrote
//   master.key       0600, wraps the provider secrets in the database: without it they are lost
//   admin.key        0600, the first gateway key, for people to look up
//   standalone.json  what a restart keeps
//   standalone.lock  held while npm start runs on this directory
//   runtime.json     0600, where a running npm start can be reached

const lockWaitMs = 1_000; // one that has just stopped

/** Makes the directory where it is absent and takes it for this process. Throws StartError when that cannot be. */
export async function takeDataDirectory(dataDir: string): Promise<DirectoryLock> {
  try {
    const created = await mkdir(dataDir, { recursive: true, mode: 0o700 });
    // As root the embedded Postgres runs as another user, who must pass through here to its own folder.
    if (created !== undefined && process.getuid?.() === 0) await chmod(dataDir, 0o711);
    await access(dataDir, constants.W_OK | constants.X_OK);
  } catch (error) {
    throw new StartError(
      `The data directory ${dataDir} cannot be written (${codeOf(error)}). Choose another SLUICE_DATA_DIR.`,
      { cause: error },
    );
  }
  const lock = await takeDirectoryLock(lockFileOf(dataDir), lockWaitMs).catch((error: unknown) => {
    throw new StartError(`The data directory ${dataDir} cannot be locked (${codeOf(error)}).`, { cause: error });
  });
  if (lock !== undefined) return lock;
  throw new StartError(
    `Another Sluice runs on the data directory ${dataDir}. Stop it, or choose another SLUICE_DATA_DIR.`,
  );
}

export const lockFileOf = (dataDir: string): string => path.join(dataDir, 'standalone.lock');

const codeOf = (error: unknown): string =>
  error instanceof Error && 'code' in error ? String(error.code) : error instanceof Error ? error.message : 'unknown';

/** What one start leaves for the next; a file that cannot be read counts as none. */
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
