import { readFile, rm } from 'node:fs/promises';
import path from 'node:path';
import { z } from 'zod';
import { takeDirectoryLock } from '#libs/database/embedded/directory-lock.ts';
import { lockFileOf } from './data-directory.ts';
import { writeWhole } from './write-whole.ts';

/** Where a running `npm start` can be reached, for the commands that work beside it. Holds a password: mode 0600. */
const RuntimeFile = z.object({ pid: z.number().int(), url: z.string(), databaseUrl: z.string() });
export type RuntimeFile = z.output<typeof RuntimeFile>;

const fileOf = (dataDir: string): string => path.resolve(dataDir, 'runtime.json');

export async function writeRuntimeFile(dataDir: string, runtime: RuntimeFile): Promise<void> {
  await writeWhole(fileOf(dataDir), JSON.stringify(runtime), 0o600);
}

export async function removeRuntimeFile(dataDir: string): Promise<void> {
  await rm(fileOf(dataDir), { force: true });
}

/** True when a `npm start` on this data directory was killed: its children may need a moment to notice. */
export async function hasRuntimeFile(dataDir: string): Promise<boolean> {
  return (await readFile(fileOf(dataDir)).catch(() => undefined)) !== undefined;
}

/**
 * What a running `npm start` of this data directory wrote; undefined when none runs. Whether one runs is told by its
 * lock, not by the process id: after a reboot, or in another container, that number is somebody else's.
 */
export async function readRuntimeFile(dataDir: string): Promise<RuntimeFile | undefined> {
  try {
    const runtime = RuntimeFile.parse(JSON.parse(await readFile(fileOf(dataDir), 'utf8')));
    const lock = await takeDirectoryLock(lockFileOf(path.resolve(dataDir)), 0);
    lock?.release();
    return lock === undefined ? runtime : undefined;
  } catch {
    return undefined;
  }
}
