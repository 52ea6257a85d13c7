import { spawn, type ChildProcess } from 'node:child_process';
import { closeSync, openSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { sleep } from '#libs/kernel/sleep.ts';
import { compileCache } from '#test/compile-cache.ts';

/** One of the platform's processes. It is restarted whenever it ends, as by a supervisor. */
export type RigProcess = {
  readonly name: string;
  /** Undefined between an end and the next start. */
  pid(): number | undefined;
  /** SIGKILL, and a new start after `downMs`. Resolves when the process is gone. */
  kill(downMs: number): Promise<void>;
  /** SIGTERM, and a new start after `downMs`. Resolves when the process is gone. */
  terminate(downMs: number): Promise<void>;
  /** SIGSTOP and SIGCONT: a process that hangs and comes back. */
  pause(): void;
  resume(): void;
  /** Runs with these variables from its next start on. */
  setEnvironment(changes: Record<string, string>): void;
  /** SIGTERM without a new start, until `wake`. */
  rest(): Promise<void>;
  wake(): void;
  isResting(): boolean;
  /** Ends it for good. */
  stop(): Promise<void>;
};

/** A process this old has started, and from then on it must survive any trouble of the database. */
const startMaxMs = 20_000;

const projectFolder = fileURLToPath(new URL('../../../', import.meta.url));

/**
 * Starts `node <flags> <program>` with its output appended to `logFile`. `onCrash` is called for an unexpected end,
 * unless it is the end of a start that was paused. (An unavailable database is no excuse.) The process is then
 * started again.
 */
export function startRigProcess(options: {
  name: string;
  program: string;
  /** Flags of Node. */
  flags?: readonly string[];
  /** A program and its arguments that replace themselves by the command that follows, under the same process id. */
  launcher?: readonly string[];
  environment: Record<string, string>;
  logFile: string;
  onCrash: (name: string, how: string) => void;
}): RigProcess {
  const { name, program, logFile, onCrash, flags = [], launcher = [] } = options;
  const [command, ...args] = [...launcher, process.execPath, ...flags, program];
  let environment = options.environment;
  let child: ChildProcess | undefined;
  let exited: Promise<void> = Promise.resolve();
  let wanted = true;
  let resting = false;
  let ending: { downMs: number } | undefined;
  let restart: NodeJS.Timeout | undefined;
  let pausedAt = Number.NEGATIVE_INFINITY;

  const launch = (): void => {
    if (!wanted || resting || child) return;
    const log = openSync(logFile, 'a');
    // The channel closes when this process ends, and then the child ends as well (libs/kernel/lifecycle.ts).
    const launched = spawn(command, args, {
      cwd: projectFolder,
      env: { ...compileCache(), ...environment },
      stdio: ['ignore', log, log, 'ipc'],
    });
    closeSync(log);
    child = launched;
    ending = undefined;
    const launchedAt = performance.now();
    exited = new Promise((resolve) => {
      launched.once('exit', (code, signal) => {
        child = undefined;
        const isStart = performance.now() - launchedAt < startMaxMs;
        const isExplained = isStart && pausedAt > launchedAt;
        if (!ending && wanted && !isExplained) onCrash(name, signal ?? `exit code ${code}`);
        // A start that crashed is not repeated in a tight loop.
        restart = setTimeout(launch, ending?.downMs ?? 200);
        resolve();
      });
    });
  };

  const end = async (signal: NodeJS.Signals, downMs: number): Promise<void> => {
    if (!child) return;
    ending = { downMs };
    child.kill(signal);
    await exited;
  };

  launch();
  return {
    name,
    pid: () => child?.pid,
    kill: (downMs) => end('SIGKILL', downMs),
    terminate: (downMs) => end('SIGTERM', downMs),
    pause() {
      pausedAt = performance.now();
      child?.kill('SIGSTOP');
    },
    resume: () => void child?.kill('SIGCONT'),
    setEnvironment(changes) {
      environment = { ...environment, ...changes };
    },
    async rest() {
      resting = true;
      await end('SIGTERM', 0);
    },
    wake() {
      if (!resting) return;
      resting = false;
      launch();
    },
    isResting: () => resting,
    async stop() {
      wanted = false;
      clearTimeout(restart);
      if (!child) return;
      const stopping = child;
      stopping.kill('SIGCONT');
      stopping.kill('SIGTERM');
      const given = new AbortController();
      await Promise.race([exited, sleep(15_000, given.signal)]);
      given.abort();
      stopping.kill('SIGKILL');
      await exited;
    },
  };
}
