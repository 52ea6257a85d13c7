import { spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import { createServer, type AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { onTestFinished } from 'vitest';
import { compileCache } from '#test/compile-cache.ts';

export const projectFolder = path.resolve(import.meta.dirname, '../../..');

type LogLine = { level: number; msg: string; pid: number; reason?: string; url?: string; port?: number };

export type AppProcess = {
  /** Everything that it has printed. */
  output: () => string;
  stderr: () => string;
  /** The lines of its log. */
  logged: () => LogLine[];
  /** Those with this message; for the first of them, see `eventually`. */
  said: (message: string) => LogLine[];
  /** Its exit status, when all that it printed was read. */
  ended: Promise<number | null>;
  signal: (signal: NodeJS.Signals) => void;
};

/** `apps/api/main.ts` or `apps/worker/main.ts` of the project or of another folder with its code, killed after the test. */
export function startApp(
  app: 'api' | 'worker',
  environment: Record<string, string>,
  folder: string = projectFolder,
): AppProcess {
  const { PATH = '' } = process.env;
  const child = spawn(process.execPath, [`apps/${app}/main.ts`], {
    cwd: folder,
    env: { PATH, ...compileCache(), ...environment },
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  onTestFinished(() => void child.kill('SIGKILL'));
  let stdout = '';
  let stderr = '';
  child.stdout.on('data', (chunk: Buffer) => (stdout += String(chunk)));
  child.stderr.on('data', (chunk: Buffer) => (stderr += String(chunk)));
  const ended = once(child, 'close').then(([code]) => code as number | null);
  const logged = (): LogLine[] =>
    stdout
      .split('\n')
      .slice(0, -1)
      .map((line) => JSON.parse(line) as LogLine);
  return {
    output: () => stdout + stderr,
    stderr: () => stderr,
    logged,
    said: (message) => logged().filter(({ msg }) => msg === message),
    ended,
    signal: (signal) => void child.kill(signal),
  };
}

/** What both processes need, over this database and with a blob folder that is removed after the test. */
export async function appEnvironment(databaseUrl: string): Promise<Record<string, string>> {
  const dataDir = await mkdtemp(path.join(tmpdir(), 'sluice-start-'));
  onTestFinished(() => rm(dataDir, { recursive: true, force: true }));
  return {
    DATABASE_URL: databaseUrl,
    SLUICE_DATA_DIR: dataDir,
    SLUICE_MASTER_KEY: randomBytes(32).toString('base64'),
    SLUICE_BOOTSTRAP_KEY: `sk-test-${randomBytes(16).toString('hex')}`,
    SLUICE_STOP_DEADLINE: '2s',
    SLUICE_STOP_DELAY: '0ms',
    SLUICE_DRAIN: '2s',
    SLUICE_WORKER_PORT: '0',
    PORT: '0',
  };
}

/** A port of 127.0.0.1 at which nobody listens. */
export async function unusedPort(): Promise<number> {
  const server = createServer();
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const { port } = server.address() as AddressInfo;
  await new Promise((resolve) => server.close(resolve));
  return port;
}
