import { randomBytes } from 'node:crypto';
import { chmod, mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { pathToFileURL } from 'node:url';
import pg from 'pg';
import { request } from 'undici';
import { startOptions as ownOptions } from '#apps/platform/start-options.ts';
import { startEmbeddedPostgres, type EmbeddedPostgres } from '#libs/database/embedded/start-embedded-postgres.ts';
import { createLogger } from '#libs/kernel/logging/logger.ts';
import { startIdentityProvider, type IdentityProvider } from './identity-provider.ts';
import { projectRoot, startProcess, type BenchProcess } from './start-process.ts';

/** Sluice as in production (except for its addresses), in a scratch directory. */
export type Stack = {
  directory: string;
  postgres: EmbeddedPostgres;
  api: BenchProcess;
  worker: BenchProcess;
  simulator: BenchProcess;
  /** No trailing slash, no /v1. */
  apiUrl: string;
  simulatorUrl: string;
  adminKey: string;
  identity: IdentityProvider;
  /** The environment that API and worker were started with. */
  environment: Record<string, string>;
  /** Starts one more API on the same database, with more variables. */
  startApi(name: string, environment: Record<string, string>): Promise<{ api: BenchProcess; url: string }>;
};

/** Undoes all that was started, last first, whatever fails. Used by the end of the bench and by Ctrl-C alike. */
export type Cleanup = { add(undo: () => Promise<unknown>): void; run(): Promise<void> };

export function createCleanup(): Cleanup {
  const undos: (() => Promise<unknown>)[] = [];
  let running: Promise<void> | undefined;
  const run = async (): Promise<void> => {
    for (let undo = undos.pop(); undo; undo = undos.pop()) {
      await undo().catch((error: unknown) => console.error('cleaning up failed:', error));
    }
  };
  return { add: (undo) => void undos.push(undo), run: () => (running ??= run()) };
}

export async function makeScratchDirectory(cleanup: Cleanup): Promise<string> {
  const directory = await mkdtemp(path.join(tmpdir(), 'sluice-bench-'));
  cleanup.add(() => rm(directory, { recursive: true, force: true }));
  await chmod(directory, 0o711); // as root the database runs as another user
  return directory;
}

/** The embedded Postgres with its production settings: durable. */
export async function startPostgres(directory: string, cleanup: Cleanup): Promise<EmbeddedPostgres> {
  const logger = createLogger({ name: 'bench', level: 'error' });
  const postgres = await startEmbeddedPostgres({ dataDir: directory, logger, durable: true });
  cleanup.add(() => postgres.stop());
  return postgres;
}

/** Creates an empty database with this name beside the owner's, and returns the owner's URL of it. */
export async function createDatabaseBeside(adminUrl: string, ownerUrl: string, name: string): Promise<string> {
  const url = new URL(ownerUrl);
  const owner = pg.escapeIdentifier(decodeURIComponent(url.username));
  url.pathname = `/${name}`;
  const client = new pg.Client({ connectionString: adminUrl });
  await client.connect();
  await client.query(`create database ${name} owner ${owner}`).finally(() => client.end());
  return url.href;
}

type StackOptions = {
  /** The checkout from which API and worker run. Default: this one. */
  root?: string;
  /** More flags for API and worker. */
  flags?: readonly string[];
};

/** Starts simulator, API and worker as separate processes, ready for requests and batches. */
export async function startStack(
  directory: string,
  postgres: EmbeddedPostgres,
  cleanup: Cleanup,
  { root = projectRoot, flags = [] }: StackOptions = {},
): Promise<Stack> {
  const options = root === projectRoot ? ownOptions : await loadStartOptions(root);
  const start = async (
    app: 'api' | 'worker' | 'simulator',
    environment: Record<string, string>,
    name: string = app,
  ): Promise<BenchProcess> => {
    const isMeasured = app !== 'simulator';
    const own = isMeasured ? options[app] : ownOptions[app];
    const started = await startProcess({
      name,
      script: `apps/${app}/main.ts`,
      root: isMeasured ? root : projectRoot,
      flags: [...own.flags, ...(isMeasured ? flags : [])],
      environment: { ...own.environment, ...environment },
      logFile: path.join(directory, `${name}.log`),
    });
    cleanup.add(() => started.stop());
    return started;
  };
  const simulator = await start('simulator', { PORT: '0', LOG_LEVEL: 'info' });
  const simulatorUrl = urlIn(await simulator.waitForLog(listening));
  const identity = await startIdentityProvider(cleanup);
  const adminKey = `sk-bench-${randomBytes(16).toString('hex')}`;
  const environment = {
    DATABASE_URL: postgres.connectionString,
    SLUICE_DATA_DIR: directory,
    SLUICE_MASTER_KEY: randomBytes(32).toString('base64'),
    SLUICE_EGRESS_ALLOW: `${new URL(simulatorUrl).host},${identity.host}`,
    SLUICE_SIMULATOR_URL: `${simulatorUrl}/v1`,
  };
  const startApi = async (name: string, more: Record<string, string>): Promise<{ api: BenchProcess; url: string }> => {
    const own = { PORT: '0', SLUICE_BOOTSTRAP_KEY: adminKey, SLUICE_STOP_DELAY: '0ms' };
    const api = await start('api', { ...environment, ...identity.environment, ...own, ...more }, name);
    return { api, url: urlIn(await api.waitForLog(listening)) };
  };
  const { api, url: apiUrl } = await startApi('api', {});
  const worker = await start('worker', environment);
  await untilWorkerIsConnected(apiUrl, worker);
  return {
    directory,
    postgres,
    api,
    worker,
    simulator,
    apiUrl,
    simulatorUrl,
    adminKey,
    identity,
    environment,
    startApi,
  };
}

export async function stopStack({ worker, api, simulator }: Stack): Promise<void> {
  for (const each of [worker, api, simulator]) await each.stop();
}

/** The flags with which another checkout starts its processes. They are part of what it costs. */
async function loadStartOptions(root: string): Promise<typeof ownOptions> {
  const file = pathToFileURL(path.join(root, 'apps/platform/start-options.ts')).href;
  return ((await import(file)) as { startOptions: typeof ownOptions }).startOptions;
}

const listening = /"url":"(http:[^"]+)"/;

function urlIn([, url]: RegExpExecArray): string {
  return url ?? '';
}

async function untilWorkerIsConnected(apiUrl: string, worker: BenchProcess): Promise<void> {
  for (let tries = 0; tries < 600; tries += 1) {
    const { body } = await request(`${apiUrl}/health/ready`);
    const ready = await body.text();
    if (ready.includes('"workers":"connected"')) return;
    await delay(100);
  }
  throw new Error(`${worker.name} is not ready`);
}
