import { fork, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { open, readFile } from 'node:fs/promises';
import path from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';

export type BenchProcess = {
  name: string;
  pid: number;
  child: ChildProcess;
  /** Waits until the log matches and returns the match. Rejects when the process ends first or takes too long. */
  waitForLog(pattern: RegExp): Promise<RegExpExecArray>;
  /** Sends SIGTERM, and SIGKILL to what is still running after ten seconds. Idempotent. */
  stop(): Promise<void>;
};

const readyMs = 60_000;
const stopMs = 10_000;
export const projectRoot = path.resolve(import.meta.dirname, '../..');

/**
 * Starts a Node process of this project with its own environment. Its output goes directly into a file, so that logging
 * costs it as much as in production, and costs the bench nothing.
 */
export async function startProcess(options: {
  name: string;
  /** Relative to the root. */
  script: string;
  /** The checkout that runs. Default: this one. */
  root?: string;
  args?: readonly string[];
  /** Flags for Node. */
  flags?: readonly string[];
  environment: Record<string, string>;
  logFile: string;
}): Promise<BenchProcess> {
  const { name, logFile, root = projectRoot } = options;
  const log = await open(logFile, 'w');
  const child = fork(path.join(root, options.script), [...(options.args ?? [])], {
    cwd: root,
    env: { PATH: process.env['PATH'], HOME: process.env['HOME'], ...options.environment },
    execArgv: [...(options.flags ?? [])],
    stdio: ['ignore', log.fd, log.fd, 'ipc'],
  });
  await once(child, 'spawn');
  await log.close();
  const exited = once(child, 'exit');
  const hasExited = (): boolean => child.exitCode !== null || child.signalCode !== null;

  return {
    name,
    pid: child.pid as number,
    child,
    async waitForLog(pattern) {
      const deadline = Date.now() + readyMs;
      for (;;) {
        const text = await readFile(logFile, 'utf8');
        const match = pattern.exec(text);
        if (match) return match;
        if (hasExited() || Date.now() > deadline) {
          throw new Error(`${name} ${hasExited() ? 'ended' : 'is not ready'}; its log ends:\n${text.slice(-2_000)}`);
        }
        await delay(50);
      }
    },
    async stop() {
      if (hasExited()) return;
      child.kill('SIGTERM');
      const force = setTimeout(() => child.kill('SIGKILL'), stopMs);
      await exited;
      clearTimeout(force);
    },
  };
}
