import { readFile, rm, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { z } from 'zod';

/** Where a running `npm start` can be reached, for the commands that work beside it. Holds a password: mode 0600. */
const RuntimeFile = z.object({ pid: z.number().int(), url: z.string(), databaseUrl: z.string() });
export type RuntimeFile = z.output<typeof RuntimeFile>;

const fileOf = (dataDir: string): string => path.resolve(dataDir, 'runtime.json');

export async function writeRuntimeFile(dataDir: string, runtime: RuntimeFile): Promise<void> {
  await writeFile(fileOf(dataDir), JSON.stringify(runtime), { mode: 0o600 });
}

export async function removeRuntimeFile(dataDir: string): Promise<void> {
  await rm(fileOf(dataDir), { force: true });
}

/** What a running `npm start` of this data directory wrote; undefined when none runs. */
export async function readRuntimeFile(dataDir: string): Promise<RuntimeFile | undefined> {
  try {
    const runtime = RuntimeFile.parse(JSON.parse(await readFile(fileOf(dataDir), 'utf8')));
    process.kill(runtime.pid, 0); // throws when there is no such process
    return runtime;
  } catch {
    return undefined;
  }
}
