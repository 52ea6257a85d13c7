import { execFile, spawn } from 'node:child_process';
import { readdirSync, readFileSync } from 'node:fs';
import { readFile, rm, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import pg from 'pg';
import { pino, type Logger } from 'pino';
import { afterAll, onTestFinished } from 'vitest';
import {
  startEmbeddedPostgres,
  type EmbeddedPostgres,
  type EmbeddedPostgresOptions,
} from '#libs/database/embedded/start-embedded-postgres.ts';
import { compileCache } from '#test/compile-cache.ts';
import { makeDatabaseFolder } from '#test/database-folder.ts';

export const isRoot = process.getuid?.() === 0;

/** An ordinary user of every Linux system, whom root can play. */
export const nobody = { uid: 65_534, gid: 65_534 };

const prefix = 'sluice-embedded-';
const silent: Logger = pino({ level: 'silent' });

/** A temporary folder, removed after the test. Any user can pass through it, whatever the umask is. */
export async function scratchFolder(options: { forPrograms?: boolean } = {}): Promise<string> {
  const folder = await makeDatabaseFolder(prefix, options);
  onTestFinished(() => removeFolder(folder));
  return folder;
}

/**
 * Makes data directories for the tests of a file, as a first start and an orderly stop leave them, but for the port. Each
 * is removed after its test. Where we are root they belong to `nobody`. They are copies, because initdb takes ten times as
 * long as a start.
 */
export function useDataDirs(): () => Promise<string> {
  let original: Promise<string> | undefined;
  afterAll(async () => {
    const dataDir = await original?.catch(() => undefined);
    if (dataDir !== undefined) await removeFolder(path.dirname(dataDir));
  });
  return async () => {
    const dataDir = path.join(await scratchFolder(), 'data');
    original ??= makeOriginal();
    // Node's own copy does not keep the owners.
    await promisify(execFile)('cp', ['-Rp', await original, dataDir]);
    return dataDir;
  };
}

async function makeOriginal(): Promise<string> {
  const folder = await makeDatabaseFolder(prefix);
  const dataDir = path.join(folder, 'data');
  const options = { dataDir, durable: false, lockWaitMs: 0, logger: silent };
  const server = await startEmbeddedPostgres({ ...options, ...(isRoot ? { serverUser: 'nobody' } : {}) });
  await server.stop();
  // Without the port, which two of its copies would want.
  const file = path.join(dataDir, 'postgres/cluster.json');
  const { port: _port, ...cluster } = JSON.parse(await readFile(file, 'utf8')) as Record<string, unknown>;
  await writeFile(file, JSON.stringify(cluster));
  return dataDir;
}

const removeFolder = (folder: string): Promise<void> => rm(folder, { recursive: true, force: true, maxRetries: 5 });

/** An embedded server in this process, stopped after the test. */
export async function start(
  options: Partial<EmbeddedPostgresOptions> & { dataDir: string },
): Promise<EmbeddedPostgres> {
  const server = await startEmbeddedPostgres({ durable: false, lockWaitMs: 0, logger: silent, ...options });
  onTestFinished(() => server.stop());
  return server;
}

export type Starter = {
  answer: { pid?: number; connectionString?: string; error?: string };
  /** Sends the signal and returns the exit code when the process is wholly gone, locks and all. */
  end: (signal: NodeJS.Signals) => Promise<number | null>;
};

/** An embedded server in a process of its own; it and what is left of its server are killed after the test. */
export async function startInProcess(
  options: Partial<EmbeddedPostgresOptions> & { dataDir: string },
  identity: { uid?: number; gid?: number; home?: string } = {},
): Promise<Starter> {
  const { home, ...user } = identity;
  const script = fileURLToPath(new URL('./embedded-starter.ts', import.meta.url));
  const child = spawn(process.execPath, [script, JSON.stringify(options)], {
    ...user,
    cwd: '/',
    env: { PATH: process.env.PATH, ...compileCache(), ...(home === undefined ? {} : { HOME: home }) },
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const exited = new Promise<number | null>((resolve) => child.on('exit', resolve));
  const answer = await new Promise<Starter['answer']>((resolve, reject) => {
    createInterface({ input: child.stdout }).once('line', (line) => resolve(JSON.parse(line) as Starter['answer']));
    child.on('error', reject);
    child.on('exit', () => reject(new Error('The starter ended without an answer.')));
  });
  const end = (signal: NodeJS.Signals): Promise<number | null> => {
    child.kill(signal);
    return exited;
  };
  onTestFinished(async () => {
    await end('SIGTERM');
    if (answer.pid !== undefined && isAlive(answer.pid)) process.kill(answer.pid, 'SIGKILL');
  });
  return { answer, end };
}

export function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return !readFileSync(`/proc/${pid}/stat`, 'utf8').includes(') Z ');
  } catch {
    return false;
  }
}

/** The processes whose command line holds the text, by /proc. */
export function pidsWith(text: string): number[] {
  return readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name))
    .filter((pid) => {
      try {
        return readFileSync(`/proc/${pid}/cmdline`, 'utf8').replaceAll('\0', ' ').includes(text);
      } catch {
        return false;
      }
    })
    .map(Number);
}

export async function until(holds: () => boolean | Promise<boolean>): Promise<void> {
  while (!(await holds())) await new Promise((resolve) => setTimeout(resolve, 10));
}

/** Runs one statement and returns its rows. */
export async function query(connectionString: string, text: string): Promise<Record<string, unknown>[]> {
  const client = new pg.Client({ connectionString });
  client.on('error', () => {}); // the query reports it
  await client.connect();
  try {
    return (await client.query<Record<string, unknown>>(text)).rows;
  } finally {
    await client.end();
  }
}
