import path from 'node:path';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import { buildConsole, isConsoleBuilt } from '../console/build.ts';
import { startOptions } from '../platform/start-options.ts';
import { createLogger } from '#libs/kernel/logging/logger.ts';
import { createChildLog, type ChildLog } from './processes/child-log.ts';
import { childEnvironments, type ChildEnvironments, type StandaloneConfig } from './config.ts';
import { lockDataDirectory } from './files/data-directory.ts';
import { assertMasterKeyFits, inspectInstallation, superviseEmbeddedPostgres, type Installation } from './database.ts';
import { openLogFile } from './files/log-file.ts';
import { choosePorts, type Ports } from './choose-ports.ts';
import { prepareKeys, type Keys } from './prepare-keys.ts';
import { hasRuntimeFile, removeRuntimeFile, writeRuntimeFile } from './files/runtime-file.ts';
import { StartError } from './start-error.ts';
import { supervise, type Supervised } from './processes/supervise.ts';
import { waitUntilReady } from './processes/wait-until-ready.ts';

/** Output for people: `say` for progress, `problem` for errors. */
export type Terminal = { say: (line: string) => void; problem: (line: string) => void };

export type Running = {
  /** The address from HOST and PORT, without a path. */
  url: string;
  /** Like `url`, but reachable from this machine even if HOST is the wildcard address. */
  localUrl: string;
  /** Without a path. */
  simulatorUrl: string;
  keys: Keys;
  /** There was no API key before this start. */
  isFirstStart: boolean;
  /** The current address of the database; it changes if the embedded one has to move to another port. */
  databaseUrl: () => string;
};

export type Standalone = {
  /** Starts everything and returns when calls and batches are served. Throws StartError after stopping what had started. */
  start(): Promise<Running>;
  /** Stops API, worker, simulator and database, in this order. true if none of them had to be killed. Idempotent. */
  stop(): Promise<boolean>;
  /** Kills the processes; the embedded database notices and stops. For the second Ctrl-C. */
  kill(): void;
};

/** Each process has a file of this size and the previous one: enough for days of one line per request. */
const logSizeBytesMax = 16_777_216;
/** Longer than each process's own deadline, so that the process itself gives up and logs the reason. */
const stopGraceMs = 12_000;
const simulatorDrainMs = 2_000;
/**
 * How long a process can finish its answers when the database has moved to another address. It cannot write any more.
 */
const restartWithinMs = 2_000;

/** The whole platform on this machine: database, keys, and API, worker and simulator as supervised child processes. */
export function createStandalone(config: StandaloneConfig, terminal: Terminal): Standalone {
  const { dataDir } = config;
  const stopping = new AbortController();
  const cleanups: (() => Promise<boolean | void> | boolean | void)[] = [];
  let children: Supervised[] = [];
  let isReady = false;
  let starting: Promise<unknown> = Promise.resolve();
  let unwound: Promise<boolean> | undefined;

  const openLog = (name: string): ChildLog => {
    const file = openLogFile({
      file: path.join(dataDir, 'logs', `${name}.log`),
      sizeBytesMax: logSizeBytesMax,
      onProblem: terminal.problem,
    });
    cleanups.push(() => file.close());
    return createChildLog({ name, file, onWarning: terminal.problem });
  };

  const start = async (): Promise<Running> => {
    const lock = await lockDataDirectory(dataDir);
    terminal.say(`  data       ${dataDir}`);
    terminal.say(`  logs       ${path.join(dataDir, 'logs')}`);
    cleanups.push(() => lock.release());
    if (!(await isConsoleBuilt())) {
      terminal.say('  console    is built');
      if (!(await buildConsole()))
        terminal.problem(
          'the console is not available because `npm ci --omit=dev` leaves out the packages that build it',
        );
    }
    const wasKilled = await hasRuntimeFile(dataDir);
    const ports = await choosePorts(config, wasKilled);
    const logger = loggerTo(openLog('standalone'), config.SLUICE_LOG_LEVEL);
    const isEmbedded = config.DATABASE_URL === undefined;
    terminal.say(`  database ${isEmbedded ? 'starting the embedded Postgres' : 'Postgres of DATABASE_URL'}`);
    const database = await openDatabase(logger);
    terminal.say(`  database   ${databaseAddress(database.url())}`);
    assertGoesOn();
    const installation = await inspect(database.url(), logger);
    const keys = await prepareKeys(config, installation);
    // Otherwise each process would fail on it at every restart.
    if (installation.hasMasterKey) await assertMasterKeyFits(database.url(), keys.masterKey, logger);
    const logs = { simulator: openLog('simulator'), worker: openLog('worker'), api: openLog('api') };
    assertGoesOn();
    const url = `http://${bracketed(config.HOST)}:${ports.port}`;
    const localUrl = `http://${bracketed(reachable(config.HOST))}:${ports.port}`;
    const rememberWhere = () => writeRuntimeFile(dataDir, { pid: process.pid, url, databaseUrl: database.url() });
    await rememberWhere();
    cleanups.push(() => removeRuntimeFile(dataDir));
    database.onMoved(rememberWhere);

    await startChildren(logs, () => environmentsNow(ports, keys, database.url()), localUrl, ports);
    isReady = true;
    const simulatorUrl = `http://127.0.0.1:${ports.simulatorPort}`;
    return { url, localUrl, simulatorUrl, keys, isFirstStart: !installation.hasWorkspace, databaseUrl: database.url };
  };

  const environmentsNow = (ports: Ports, keys: Keys, databaseUrl: string): ChildEnvironments =>
    childEnvironments(config, {
      ...ports,
      databaseUrl,
      masterKey: keys.masterKey.reveal(),
      adminKey: keys.adminKey?.value.reveal(),
    });

  const openDatabase = async (
    logger: Logger,
  ): Promise<{ url: () => string; onMoved: (listener: () => Promise<void>) => void }> => {
    const { DATABASE_URL: given } = config;
    if (given !== undefined) return { url: () => given, onMoved: () => {} };
    let moved = async (): Promise<void> => {};
    const onRestarted = (hasMoved: boolean): void => {
      terminal.problem('the database is running again');
      if (!hasMoved) return; // at the same address, where the processes reconnect automatically
      void moved().catch((error: unknown) => logger.error({ err: error }, 'the runtime file could not be written'));
      for (const child of children) void child.restart(restartWithinMs);
    };
    const { problem: onProblem } = terminal;
    const kept = await superviseEmbeddedPostgres({ dataDir, logger, onProblem, signal: stopping.signal, onRestarted });
    cleanups.push(() => kept.stop());
    return {
      url: kept.url,
      onMoved: (listener) => {
        moved = listener;
      },
    };
  };

  const inspect = async (databaseUrl: string, logger: Logger): Promise<Installation> => {
    try {
      return await inspectInstallation(databaseUrl, logger);
    } catch (error) {
      const cause = error instanceof Error && error.cause instanceof Error ? error.cause : error;
      const reason = cause instanceof Error ? cause.message : 'unknown error';
      const hint = config.DATABASE_URL === undefined ? '' : ' Check DATABASE_URL.';
      throw new StartError(`The database cannot be used: ${reason}.${hint}`, { cause: error });
    }
  };

  /** Returns when the API is ready and a worker is connected. Rejects when one of them cannot be started. */
  const startChildren = async (
    logs: Record<keyof ChildEnvironments, ChildLog>,
    environments: () => ChildEnvironments,
    localUrl: string,
    { port, simulatorPort }: Ports,
  ): Promise<void> => {
    const addresses = { api: `port ${port}`, worker: '', simulator: `http://127.0.0.1:${simulatorPort}/v1` };
    const sayStarted = (name: keyof ChildEnvironments, pid: number): void => {
      if (!isReady) terminal.say(`  ${name.padEnd(10)} ${[`pid ${pid}`, addresses[name]].filter(Boolean).join(', ')}`);
    };
    const failing = new AbortController();
    const make = (name: keyof ChildEnvironments, drainMs: number): Supervised =>
      supervise({
        name,
        program: `apps/${name}/main.ts`,
        flags: startOptions[name].flags,
        environment: () => ({ ...startOptions[name].environment, ...environments()[name] }),
        log: logs[name],
        stopDeadlineMs: drainMs + stopGraceMs,
        onStarted: (pid) => sayStarted(name, pid),
        onProblem: terminal.problem,
        onGiveUp: (reason) => failing.abort(new StartError(reason.message)),
        mayGiveUp: () => !isReady,
        isStopping: () => stopping.signal.aborted,
      });
    children = [
      make('simulator', simulatorDrainMs),
      make('worker', config.SLUICE_DRAIN),
      make('api', config.SLUICE_STOP_DELAY + config.SLUICE_STOP_DEADLINE),
    ];
    for (const child of children) {
      child.start();
      cleanups.push(() => child.stop());
    }
    const signal = AbortSignal.any([stopping.signal, failing.signal]);
    const alsoMissing = (): string | undefined => {
      const missing = children.find((child) => !child.hasStarted());
      return missing === undefined ? undefined : `the ${missing.name} is starting`;
    };
    const onWaiting = (why: string): void => terminal.say(`  waiting    ${why}`);
    await waitUntilReady({ url: localUrl, signal, alsoMissing, onWaiting });
  };

  const assertGoesOn = (): void => stopping.signal.throwIfAborted();

  const unwind = async (): Promise<boolean> => {
    let isClean = true;
    for (const cleanup of cleanups.splice(0).toReversed()) {
      try {
        if ((await cleanup()) === false) isClean = false;
      } catch (error) {
        isClean = false;
        terminal.problem(`stopping: ${error instanceof Error ? error.message : 'unknown error'}`);
      }
    }
    return isClean;
  };

  const stop = async (): Promise<boolean> => {
    stopping.abort(new StartError('Stopped before the start was complete.'));
    await starting.catch(() => {});
    return await (unwound ??= unwind());
  };

  return {
    async start() {
      const started = start();
      starting = started;
      try {
        return await started;
      } catch (error) {
        await (unwound ??= unwind());
        throw error;
      }
    },
    stop,
    kill: () => {
      for (const child of children) child.kill();
    },
  };
}

/** This process logs like its children: into a file, and warnings also to the terminal. */
function loggerTo(log: ChildLog, level: string): Logger {
  return createLogger({ name: 'standalone', level }, { write: (text: string) => log.line(text.trimEnd()) });
}

/** The address without the user and password. */
function databaseAddress(databaseUrl: string): string {
  const { host, pathname } = new URL(databaseUrl);
  return `${host}${pathname}`;
}

const bracketed = (host: string): string => (host.includes(':') ? `[${host}]` : host);

/** HOST can be the wildcard address, which not every system can connect to. */
function reachable(host: string): string {
  if (host === '0.0.0.0') return '127.0.0.1';
  return host === '::' ? '::1' : host;
}
