import { randomBytes } from 'node:crypto';
import { chmod, mkdir, mkdtemp, rename, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import type { Kysely } from 'kysely';
import { startOptions } from '#apps/platform/start-options.ts';
import { findReferencedBlobs } from '#libs/files/referenced-blobs.ts';
import { createDiskBlobStore } from '#libs/blobs/disk-blob-store.ts';
import { createS3BlobStore } from '#libs/blobs/s3-blob-store.ts';
import type { Pool } from 'pg';
import { createDatabase, createPool } from '#libs/database/pool.ts';
import type { Database } from '#libs/database/schema.ts';
import { createLogger } from '#libs/kernel/logging/logger.ts';
import { sleep } from '#libs/kernel/sleep.ts';
import { freePort } from '#test/free-port.ts';
import type { S3Server } from '#test/s3-server.ts';
import { startRigProcess, type RigProcess } from './child-process.ts';
import { createRigClient, type RigClient } from './rig-client.ts';
import { makeClockMovable } from './movable-clock.ts';
import { startRigPostgres, type RigPostgres } from './rig-postgres.ts';

/** The whole platform as real processes with their own Postgres and blobs, all of which can be killed. */
export type Rig = {
  folder: string;
  postgres: RigPostgres;
  api: RigProcess;
  workers: readonly [RigProcess, RigProcess];
  client: RigClient;
  /** The base URL of the API, which ends in `/v1`. */
  baseUrl: string;
  /** An admin key. */
  key: string;
  /** The addresses at which the workers answer probes. */
  workerOrigins: readonly string[];
  /** Sets the clock of the database forward or, if negative, back, as all of its sessions see it. */
  moveClock(byMs: number): Promise<void>;
  /** The rig's own connection to the database. Queries fail while Postgres is down. */
  db: Kysely<Database>;
  pool: Pool;
  /** Unexpected ends of processes since the last call. */
  takeCrashes(): string[];
  /** How many calls of each `user` the simulator has received since the last reset. */
  calls(): Promise<Record<string, number>>;
  resetCalls(): Promise<void>;
  /** Resolves when everything runs and the API is ready. */
  untilReady(): Promise<void>;
  /** Makes the blobs unavailable for some time. */
  loseBlobs(forMs: number): Promise<void>;
  /** Sweeps unreferenced blobs without the usual day of grace. Returns what is left, by kind. */
  sweep(): Promise<{ blobs: number; referenced: number; partials: number }>;
  stop(options: { keepFolder: boolean }): Promise<void>;
};

const logger = createLogger({ name: 'faults', level: process.env['SLUICE_LOG_LEVEL'] ?? 'silent' });

/** `environment` is for the API and the workers. `s3`: has the blobs; null: they are on disk. */
export async function startRig(environment: Record<string, string> = {}, s3: S3Server | null = null): Promise<Rig> {
  const folder = await mkdtemp(path.join(tmpdir(), 'sluice-faults-'));
  await chmod(folder, 0o711); // as root the database runs as another user
  await mkdir(path.join(folder, 'logs'));
  const postgres = await startRigPostgres({ dataDir: folder, logger });
  const { connectionString: databaseUrl } = postgres;
  const pool = createPool(
    { connectionString: databaseUrl, applicationName: 'sluice-faults', max: 4, connectionTimeoutMs: 2_000 },
    logger,
  );
  const db = createDatabase(pool);
  const moveClock = await makeClockMovable(db);
  const [apiPort, simulatorPort] = [await freePort(), await freePort()];
  const workerPorts = [await freePort(), await freePort()] as const;
  const key = `sk-faults-${randomBytes(16).toString('hex')}`;
  const shared = {
    PATH: process.env['PATH'] ?? '',
    DATABASE_URL: databaseUrl,
    SLUICE_DATA_DIR: folder,
    SLUICE_MASTER_KEY: randomBytes(32).toString('base64'),
    SLUICE_EGRESS_ALLOW: `127.0.0.1:${simulatorPort}`,
    SLUICE_RETRY_BASE: '10ms',
    SLUICE_LOG_LEVEL: 'info',
    ...(s3 && {
      ...s3.credentials,
      SLUICE_BLOBS: `s3://${s3.options.bucket}/faults`,
      SLUICE_S3_ENDPOINT: s3.endpoint,
      SLUICE_S3_PATH_STYLE: 'true',
    }),
    ...environment,
  };
  const crashes: string[] = [];
  const start = (name: string, program: keyof typeof startOptions, own: Record<string, string>): RigProcess =>
    startRigProcess({
      name,
      program: `apps/${program}/main.ts`,
      flags: startOptions[program].flags,
      environment: { ...startOptions[program].environment, ...own },
      logFile: path.join(folder, 'logs', `${name}.log`),
      onCrash: (who, how) => crashes.push(`${who} ended by itself: ${how} (see logs/${who}.log)`),
    });
  const simulator = start('simulator', 'simulator', {
    PATH: shared.PATH,
    PORT: String(simulatorPort),
    SIMULATOR_COUNT_CALLS: 'true',
    LOG_LEVEL: 'warn',
  });
  const simulatorUrl = `http://127.0.0.1:${simulatorPort}`;
  const api = start('api', 'api', {
    ...shared,
    PORT: String(apiPort),
    SLUICE_BOOTSTRAP_KEY: key,
    SLUICE_SIMULATOR_URL: `${simulatorUrl}/v1`,
    SLUICE_STOP_DEADLINE: '2s',
    SLUICE_STOP_DELAY: '0ms',
  });
  const workerEnvironment = { ...shared, SLUICE_DRAIN: '2s', SLUICE_VALIDATION_THREADS: '1' };
  const startWorker = (index: 0 | 1): RigProcess =>
    start(`worker-${index}`, 'worker', { ...workerEnvironment, SLUICE_WORKER_PORT: String(workerPorts[index]) });
  const workers = [startWorker(0), startWorker(1)] as const;
  const baseUrl = `http://127.0.0.1:${apiPort}`;

  const untilReady = async (): Promise<void> => {
    const deadline = performance.now() + 60_000;
    for (;;) {
      const ready = await Promise.all([
        answers(`${simulatorUrl}/health`),
        answers(`${baseUrl}/health/ready`),
        ...workers.map((worker, index) =>
          worker.isResting() ? true : answers(`http://127.0.0.1:${workerPorts[index]}/health/ready`),
        ),
      ]);
      if (ready.every(Boolean)) return;
      if (performance.now() > deadline) throw new Error(`the platform is not ready; logs in ${folder}/logs`);
      await sleep(50);
    }
  };
  const rig: Rig = {
    folder,
    postgres,
    api,
    workers,
    baseUrl: `${baseUrl}/v1`,
    key,
    workerOrigins: workerPorts.map((port) => `http://127.0.0.1:${port}`),
    client: createRigClient({ baseUrl: `${baseUrl}/v1`, key, simulatorUrl }),
    moveClock,
    db,
    pool,
    takeCrashes: () => crashes.splice(0),
    async calls() {
      const response = await fetch(`${simulatorUrl}/stats`);
      return ((await response.json()) as { calls: Record<string, number> }).calls;
    },
    async resetCalls() {
      await fetch(`${simulatorUrl}/stats/reset`, { method: 'POST' });
    },
    untilReady,
    async loseBlobs(forMs) {
      if (s3) return await s3.hang(forMs);
      const blobs = path.join(folder, 'blobs');
      await rename(blobs, `${blobs}-lost`);
      await sleep(forMs);
      // Fails if a process has made the folder again and written to it.
      await rename(`${blobs}-lost`, blobs);
    },
    async sweep() {
      const store = s3
        ? await createS3BlobStore({ ...s3.options, prefix: 'faults/' })
        : await createDiskBlobStore({ folder: path.join(folder, 'blobs') });
      const findReferenced = (names: readonly string[]) => findReferencedBlobs(db, names);
      const { partialsRemoved: partials } = await store.sweep({ olderThanMs: -60_000, findReferenced });
      const left: string[] = [];
      for await (const { blob } of store.list()) left.push(blob);
      return { blobs: left.length, referenced: (await findReferenced(left)).size, partials };
    },
    async stop({ keepFolder }) {
      await Promise.all([...workers, api].map((process) => process.stop()));
      await simulator.stop();
      await db.destroy();
      await postgres.stop({ keep: keepFolder });
      if (!keepFolder) await rm(folder, { recursive: true, force: true });
    },
  };
  try {
    await untilReady();
  } catch (error) {
    await rig.stop({ keepFolder: true });
    throw error;
  }
  return rig;
}

async function answers(url: string): Promise<boolean> {
  try {
    const response = await fetch(url, { signal: AbortSignal.timeout(2_000) });
    await response.arrayBuffer();
    return response.ok;
  } catch {
    return false;
  }
}
