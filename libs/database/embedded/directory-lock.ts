import { DatabaseSync } from 'node:sqlite';
import { sleep } from '#libs/kernel/sleep.ts';

export type DirectoryLock = { release(): void };

/**
 * Takes the lock file exclusively for this process, or returns undefined if another process (or another holder in this
 * one) still has it after `waitMs`. Node has no flock, so SQLite takes the operating-system lock, on an empty database
 * file. The kernel releases it when the process dies, however it dies, and it also works between containers that share
 * the folder, unlike process IDs.
 */
export async function acquireDirectoryLock(file: string, waitMs: number): Promise<DirectoryLock | undefined> {
  const deadline = Date.now() + waitMs;
  for (;;) {
    const database = new DatabaseSync(file);
    try {
      database.exec('pragma journal_mode = memory; begin exclusive'); // This avoids a journal file next to it.
      return {
        release: () => {
          if (database.isOpen) database.close();
        },
      };
    } catch (error) {
      database.close();
      if (!(error instanceof Error && /database is (locked|busy)/.test(error.message))) throw error;
    }
    if (Date.now() >= deadline) return undefined;
    await sleep(100);
  }
}
