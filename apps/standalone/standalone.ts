import path from 'node:path';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import { buildConsole, isConsoleBuilt } from '../console/build.ts';
import { spawnProgram, supervise, type ChildLog, type Supervised } from '../platform/processes/supervise.ts';
import { startOptions } from '../platform/start-options.ts';
import { createLogger } from '#libs/kernel/logging/logger.ts';
import { createChildLog } from './processes/child-log.ts';
import { childEnvironments, type ChildEnvironments, type StandaloneConfig } from './config.ts';
import { lockDataDirectory } from './files/data-directory.ts';
import { assertMasterKeyFits, inspectInstallation, superviseEmbeddedPostgres, type Installation } from './database.ts';
import { openLogFile } from './files/log-file.ts';
import { choosePorts, type Ports } from './choose-ports.ts';
import { prepareKeys, type Keys } from './prepare-keys.ts';
import { hasRuntimeFile, removeRuntimeFile, writeRuntimeFile } from './files/runtime-file.ts';
import { StartError } from './start-error.ts';
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
export const createStandalone = (config: StandaloneConfig, terminal: Terminal): Standalone =>
  new LocalPlatform(config, terminal);

class LocalPlatform implements Standalone {
  readonly #config: StandaloneConfig;
  readonly #terminal: Terminal;
  readonly #stopping = new AbortController();
  /** Aborted when a process cannot be started. */
  readonly #failing = new AbortController();
  readonly #cleanups: (() => Promise<boolean | void> | boolean | void)[] = [];
  #children: Supervised[] = [];
  #isReady = false;
  #starting: Promise<unknown> = Promise.resolve();
  #unwound: Promise<boolean> | undefined;

  constructor(config: StandaloneConfig, terminal: Terminal) {
    this.#config = config;
    this.#terminal = terminal;
  }

  async start(): Promise<Running> {
    const started = this.#start();
    this.#starting = started;
    try {
      return await started;
    } catch (error) {
      await (this.#unwound ??= this.#unwind());
      throw error;
    }
  }

  async stop(): Promise<boolean> {
    this.#stopping.abort(new StartError('Stopped before the start was complete.'));
    await this.#starting.catch(() => {});
    return await (this.#unwound ??= this.#unwind());
  }

  kill(): void {
    for (const child of this.#children) child.kill();
  }

  async #start(): Promise<Running> {
    const config = this.#config;
    const { dataDir } = config;
    const terminal = this.#terminal;
    const lock = await lockDataDirectory(dataDir);
    terminal.say(`  data       ${dataDir}`);
    terminal.say(`  logs       ${path.join(dataDir, 'logs')}`);
    this.#cleanups.push(() => lock.release());
    await this.#buildMissingConsole();
    const wasKilled = await hasRuntimeFile(dataDir);
    const ports = await choosePorts(config, wasKilled);
    const logger = loggerTo(this.#openLog('standalone'), config.SLUICE_LOG_LEVEL);
    const isEmbedded = config.DATABASE_URL === undefined;
    terminal.say(`  database ${isEmbedded ? 'starting the embedded Postgres' : 'Postgres of DATABASE_URL'}`);
    const database = await this.#openDatabase(logger);
    terminal.say(`  database   ${databaseAddress(database.url())}`);
    this.#stopping.signal.throwIfAborted();
    const installation = await this.#inspect(database.url(), logger);
    const keys = await prepareKeys(config, installation);
    // Otherwise each process would fail on it at every restart.
    if (installation.hasMasterKey) await assertMasterKeyFits(database.url(), keys.masterKey, logger);
    const logs = { simulator: this.#openLog('simulator'), worker: this.#openLog('worker'), api: this.#openLog('api') };
    this.#stopping.signal.throwIfAborted();
    const url = `http://${bracketed(config.HOST)}:${ports.port}`;
    const localUrl = `http://${bracketed(reachable(config.HOST))}:${ports.port}`;
    const rememberWhere = () => writeRuntimeFile(dataDir, { pid: process.pid, url, databaseUrl: database.url() });
    await rememberWhere();
    this.#cleanups.push(() => removeRuntimeFile(dataDir));
    database.onMoved(rememberWhere);

    this.#startChildren(logs, ports, () =>
      childEnvironments(config, {
        ...ports,
        databaseUrl: database.url(),
        masterKey: keys.masterKey.reveal(),
        adminKey: keys.adminKey?.value.reveal(),
      }),
    );
    await this.#untilReady(localUrl);
    this.#isReady = true;
    const simulatorUrl = `http://127.0.0.1:${ports.simulatorPort}`;
    return { url, localUrl, simulatorUrl, keys, isFirstStart: !installation.hasWorkspace, databaseUrl: database.url };
  }

  async #buildMissingConsole(): Promise<void> {
    if (await isConsoleBuilt()) return;
    this.#terminal.say('  console    is built');
    if (await buildConsole()) return;
    this.#terminal.problem(
      'the console is not available because `npm ci --omit=dev` leaves out the packages that build it',
    );
  }

  #openLog(name: string): ChildLog {
    const { problem: onProblem } = this.#terminal;
    const file = openLogFile({
      file: path.join(this.#config.dataDir, 'logs', `${name}.log`),
      sizeBytesMax: logSizeBytesMax,
      onProblem,
    });
    this.#cleanups.push(() => file.close());
    return createChildLog({ name, file, onWarning: onProblem });
  }

  async #openDatabase(
    logger: Logger,
  ): Promise<{ url: () => string; onMoved: (listener: () => Promise<void>) => void }> {
    const { DATABASE_URL, SLUICE_DATABASE_DIRECT_URL, dataDir } = this.#config;
    const given = SLUICE_DATABASE_DIRECT_URL ?? DATABASE_URL;
    if (given !== undefined) return { url: () => given, onMoved: () => {} };
    const { problem: onProblem } = this.#terminal;
    const { signal } = this.#stopping;
    let moved = async (): Promise<void> => {};
    const onRestarted = (hasMoved: boolean): void => {
      onProblem('the database is running again');
      if (!hasMoved) return; // at the same address, where the processes reconnect automatically
      void moved().catch((error: unknown) => logger.error({ err: error }, 'the runtime file could not be written'));
      for (const child of this.#children) void child.restart(restartWithinMs);
    };
    const kept = await superviseEmbeddedPostgres({ dataDir, logger, onProblem, signal, onRestarted });
    this.#cleanups.push(() => kept.stop());
    return {
      url: kept.url,
      onMoved: (listener) => {
        moved = listener;
      },
    };
  }

  async #inspect(databaseUrl: string, logger: Logger): Promise<Installation> {
    try {
      return await inspectInstallation(databaseUrl, logger);
    } catch (error) {
      const cause = error instanceof Error && error.cause instanceof Error ? error.cause : error;
      const reason = cause instanceof Error ? cause.message : 'unknown error';
      const hint = this.#config.DATABASE_URL === undefined ? '' : ' Check DATABASE_URL.';
      throw new StartError(`The database cannot be used: ${reason}.${hint}`, { cause: error });
    }
  }

  #startChildren(
    logs: Record<keyof ChildEnvironments, ChildLog>,
    { port, simulatorPort }: Ports,
    environments: () => ChildEnvironments,
  ): void {
    const addresses = { api: `port ${port}`, worker: '', simulator: `http://127.0.0.1:${simulatorPort}/v1` };
    const sayStarted = (name: keyof ChildEnvironments, pid: number): void => {
      const place = [`pid ${pid}`, addresses[name]].filter(Boolean).join(', ');
      if (!this.#isReady) this.#terminal.say(`  ${name.padEnd(10)} ${place}`);
    };
    const make = (name: keyof ChildEnvironments, drainMs: number): Supervised =>
      supervise({
        name,
        spawn: () =>
          spawnProgram({
            program: `apps/${name}/main.ts`,
            flags: startOptions[name].flags,
            environment: { ...startOptions[name].environment, ...environments()[name] },
          }),
        log: logs[name],
        stopDeadlineMs: drainMs + stopGraceMs,
        onStarted: (pid) => sayStarted(name, pid),
        onProblem: this.#terminal.problem,
        onGiveUp: (reason) => this.#failing.abort(new StartError(reason.message)),
        mayGiveUp: () => !this.#isReady,
        isStopping: () => this.#stopping.signal.aborted,
      });
    const { SLUICE_DRAIN: drainMs, SLUICE_STOP_DELAY: delayMs, SLUICE_STOP_DEADLINE: deadlineMs } = this.#config;
    this.#children = [make('simulator', simulatorDrainMs), make('worker', drainMs), make('api', delayMs + deadlineMs)];
    for (const child of this.#children) {
      child.start();
      this.#cleanups.push(() => child.stop());
    }
  }

  /** Returns when the API is ready and a worker is connected. Rejects when one of the processes cannot be started. */
  async #untilReady(localUrl: string): Promise<void> {
    const signal = AbortSignal.any([this.#stopping.signal, this.#failing.signal]);
    const alsoMissing = (): string | undefined => {
      const missing = this.#children.find((child) => !child.hasStarted());
      return missing === undefined ? undefined : `the ${missing.name} is starting`;
    };
    const onWaiting = (why: string): void => this.#terminal.say(`  waiting    ${why}`);
    await waitUntilReady({ url: localUrl, signal, alsoMissing, onWaiting });
  }

  async #unwind(): Promise<boolean> {
    let isClean = true;
    for (const cleanup of this.#cleanups.splice(0).toReversed()) {
      try {
        if ((await cleanup()) === false) isClean = false;
      } catch (error) {
        isClean = false;
        this.#terminal.problem(`stopping: ${error instanceof Error ? error.message : 'unknown error'}`);
      }
    }
    return isClean;
  }
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
