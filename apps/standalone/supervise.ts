import { spawn, type ChildProcess } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { sleep } from '#libs/kernel/sleep.ts';
import type { ChildLog } from './child-log.ts';

export type Supervised = {
  readonly name: string;
  /** The process id; undefined while it is down. */
  pid(): number | undefined;
  start(): void;
  /** Ends the process, in order if it manages within `withinMs`, and starts it anew, with a fresh environment. */
  restart(withinMs: number): Promise<void>;
  /** SIGTERM, SIGKILL after the deadline. True when the process ended by itself with exit code 0. Idempotent. */
  stop(): Promise<boolean>;
  /** Ends the process at once. */
  kill(): void;
};

export type SuperviseOptions = {
  name: string;
  /** Relative to the project, so that a process list shows `node apps/<name>/main.ts`. */
  program: string;
  /** Flags for Node itself. */
  nodeOptions?: readonly string[];
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
  startsMax?: number;
  backoff?: { firstMs: number; maxMs: number; resetAfterMs: number };
};

const projectFolder = fileURLToPath(new URL('../../', import.meta.url));
const backoffDefault = { firstMs: 100, maxMs: 5_000, resetAfterMs: 30_000 };

/**
 * Keeps one child process running: started again 100 ms after it ends, then after 200 ms and so on up to 5 s; 30 s of
 * life start the count anew. The child gets an IPC channel, by whose end it notices that this process was killed
 * (libs/kernel/lifecycle.ts), and a session of its own, so that Ctrl-C reaches this process only and the order of the
 * stop is ours.
 */
export function supervise(options: SuperviseOptions): Supervised {
  const { name, log, mayGiveUp, startsMax = 5, backoff = backoffDefault } = options;
  let child: ChildProcess | undefined;
  let exited: Promise<ExitStatus> = Promise.resolve({ code: 0, signal: null });
  let wanted = false;
  let isOver = false;
  let timer: NodeJS.Timeout | undefined;
  let failures = 0;

  const launch = (): void => {
    if (!wanted) return;
    const startedAt = performance.now();
    const launched = spawn(process.execPath, [...(options.nodeOptions ?? []), options.program], {
      cwd: projectFolder,
      env: options.environment(),
      detached: true,
      stdio: ['ignore', 'pipe', 'pipe', 'ipc'],
    });
    child = launched;
    log.attach(launched.stdout, launched.stderr);
    const closed = new Promise<void>((resolve) => launched.once('close', () => resolve()));
    exited = new Promise((resolve) => {
      launched.once('exit', (code, signal) => resolve({ code, signal }));
      launched.once('error', (error) => {
        log.line(`${options.program} cannot be run: ${error.message}`);
        if (launched.pid === undefined) resolve({ code: null, signal: null });
      });
    });
    void exited.then(async (status) => {
      if (child !== launched) return;
      child = undefined;
      if (!wanted) return;
      await Promise.race([closed, sleep(500)]); // its last words
      ended(status, performance.now() - startedAt);
    });
  };

  const ended = (status: ExitStatus, lifetimeMs: number): void => {
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
    if (first !== 'late') return first.code === 0;
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
