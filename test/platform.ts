import { randomBytes } from 'node:crypto';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { composeApi, type ApiProcess } from '#apps/api/compose.ts';
import { ApiConfig } from '#apps/api/config.ts';
import { createSimulator, type Simulator } from '#apps/simulator/server.ts';
import { asProviders } from './conformance/as-providers.ts';
import type { SimulatorOptions } from '#apps/simulator/options.ts';
import { composeWorker } from '#apps/worker/compose.ts';
import { WorkerConfig } from '#apps/worker/config.ts';
import { stopAll, type Part } from '#libs/kernel/lifecycle.ts';
import { createLogger } from '#libs/kernel/logging/logger.ts';
import { moveClockOf, type DatabaseClock } from './database-clock.ts';
import { createTestDatabase, type TestDatabase } from './postgres.ts';
import { startAll } from './start-parts.ts';

export type TestPlatform = {
  /** Ends in `/v1`. */
  baseUrl: string;
  adminKey: string;
  simulator: Simulator;
  simulatorUrl: string;
  database: TestDatabase;
  /** Moves the clock for the platform's deadlines. Only available if the platform was started with `movableClock`. */
  passTime: DatabaseClock['pass'];
  api: ApiProcess;
  /** The folder of the blobs. */
  dataDir: string;
  /** The environment that the processes were started with, for processes that a test starts itself. */
  environment: Record<string, string>;
  startWorker: (overrides?: Record<string, string>) => Promise<{ stop: () => Promise<void> }>;
  stop: () => Promise<void>;
};

const logger = createLogger({ name: 'test', level: process.env['SLUICE_LOG_LEVEL'] ?? 'silent' });

/**
 * Starts the API, a simulator and (unless `worker: false`) a worker in this process, with their own database and blobs.
 * A virtual key `simulator` points to the simulator, so `model: "@simulator/sim-small"` works at once. `environment`
 * overrides single variables, such as SLUICE_BATCH_EXPIRY.
 */
export async function startPlatform(
  options: {
    worker?: boolean;
    movableClock?: boolean;
    environment?: Record<string, string>;
    simulator?: Partial<SimulatorOptions>;
  } = {},
): Promise<TestPlatform> {
  // What has to be undone, last first, when the platform stops or fails to start.
  const undo: (() => Promise<unknown>)[] = [];
  const stop = async (): Promise<void> => {
    for (const step of undo.splice(0).toReversed()) await step();
  };
  try {
    const dataDir = await mkdtemp(path.join(tmpdir(), 'sluice-test-'));
    undo.push(() => rm(dataDir, { recursive: true, force: true }));
    const database = await createTestDatabase();
    undo.push(() => database.drop());
    const clock = options.movableClock === true ? await moveClockOf(database) : undefined;
    const passTime: TestPlatform['passTime'] = async (ms) => {
      if (!clock) throw new Error('time passes only for a platform that was started with movableClock');
      await clock.pass(ms);
    };
    const simulator = createSimulator({ ...asProviders(options.simulator?.clock), ...options.simulator });
    const { url } = await simulator.start();
    undo.push(() => simulator.stop());
    const simulatorUrl = `${url}/v1`;
    const adminKey = `sk-test-${randomBytes(16).toString('hex')}`;
    const environment: Record<string, string> = {
      DATABASE_URL: database.connectionString,
      SLUICE_DATA_DIR: dataDir,
      SLUICE_MASTER_KEY: randomBytes(32).toString('base64'),
      SLUICE_EGRESS_ALLOW: new URL(url).host,
      SLUICE_BOOTSTRAP_KEY: adminKey,
      SLUICE_SIMULATOR_URL: simulatorUrl,
      SLUICE_RETRY_BASE: '10ms',
      SLUICE_DRAIN: '2s',
      SLUICE_STOP_DEADLINE: '2s',
      SLUICE_STOP_DELAY: '0ms',
      PORT: '0',
      ...options.environment,
    };
    const run = async (parts: Part[]): Promise<{ stop: () => Promise<void> }> => {
      const stopParts = (): Promise<void> => stopAll(parts, logger);
      undo.push(stopParts);
      await startAll(parts, logger);
      return { stop: stopParts };
    };
    // Where a test moves the clock, it is right.
    const belief = options.movableClock === true ? { believedAfterMs: 0 } : {};
    const startWorker: TestPlatform['startWorker'] = async (overrides = {}) =>
      await run((await composeWorker(WorkerConfig.parse({ ...environment, ...overrides }), logger, belief)).parts);
    const api = await composeApi(ApiConfig.parse(environment), logger);
    await run(api.parts);
    if (options.worker !== false) await startWorker();
    const baseUrl = `${api.url()}/v1`;
    const processes = { baseUrl, adminKey, simulator, simulatorUrl, api };
    return { ...processes, database, passTime, dataDir, environment, startWorker, stop };
  } catch (error) {
    await stop();
    throw error;
  }
}
