import { randomBytes } from 'node:crypto';
import type { Clock } from '#libs/kernel/clock.ts';

export type StoredFile = {
  id: string;
  bytes: Uint8Array;
  createdAtMs: number;
  expiresAtMs: number | undefined;
  filename: string;
  purpose: string;
};

// The maximum that a process stores. Beyond this, the oldest files are removed.
const filesMax = 1_000;
const bytesMax = 268_435_456;

export type FileStore = ReturnType<typeof createFileStore>;

/** Files of one simulator, in memory. */
export function createFileStore(clock: Clock) {
  const files = new Map<string, StoredFile>();
  let sizeBytes = 0;
  const remove = (id: string): boolean => {
    sizeBytes -= files.get(id)?.bytes.length ?? 0;
    return files.delete(id);
  };
  return {
    add({
      expiresAfterMs,
      ...given
    }: Pick<StoredFile, 'bytes' | 'filename' | 'purpose'> & { expiresAfterMs?: number }) {
      const createdAtMs = clock.now();
      const expiresAtMs = expiresAfterMs === undefined ? undefined : createdAtMs + expiresAfterMs;
      const file: StoredFile = { ...given, id: `file-${randomBytes(12).toString('hex')}`, createdAtMs, expiresAtMs };
      files.set(file.id, file);
      sizeBytes += file.bytes.length;
      for (const { id } of files.values()) {
        if (files.size <= filesMax && sizeBytes <= bytesMax) break;
        if (id !== file.id) remove(id);
      }
      return file;
    },
    find(id: string): StoredFile | undefined {
      const file = files.get(id);
      if (file?.expiresAtMs === undefined || file.expiresAtMs > clock.now()) return file;
      remove(id);
      return undefined;
    },
    remove,
    /** Sorted by age, oldest first. */
    list: (): StoredFile[] => [...files.values()],
  };
}
