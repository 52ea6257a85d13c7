import { readFileSync, statfsSync } from 'node:fs';
import { chmod, mkdtemp } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';

const memoryFolder = '/dev/shm';
/** What the servers of a run write at most lies far below; what is left is for the processes. */
const folderBytesMin = 2 * 1_073_741_824;
const memoryBytesMin = 4 * 1_073_741_824;

/**
 * A new folder for a throw-away database, to be removed by the caller: in memory where there is plenty, because a test
 * database has hundreds of small files, which some file systems take half a second of processor time to make. Any user
 * can pass through it, whatever the umask is: as root the server runs as another user. `forPrograms`: what is put there
 * can be run.
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
