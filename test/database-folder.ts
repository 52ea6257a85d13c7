import { readFileSync, statfsSync } from 'node:fs';
import { chmod, mkdtemp } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';

const memoryFolder = '/dev/shm';
/** More than the servers of a run write; the rest is for the processes. */
const folderBytesMin = 2 * 1_073_741_824;
const memoryBytesMin = 4 * 1_073_741_824;

/**
 * Returns a new folder for a temporary database, which the caller must remove. It is in memory if there is plenty,
 * because a test database has hundreds of small files, which take some file systems half a second of processor time.
 * Any user can pass through it, whatever the umask, because for root the server runs as another user. `forPrograms`:
 * programs in it can be executed.
 */
export async function makeDatabaseFolder(prefix: string, { forPrograms = false } = {}): Promise<string> {
  const parent = hasMemory() && (!forPrograms || runsPrograms()) ? memoryFolder : tmpdir();
  const folder = await mkdtemp(path.join(parent, prefix));
  await chmod(folder, 0o711);
  return folder;
}

function hasMemory(): boolean {
  try {
    const { bavail, bsize } = statfsSync(memoryFolder);
    return bavail * bsize >= folderBytesMin && process.availableMemory() >= memoryBytesMin;
  } catch {
    return false; // not every system has the folder
  }
}

/** Docker mounts it with `noexec`. */
function runsPrograms(): boolean {
  const mounts = readFileSync('/proc/self/mounts', 'utf8').split('\n');
  return !mounts.some((mount) => mount.includes(` ${memoryFolder} `) && /[ ,]noexec[ ,]/.test(mount));
}
