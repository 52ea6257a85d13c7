import { readFile, rm } from 'node:fs/promises';
import path from 'node:path';
import { z } from 'zod';
import { acquireDirectoryLock } from '#libs/database/embedded/directory-lock.ts';
import { lockFilePath } from './data-directory.ts';
import { writeWhole } from './write-whole.ts';

/**
 * The addresses of a running `npm start`, for commands that run at the same time. It contains a password, so its mode
 * is 0600.
 */
const RuntimeFile = z.object({ pid: z.number().int(), url: z.string(), databaseUrl: z.string() });
export type RuntimeFile = z.output<typeof RuntimeFile>;

const fileOf = (dataDir: string): string => path.resolve(dataDir, 'runtime.json');

export async function writeRuntimeFile(dataDir: string, runtime: RuntimeFile): Promise<void> {
  await writeWhole(fileOf(dataDir), JSON.stringify(runtime), 0o600);
}

export async function removeRuntimeFile(dataDir: string): Promise<void> {
  await rm(fileOf(dataDir), { force: true });
}

/** Whether an `npm start` with this data directory was killed. Its child processes can still be running for a moment. */
export async function hasRuntimeFile(dataDir: string): Promise<boolean> {
  return (await readFile(fileOf(dataDir)).catch(() => undefined)) !== undefined;
}

/**
 * The addresses of the `npm start` that is running with this data directory; undefined if none is. The lock decides whether
 * one is running, not the process ID, which can belong to another process after a reboot or in another container.
 */
export async function readRuntimeFile(dataDir: string): Promise<RuntimeFile | undefined> {
  try {
    const runtime = RuntimeFile.parse(JSON.parse(await readFile(fileOf(dataDir), 'utf8')));
    const lock = await acquireDirectoryLock(lockFilePath(path.resolve(dataDir)), 0);
    lock?.release();
    return lock === undefined ? runtime : undefined;
  } catch {
    return undefined;
  }
}
