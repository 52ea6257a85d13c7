import { spawn, type ChildProcess } from 'node:child_process';
import { readdirSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { compileCache } from '#test/compile-cache.ts';
import { isAlive, until } from '../database/embedded-harness.ts';

const projectFolder = path.resolve(import.meta.dirname, '../../..');

export type Ended = { code: number | null; stdout: string; stderr: string };

export type NpmStart = {
  pid: number;
  /** From the ready line; ends in `/v1`. */
  baseUrl: string;
  /** What it has printed so far. */
  stdout: () => string;
  stderr: () => string;
  ended: Promise<Ended>;
  /** The process ids of its children by the part of their command line that tells them apart. */
  children: () => Record<'api' | 'worker' | 'simulator' | 'postgres', number | undefined>;
  signal: (signal: NodeJS.Signals) => void;
};

/** Only what is given: the developer's own environment must not decide a test. */
export function standaloneEnvironment(dataDir: string, more: Record<string, string> = {}): Record<string, string> {
  const { PATH = '', HOME = '' } = process.env;
  const quick = { SLUICE_DRAIN: '1s', SLUICE_STOP_DEADLINE: '1s' };
  return { PATH, HOME, ...compileCache(), ...quick, PORT: '0', SLUICE_DATA_DIR: dataDir, ...more };
}

/** Runs a program of the project to its end. */
export async function run(args: readonly string[], env: Record<string, string>): Promise<Ended> {
  return await launch(args, env).ended;
}

/** `npm start` without npm, up to its ready line. Throws with what it printed when it ends before. */
export async function npmStart(env: Record<string, string>): Promise<NpmStart> {
  const started = launch(['apps/standalone/main.ts'], env);
  const { child, output } = started;
  const readyLine = (): string | undefined => /^sluice ready (http:\/\/\S+)$/m.exec(output.stdout)?.[1];
  // The last thing it prints is the line to try, followed by an empty one.
  const isReady = (): boolean => readyLine() !== undefined && /\ncurl .*\n\n$/.test(output.stdout);
  await until(() => isReady() || child.exitCode !== null || child.signalCode !== null);
  const baseUrl = readyLine();
  if (baseUrl === undefined) throw new Error(`It did not start:\n${output.stdout}\n${output.stderr}`);
  const pid = child.pid ?? 0;
  return {
    pid,
    baseUrl,
    stdout: () => output.stdout,
    stderr: () => output.stderr,
    ended: started.ended,
    children: () => childrenOf(pid),
    signal: (signal) => child.kill(signal),
  };
}

export type Launched = { child: ChildProcess; output: { stdout: string; stderr: string }; ended: Promise<Ended> };

/** Starts a program of the project; `output` is what it has printed so far. */
export function launch(args: readonly string[], env: Record<string, string>): Launched {
  const child = spawn(process.execPath, args, { cwd: projectFolder, env, stdio: ['ignore', 'pipe', 'pipe'] });
  const output = { stdout: '', stderr: '' };
  child.stdout.on('data', (chunk: Buffer) => (output.stdout += String(chunk)));
  child.stderr.on('data', (chunk: Buffer) => (output.stderr += String(chunk)));
  const ended = new Promise<Ended>((resolve) => {
    child.on('close', (code) => resolve({ code, ...output }));
  });
  return { child, output, ended };
}

function childrenOf(pid: number): ReturnType<NpmStart['children']> {
  const found: ReturnType<NpmStart['children']> = {
    api: undefined,
    worker: undefined,
    simulator: undefined,
    postgres: undefined,
  };
  for (const name of readdirSync('/proc').filter((entry) => /^\d+$/.test(entry))) {
    try {
      // Field 4, behind the command's name, which is in parentheses and may hold spaces.
      const parent = Number(readFileSync(`/proc/${name}/stat`, 'utf8').split(') ')[1]?.split(' ')[1]);
      if (parent !== pid || !isAlive(Number(name))) continue;
      const command = readFileSync(`/proc/${name}/cmdline`, 'utf8');
      const app = /apps\/(api|worker|simulator)\/main\.ts/.exec(command)?.[1] as keyof typeof found | undefined;
      if (app !== undefined) found[app] = Number(name);
      else if (/bin\/postgres\0/.test(command)) found.postgres = Number(name);
    } catch {
      // It ended meanwhile.
    }
  }
  return found;
}

/** The value of each variable that a process was started with. */
export function environmentOf(pid: number): Map<string, string> {
  const entries = readFileSync(`/proc/${pid}/environ`, 'utf8')
    .split('\0')
    .filter((entry) => entry !== '');
  return new Map(entries.map((entry) => [entry.slice(0, entry.indexOf('=')), entry.slice(entry.indexOf('=') + 1)]));
}
