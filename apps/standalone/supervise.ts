import { spawn, type ChildProcess } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { startedMessage } from '#libs/kernel/lifecycle.ts';
import { sleep } from '#libs/kernel/sleep.ts';
import type { ChildLog } from './child-log.ts';

export type Supervised = {
  readonly name: string;
  /** The process id; undefined while it is down. */
  pid(): number | undefined;
  /** The process that runs now has said that all of it is started (libs/kernel/lifecycle.ts). */
  hasStarted(): boolean;
  start(): void;
  /** Ends the process, in order if it manages within `withinMs`, and starts it again, with a fresh environment. */
  restart(withinMs: number): Promise<void>;
  /**
   * SIGTERM, SIGKILL after the deadline. True when the process ended in order: with exit code 0, or by the SIGTERM itself,
   * which ends a process that had nothing to stop yet (a handler is the first thing that each installs). Idempotent.
   */
  stop(): Promise<boolean>;
  /** Ends the process at once. */
  kill(): void;
};

export type SuperviseOptions = {
  name: string;
  /** Relative to the project, so that a process list shows `node apps/<name>/main.ts`. */
  program: string;
  /** Of Node. */
  flags?: readonly string[];
  /** Asked at every start. */
  environment: () => Record<string, string>;
  log: ChildLog;
  stopDeadlineMs: number;
  /** For people: that it ended, and what happens now. */
  onProblem: (text: string) => void;
  /** The process ended `startsMax` times in a row before `mayGiveUp` became false; it is not started again. */
  onGiveUp: (reason: Error) => void;
  /** True until the platform was ready once. Afterwards a process is started again for ever: it has worked before. */
  mayGiveUp: () => boolean;
  /** True once everything is being stopped: what ends by itself then is not started again. */
  isStopping?: () => boolean;
  startsMax?: number;
  backoff?: { firstMs: number; maxMs: number; resetAfterMs: number };
};

const projectFolder = fileURLToPath(new URL('../../', import.meta.url));
const lastWordsMs = 3_000;
const backoffDefault = { firstMs: 100, maxMs: 5_000, resetAfterMs: 30_000 };

/**
 * Keeps one child process running: started again 100 ms after it ends, then after 200 ms and so on up to 5 s; 30 s of
 * life start the count again. The child gets an IPC channel, by whose end it notices that this process was killed
 * (libs/kernel/lifecycle.ts), and a session of its own, so that Ctrl-C reaches this process only and the order of the
 * stop is ours.
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
    const launched = spawn(process.execPath, [...(options.flags ?? []), options.program], {
      cwd: projectFolder,
      env: options.environment(),
      detached: true,
      stdio: ['ignore', 'pipe', 'pipe', 'ipc'],
    });
    child = launched;
    hasStarted = false;
    launched.on('message', (message) => {
      if (child === launched && message === startedMessage) hasStarted = true;
    });
    log.attach(launched.stdout, launched.stderr);
    const closed = new Promise<void>((resolve) => launched.once('close', () => resolve()));
    const ended = new Promise<ExitStatus>((resolve) => {
      launched.once('exit', (code, signal) => resolve({ code, signal }));
      launched.once('error', (error) => {
        log.line(`${options.program} cannot be run: ${error.message}`);
        if (launched.pid === undefined) resolve({ code: null, signal: null });
      });
    });
    exited = ended.then(async (status) => {
      if (child === launched) child = undefined;
      // Its last words are read before anybody goes on. (Not for longer: a grandchild may hold the pipe.)
      await Promise.race([closed, sleep(lastWordsMs)]);
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
      const words = log.lastLines().map((line) => `  ${line}`);
      options.onGiveUp(
        new Error([`The ${name} does not start: it ${how}, ${failures} times. Its last words:`, ...words].join('\n')),
      );
      return;
    }
    const waitMs = Math.min(backoff.maxMs, backoff.firstMs * 2 ** Math.min(failures - 1, 20));
    // Failures of the first start are told once, when it is given up, unless a later try succeeds.
    if (!mayGiveUp()) options.onProblem(`the ${name} ${how}; it is started again in ${waitMs} ms`);
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
      isOver = true; // also for a restart under way
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

type ExitStatus = { code: number | null; signal: NodeJS.Signals | null };

const describe = ({ code, signal }: ExitStatus): string =>
  signal === null ? `exited with code ${code ?? 'unknown'}` : `was ended by ${signal}`;
