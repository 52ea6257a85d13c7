import { spawn, type ChildProcess } from 'node:child_process';
import type { Readable } from 'node:stream';
import { fileURLToPath } from 'node:url';
import { startedMessage } from '#libs/kernel/lifecycle.ts';
import { sleep } from '#libs/kernel/sleep.ts';

/** Where the output of a child process goes. */
export type ChildLog = {
  /** Reads the output of a child process that was just started, until its end. A stream is null if it is not a pipe. */
  attach(...streams: (Readable | null)[]): void;
  /** Adds a line, as if the child process had written it. */
  line(text: string): void;
  /** The last lines of the most recent child process, in readable form, oldest first. */
  lastLines(): string[];
};

export type Supervised = {
  readonly name: string;
  /** The process id; undefined while it is not running. */
  pid(): number | undefined;
  /** The current process has reported that all of its parts have started (libs/kernel/lifecycle.ts). */
  hasStarted(): boolean;
  start(): void;
  /** Stops the process, or kills it after `withinMs`, and starts it again with a fresh environment. */
  restart(withinMs: number): Promise<void>;
  /**
   * Sends SIGTERM, and SIGKILL after the deadline. true if the process stopped cleanly: with exit code 0, or killed by
   * the SIGTERM itself, which only happens before its handler is installed, when no part has started yet. Idempotent.
   */
  stop(): Promise<boolean>;
  /** Kills the process. */
  kill(): void;
};

export type SuperviseOptions = {
  name: string;
  /**
   * Starts the process with an IPC channel, whose end signals to it that this process was killed
   * (libs/kernel/lifecycle.ts).
   */
  spawn: () => ChildProcess;
  log: ChildLog;
  stopDeadlineMs: number;
  /** Called each time the process has reported that all of its parts have started. */
  onStarted?: (pid: number) => void;
  /** Called with a message for people when the process has ended. */
  onProblem: (text: string) => void;
  /** Called when the process ended `startsMax` times in a row while `mayGiveUp` was true. It is not started again. */
  onGiveUp: (reason: Error) => void;
  /**
   * true until the platform was ready once. After that, a process is restarted without limit, because it has worked.
   */
  mayGiveUp: () => boolean;
  /** true once everything is being stopped. A process that ends after that is not restarted. */
  isStopping?: () => boolean;
  startsMax?: number;
  backoff?: { firstMs: number; maxMs: number; resetAfterMs: number };
};

const projectFolder = fileURLToPath(new URL('../../../', import.meta.url));
const lastOutputMs = 3_000;
const backoffDefault = { firstMs: 100, maxMs: 5_000, resetAfterMs: 30_000 };

/**
 * Supervises one child process. It is restarted after 100 ms, then 200 ms and so on up to 5 s; once it has run for 30 s
 * the backoff starts over.
 */
export function supervise(options: SuperviseOptions): Supervised {
  const { name, log, mayGiveUp, isStopping = () => false, startsMax = 5, backoff = backoffDefault } = options;
  let child: ChildProcess | undefined;
  let exited: Promise<ExitStatus> = Promise.resolve({ code: 0, signal: null });
  let wanted = false;
  let isOver = false;
  let timer: NodeJS.Timeout | undefined;
  let failures = 0;
  let hasStarted = false;

  const launch = (): void => {
    if (!wanted) return;
    const startedAt = performance.now();
    const { launched, closed, ended } = launchProcess(options);
    child = launched;
    hasStarted = false;
    launched.on('message', (message) => {
      if (child !== launched || message !== startedMessage) return;
      hasStarted = true;
      options.onStarted?.(launched.pid ?? 0);
    });
    exited = ended.then(async (status) => {
      if (child === launched) child = undefined;
      // Waits until its last output has been read, but not forever, because a grandchild can keep the pipe open.
      await Promise.race([closed, sleep(lastOutputMs)]);
      return status;
    });
    void exited.then((status) => {
      if (wanted && child === undefined && !isStopping()) again(status, performance.now() - startedAt);
    });
  };

  const again = (status: ExitStatus, lifetimeMs: number): void => {
    if (lifetimeMs >= backoff.resetAfterMs) failures = 0;
    failures += 1;
    const how = describe(status);
    if (mayGiveUp() && failures >= startsMax) {
      wanted = false;
      const message = `The ${name} could not be started: it ${how}${failures > 1 ? `, ${failures} times` : ''}.`;
      const output = log.lastLines().map((line) => `\n  ${line}`);
      options.onGiveUp(new Error(output.length === 0 ? message : `${message} Its last output:${output.join('')}`));
      return;
    }
    const waitMs = Math.min(backoff.maxMs, backoff.firstMs * 2 ** Math.min(failures - 1, 20));
    // Failures during the first start are reported only when it is given up.
    if (!mayGiveUp()) options.onProblem(`the ${name} ${how}; restarting it in ${waitMs} ms`);
    timer = setTimeout(launch, waitMs);
  };

  const end = async (withinMs: number): Promise<boolean> => {
    wanted = false;
    clearTimeout(timer);
    const ending = child;
    if (ending === undefined) return true;
    ending.kill('SIGTERM');
    const given = new AbortController();
    const late = sleep(withinMs, given.signal).then(() => 'late' as const);
    const first = await Promise.race([exited, late]);
    given.abort();
    if (first !== 'late') return first.code === 0 || first.signal === 'SIGTERM';
    ending.kill('SIGKILL');
    await exited;
    return false;
  };

  const start = (): void => {
    if (wanted || isOver) return;
    wanted = true;
    failures = 0;
    launch();
  };

  return {
    name,
    pid: () => child?.pid,
    hasStarted: () => child !== undefined && hasStarted,
    start,
    stop: () => {
      isOver = true; // This also cancels a restart in progress.
      return end(options.stopDeadlineMs);
    },
    kill: () => {
      isOver = true;
      wanted = false;
      clearTimeout(timer);
      child?.kill('SIGKILL');
    },
    async restart(withinMs) {
      if (!wanted) return;
      await end(withinMs);
      start();
    },
  };
}

type Launched = {
  launched: ChildProcess;
  /** Resolves when all output has been read. */
  closed: Promise<void>;
  ended: Promise<ExitStatus>;
};

function launchProcess({ name, spawn: launch, log }: SuperviseOptions): Launched {
  const launched = launch();
  log.attach(launched.stdout, launched.stderr);
  const closed = new Promise<void>((resolve) => launched.once('close', () => resolve()));
  const ended = new Promise<ExitStatus>((resolve) => {
    launched.once('exit', (code, signal) => resolve({ code, signal }));
    launched.once('error', (error) => {
      log.line(`the ${name} could not be run: ${error.message}`);
      if (launched.pid === undefined) resolve({ code: null, signal: null });
    });
  });
  return { launched, closed, ended };
}

/**
 * Runs a program of the project. It gets a separate session, so that Ctrl-C reaches only this process, which decides the
 * order of the stop.
 */
export function spawnProgram(options: {
  /** Relative to the project folder, so that a process list shows `node apps/<name>/main.ts`. */
  program: string;
  /** Options of Node. */
  flags?: readonly string[];
  environment: Record<string, string>;
}): ChildProcess {
  const { program, flags = [], environment } = options;
  return spawn(process.execPath, [...flags, program], {
    cwd: projectFolder,
    env: environment,
    detached: true,
    stdio: ['ignore', 'pipe', 'pipe', 'ipc'],
  });
}

type ExitStatus = { code: number | null; signal: NodeJS.Signals | null };

const describe = ({ code, signal }: ExitStatus): string =>
  signal === null ? `exited with code ${code ?? 'unknown'}` : `was killed by ${signal}`;
