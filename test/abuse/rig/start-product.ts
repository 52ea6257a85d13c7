import { randomBytes } from 'node:crypto';
import { chmod, mkdir, rm } from 'node:fs/promises';
import { getPriority } from 'node:os';
import path from 'node:path';
import type pg from 'pg';
import { startOptions } from '#apps/platform/start-options.ts';
import { createDatabase, createPool } from '#libs/database/pool.ts';
import { createLogger } from '#libs/kernel/logging/logger.ts';
import { createWorkspace } from '#test/api/second-workspace.ts';
import { readUsage } from '#test/bench/process-usage.ts';
import { eventually } from '#test/eventually.ts';
import { startRigProcess } from '#test/faults/rig/child-process.ts';
import { freePort } from '#test/free-port.ts';
import type { findMemoryGroups } from './memory-group.ts';

/** An API and a worker as in production, each within 1 GiB and restarted when they end; and two workspaces. */
export type Product = {
  /** The API's base URL, without `/v1`. */
  url: string;
  attackerKey: string;
  victimKey: string;
  pool: pg.Pool;
  /** Points the victim's virtual key to another address; ends in `/v1`. */
  moveVictim(customHost: string): Promise<void>;
  /** Unexpected ends: the process, and how it ended. */
  crashes(): readonly string[];
  /** The peak of the resident memory of each process, over all its restarts, in bytes. */
  peaks(): { api: number; worker: number };
  /** Starts to measure API and worker. The returned function resolves with the figures since then (AttackFigures). */
  startLoad(): Promise<() => Promise<{ api: number; worker: number; loopP99Ms: number }>>;
  stop(): Promise<void>;
};

type Options = {
  /** A new folder for its logs and blobs. */
  folder: string;
  connectionString: string;
  memory: ReturnType<typeof findMemoryGroups>;
  /** The address of the virtual key `simulator` in both workspaces; ends in `/v1`. */
  victimProvider: string;
  environment: Record<string, string>;
  apiLauncher: readonly string[];
};

const apps = ['api', 'worker'] as const;
const sampleMs = 100;
const logger = createLogger({ name: 'abuse', level: 'silent' });
let started = 0;

export async function startProduct(options: Options): Promise<Product> {
  const { folder, memory } = options;
  await mkdir(folder, { recursive: true });
  await chmod(folder, 0o711);
  const ports = { api: await freePort(), worker: await freePort() };
  const attackerKey = `sk-abuse-${randomBytes(16).toString('hex')}`;
  const shared = {
    PATH: process.env['PATH'] ?? '',
    DATABASE_URL: options.connectionString,
    SLUICE_DATA_DIR: folder,
    SLUICE_MASTER_KEY: randomBytes(32).toString('base64'),
    SLUICE_EGRESS_ALLOW: '127.0.0.0/8,::1/128',
    ...options.environment,
  };
  const own = {
    api: {
      PORT: String(ports.api),
      SLUICE_BOOTSTRAP_KEY: attackerKey,
      SLUICE_SIMULATOR_URL: options.victimProvider,
      SLUICE_STOP_DELAY: '0ms',
      SLUICE_STOP_DEADLINE: '1s',
    },
    worker: { SLUICE_WORKER_PORT: String(ports.worker), SLUICE_DRAIN: '500ms' },
  };
  const crashes: string[] = [];
  started += 1;
  const running = apps.map((app) => {
    const group = memory.create(`${started}-${app}`);
    const process = startRigProcess({
      name: app,
      program: `apps/${app}/main.ts`,
      flags: [...startOptions[app].flags, ...group.flags],
      launcher: [...group.launcher, ...beforeAttackers(), ...(app === 'api' ? options.apiLauncher : [])],
      environment: { ...startOptions[app].environment, ...shared, ...own[app] },
      logFile: path.join(folder, `${app}.log`),
      onCrash: (name, how) => crashes.push(`${name} ended: ${how}${group.kills() > 0 ? ' (out of memory)' : ''}`),
    });
    return { app, group, process, peak: watchPeak(() => process.pid()) };
  });
  const pool = createPool(
    { connectionString: options.connectionString, applicationName: 'sluice-abuse', max: 4 },
    logger,
  );
  const db = createDatabase(pool);
  const stop = async (): Promise<void> => {
    await db.destroy();
    await Promise.all(
      running.map(async ({ process, group, peak }) => {
        await process.stop();
        peak.stop();
        group.remove();
      }),
    );
    await rm(path.join(folder, 'blobs'), { recursive: true, force: true });
  };
  const url = `http://127.0.0.1:${ports.api}`;
  try {
    // This also shows that the worker is connected to the queue.
    const isReady = (text: string): boolean => text.includes('"workers":"connected"');
    await eventually(() => asText(`${url}/health/ready`), isReady, { timeoutMs: 90_000, intervalMs: 100 });
    const victimKey = await createWorkspace({ baseUrl: `${url}/v1`, adminKey: attackerKey });
    const moveVictim = (customHost: string) => moveSimulatorKey(url, victimKey, customHost);
    const [api, worker] = running as [(typeof running)[0], (typeof running)[0]];
    const peaks = () => ({ api: api.peak.bytes(), worker: worker.peak.bytes() });
    const cpuSeconds = () => Promise.all(running.map(({ process }) => cpuSecondsOf(process.pid())));
    const startLoad = async () => {
      const startedMs = performance.now();
      const [apiBefore = 0, workerBefore = 0] = await cpuSeconds();
      await takeLoopP99Ms(url);
      return async () => {
        const [apiAfter = 0, workerAfter = 0] = await cpuSeconds();
        const seconds = (performance.now() - startedMs) / 1_000;
        const loopP99Ms = await takeLoopP99Ms(url);
        return { api: (apiAfter - apiBefore) / seconds, worker: (workerAfter - workerBefore) / seconds, loopP99Ms };
      };
    };
    return { url, startLoad, attackerKey, victimKey, pool, moveVictim, crashes: () => crashes, peaks, stop };
  } catch (error) {
    await stop();
    throw new Error(`the product does not start; its logs are in ${folder}: ${crashes.join('; ')}`, { cause: error });
  }
}

/**
 * A child inherits its parent's priority, which may already be lower, because the parent runs the attacker (run.ts).
 */
function beforeAttackers(): string[] {
  return getPriority() === 0 ? [] : ['nice', '-n', String(-getPriority())];
}

/**
 * The kernel keeps the peak of a process itself (VmHWM), so only what happens after the last sample is missed. The peak
 * of a cgroup is not used, because it includes the pages of written files, which the kernel drops when memory is short.
 */
function watchPeak(pid: () => number | undefined): { bytes(): number; stop(): void } {
  let peak = 0;
  const timer = setInterval(() => {
    const current = pid();
    if (current === undefined) return;
    readUsage(current).then(
      ({ residentPeakBytes }) => (peak = Math.max(peak, residentPeakBytes || 0)),
      () => {}, // the process has just ended
    );
  }, sampleMs);
  return { bytes: () => peak, stop: () => clearInterval(timer) };
}

/** NaN for a process that has just ended. */
async function cpuSecondsOf(pid: number | undefined): Promise<number> {
  if (pid === undefined) return Number.NaN;
  return await readUsage(pid).then(
    (usage) => usage.cpuSeconds,
    () => Number.NaN,
  );
}

/** The p99 of the API's event loop turns since the last call. An idle loop has about 10 ms. NaN without an answer. */
async function takeLoopP99Ms(url: string): Promise<number> {
  const lag = /^nodejs_eventloop_lag_p99_seconds(?:\{[^}]*\})? (\S+)$/m.exec(await asText(`${url}/metrics`))?.[1];
  return Number(lag) * 1_000;
}

async function asText(url: string): Promise<string> {
  try {
    return await (await fetch(url, { signal: AbortSignal.timeout(2_000) })).text();
  } catch {
    return '';
  }
}

/** Points the victim's virtual key, which its workspace got when it was made, to another address. */
async function moveSimulatorKey(url: string, key: string, customHost: string): Promise<void> {
  const response = await fetch(`${url}/v1/virtual-keys/simulator`, {
    method: 'PUT',
    headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
    body: JSON.stringify({ key: 'sk-victim', custom_host: customHost }),
  });
  if (!response.ok) throw new Error(`the virtual key of the victim stays: ${response.status} ${await response.text()}`);
}
