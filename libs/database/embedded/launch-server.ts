import { spawn, type ChildProcess } from 'node:child_process';
import { readFile } from 'node:fs/promises';
import { createServer } from 'node:net';
import path from 'node:path';
import { createInterface } from 'node:readline';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import { sleep } from '#libs/kernel/sleep.ts';
import type { Cluster } from './cluster.ts';
import { embeddedPostgresError } from './embedded-error.ts';
import { programEnvironment, type Identity } from './run-program.ts';
import { readPostmasterPid, stopServerProcesses } from './server-processes.ts';

export type ServerExit = { code: number | null; signal: NodeJS.Signals | null; requested: boolean };

export type RunningServer = {
  pid: number;
  port: number;
  exited: Promise<ServerExit>;
  /** Fast shutdown, then immediate, then kill. Idempotent. */
  stop(): Promise<void>;
};

export type LaunchOptions = {
  cluster: Cluster;
  program: string;
  durable: boolean;
  maxConnections: number;
  startTimeoutMs: number;
  stopTimeoutMs: number;
  signal?: AbortSignal | undefined;
  logger: Logger;
};

const attemptsMax = 5;

/**
 * Errors after which a second attempt can succeed: another process just took the port, or a dying server still has shared
 * memory.
 */
const passingTroubles = /Address already in use|could not create any TCP\/IP sockets|is still in use|already exists/;

/**
 * Starts the postmaster and returns when it accepts connections. Servers left behind on the same data directory are
 * stopped first. Throws with the server's last log lines if it does not start. Call it with the directory's lock held.
 */
export async function launchServer(options: LaunchOptions): Promise<RunningServer> {
  const { cluster, stopTimeoutMs, logger } = options;
  let lastWords = '';
  for (let attempt = 0; attempt < attemptsMax; attempt += 1) {
    if (attempt > 0) await sleep(200 * 2 ** attempt);
    await stopServerProcesses({ dataDir: cluster.dataDir, clusterName: cluster.name, stopTimeoutMs, logger });
    const port = await freePort(attempt < 2 ? cluster.file.port : undefined);
    const process = await spawnServer(options, port);
    if (await becomesReady(process, options)) return { ...process, port };
    await process.stop();
    options.signal?.throwIfAborted();
    lastWords = process.lastWords();
    if (!passingTroubles.test(lastWords)) break;
  }
  const isFull = lastWords.includes('No space left on device');
  const hint = isFull ? ' because the disk is full. Free some space. Its last output' : '';
  throw embeddedPostgresError(`The embedded Postgres in ${cluster.dataDir} did not start${hint}:\n${lastWords}`);
}

type Spawned = Omit<RunningServer, 'port'> & { lastWords(): string };

async function spawnServer(options: LaunchOptions, port: number): Promise<Spawned> {
  const { cluster, program, durable, maxConnections, stopTimeoutMs, logger } = options;
  const stalePid = await readPostmasterPid(cluster.dataDir);
  const settings = serverSettings({ port, durable, maxConnections, clusterName: cluster.name });
  const child = spawn(program, ['-D', cluster.dataDir, ...settings], {
    ...cluster.identity,
    cwd: '/',
    // The server has its own session: Ctrl-C in the terminal must reach only Sluice, which stops the database last.
    detached: true,
    stdio: ['ignore', 'ignore', 'pipe'],
    env: {
      ...programEnvironment,
      // All Postgres processes of this directory have ended, so a process that has the number in postmaster.pid is
      // another program (after a reboot). Postgres ignores the number given here (CreateLockFile, meant for pg_ctl's
      // parent) and still makes its other check, on the shared memory; deleting the file would skip both.
      ...(stalePid === undefined ? {} : { PG_GRANDPARENT_PID: String(stalePid) }),
    },
  });
  const lastWords = forwardLog(child, logger);
  let requested = false;
  const exited = new Promise<ServerExit>((resolve) => {
    child.on('error', (error) => {
      lastWords.push(error.message);
      if (child.pid === undefined) resolve({ code: null, signal: null, requested });
    });
    child.on('exit', (code, signal) => resolve({ code, signal, requested }));
  });
  const watchdog = startWatchdog(child, cluster.identity);
  void exited.then((exit) => {
    watchdog?.kill('SIGKILL');
    if (!exit.requested) logger.error({ code: exit.code, signal: exit.signal }, 'embedded postgres ended');
  });
  return {
    pid: child.pid ?? 0,
    exited,
    lastWords: () => lastWords.join('\n'),
    stop: async () => {
      requested = true;
      await stopChild(child, exited, stopTimeoutMs);
    },
  };
}

/**
 * Starts a shell that waits on a pipe whose other end only this process holds. When this process dies, even by SIGKILL,
 * the pipe closes and the shell asks the server for a fast shutdown. If that fails, the next start stops the server.
 */
function startWatchdog(server: ChildProcess, identity: Identity): ChildProcess | undefined {
  if (server.pid === undefined) return undefined;
  const watchdog = spawn('/bin/sh', ['-c', 'read -r line; kill -INT "$0"', String(server.pid)], {
    ...identity,
    cwd: '/',
    detached: true,
    stdio: ['pipe', 'ignore', 'ignore'],
    env: programEnvironment,
  });
  watchdog.on('error', () => {}); // There is no shell. The next start stops the server.
  watchdog.stdin?.on('error', () => {});
  return watchdog;
}

async function stopChild(child: ChildProcess, exited: Promise<ServerExit>, timeoutMs: number): Promise<void> {
  const steps = [
    ['SIGINT', timeoutMs],
    ['SIGQUIT', 3_000],
    ['SIGKILL', 5_000],
  ] as const;
  for (const [signal, waitMs] of steps) {
    child.kill(signal);
    const timer = new AbortController();
    const done = await Promise.race([exited.then(() => true), sleep(waitMs, timer.signal).then(() => false)]);
    timer.abort();
    if (done) return;
  }
}

const lastWordsMax = 30;

/**
 * Forwards the server's log to ours and retains its last lines. It contains no statements and no values
 * (server-settings.ts).
 */
function forwardLog(child: ChildProcess, logger: Logger): string[] {
  const last: string[] = [];
  if (child.stderr === null) return last;
  createInterface({ input: child.stderr }).on('line', (line) => {
    last.push(line.slice(0, 1_000));
    if (last.length > lastWordsMax) last.shift();
    const level = /^(FATAL|PANIC):|was terminated by signal/.test(line) ? 'warn' : 'debug';
    logger[level]({ postgres: line.slice(0, 1_000) }, 'postgres log');
  });
  return last;
}

/**
 * The eighth line of postmaster.pid shows that the server is ready. Its first line must be our child's process ID,
 * because another server might have the port.
 */
async function becomesReady(server: Spawned, { cluster, startTimeoutMs, signal }: LaunchOptions): Promise<boolean> {
  const file = path.join(cluster.dataDir, 'postmaster.pid');
  const deadline = Date.now() + startTimeoutMs;
  while (Date.now() < deadline) {
    if (signal?.aborted) return false;
    const lines = (await readFile(file, 'utf8').catch(() => '')).split('\n');
    if (lines[0] === String(server.pid) && lines[7]?.trim() === 'ready') return true;
    const ended = await Promise.race([server.exited.then(() => true), sleep(20).then(() => false)]);
    if (ended) return false;
  }
  return false;
}

/** Returns `preferred` if it is free, otherwise a port that the system assigns. */
async function freePort(preferred: number | undefined): Promise<number> {
  if (preferred !== undefined && (await tryPort(preferred)) === preferred) return preferred;
  const port = await tryPort(0);
  if (port === undefined) throw embeddedPostgresError('No free port on 127.0.0.1 for the embedded Postgres.');
  return port;
}

function tryPort(port: number): Promise<number | undefined> {
  return new Promise((resolve) => {
    const server = createServer();
    server.on('error', () => resolve(undefined));
    server.listen(port, '127.0.0.1', () => {
      const address = server.address();
      server.close(() => resolve(typeof address === 'object' && address !== null ? address.port : undefined));
    });
  });
}

/**
 * The server's settings, as arguments, so that each start uses those of this release and no file has to be edited.
 * Sized for a machine with 2 cores and 2 GB that runs the whole platform.
 */
function serverSettings(options: {
  port: number;
  durable: boolean;
  maxConnections: number;
  clusterName: string;
}): string[] {
  const settings: Record<string, string | number> = {
    cluster_name: options.clusterName,
    listen_addresses: '127.0.0.1',
    port: options.port,
    // All connections use passwords: a socket would need a folder that other users cannot reach.
    unix_socket_directories: '',
    password_encryption: 'scram-sha-256',
    max_connections: options.maxConnections,
    max_locks_per_transaction: 256, // A statement can lock the tables and indexes of all days of the request log.

    shared_buffers: '256MB',
    effective_cache_size: '1GB',
    work_mem: '8MB',
    maintenance_work_mem: '64MB',
    random_page_cost: 1.1, // The disk is an SSD.
    jit: 'off', // There are many short statements.

    fsync: options.durable ? 'on' : 'off',
    full_page_writes: options.durable ? 'on' : 'off',
    synchronous_commit: 'on', // This also applies in tests: a killed server loses nothing that was acknowledged.
    wal_compression: 'on',
    // Batches insert in bulk: fewer checkpoints, fewer full pages. A throw-away database can be in memory.
    max_wal_size: options.durable ? '2GB' : '512MB',
    min_wal_size: '128MB',
    checkpoint_timeout: '15min',
    checkpoint_completion_target: 0.9,

    // One forgotten writer stalls every subscriber of the log. Our pools set shorter limits; these catch all other
    // sessions.
    idle_in_transaction_session_timeout: '60s',
    transaction_timeout: '15min',
    // A query whose client was killed ends, and releases its locks, before it has its answer.
    client_connection_check_interval: '5s',

    timezone: 'UTC',
    log_timezone: 'UTC',
    lc_messages: 'C', // launch-server.ts recognises some lines.
    // The server's log is forwarded to ours, which must contain no statements and no values. It has no ERROR lines (the
    // client gets those), no text of statements and no DETAIL lines.
    log_destination: 'stderr',
    logging_collector: 'off',
    log_line_prefix: '',
    log_min_messages: 'log',
    log_min_error_statement: 'panic',
    log_error_verbosity: 'terse',
    log_statement: 'none',
    log_checkpoints: 'off',
    log_autovacuum_min_duration: -1,
  };
  return Object.entries(settings).flatMap(([name, value]) => ['-c', `${name}=${value}`]);
}
