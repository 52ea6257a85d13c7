import { DatabaseSync } from 'node:sqlite';
import { sleep } from '#libs/kernel/sleep.ts';

export type DirectoryLock = { release(): void };

/**
 * Takes the lock file for this process alone, or returns undefined when another process (or another holder in this one)
 * still has it after `waitMs`. The lock is an operating-system lock that SQLite takes on an empty database file, Node
 * having no flock of its own: the kernel gives it back when the process dies, however it dies, and it also holds
 * between containers that share the folder, which process ids do not.
 */
export async function takeDirectoryLock(file: string, waitMs: number): Promise<DirectoryLock | undefined> {
  const deadline = Date.now() + waitMs;
  for (;;) {
    const database = new DatabaseSync(file);
    try {
      database.exec('pragma journal_mode = memory; begin exclusive'); // no file beside it
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
