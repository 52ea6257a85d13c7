import { readdir, readFile } from 'node:fs/promises';
import path from 'node:path';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import { sleep } from '#libs/kernel/sleep.ts';
import { embeddedPostgresError } from './embedded-error.ts';
import { runProgram } from './run-program.ts';

export type ServerProcess = { pid: number; isPostmaster: boolean };

/** An immediate shutdown only has to end processes; a kill needs no cooperation. */
const forcedSteps = [
  { signal: 'SIGQUIT', waitMs: 3_000 },
  { signal: 'SIGKILL', waitMs: 5_000 },
] as const;

/** Children of a dead postmaster notice its death themselves, usually immediately. */
const stragglersWaitMs = 1_000;

/**
 * Ends every Postgres process that still works on the data directory. Call it only while holding the directory's lock,
 * which proves that the Sluice process that started them is dead. The processes are recognised by their command lines
 * and not by the number in postmaster.pid, which after a reboot can belong to any other program.
 */
export async function stopServerProcesses(options: {
  dataDir: string;
  clusterName: string;
  /** The maximum duration of an orderly stop. */
  stopTimeoutMs: number;
  logger: Logger;
}): Promise<void> {
  const { dataDir, clusterName, stopTimeoutMs, logger } = options;
  let processes = await findServerProcesses(dataDir, clusterName);
  if (processes.length === 0) return;
  const orphan = processes.find((process) => process.isPostmaster);
  logger.warn(
    { pid: orphan?.pid, processes: processes.length },
    'stopping a Postgres server that a killed process left running',
  );
  const firstStep =
    orphan === undefined
      ? { signal: undefined, waitMs: stragglersWaitMs }
      : { signal: 'SIGINT' as const, waitMs: stopTimeoutMs };
  for (const { signal, waitMs } of [firstStep, ...forcedSteps]) {
    if (signal !== undefined) signalAll(signal === 'SIGKILL' ? processes : leaders(processes), signal);
    const deadline = Date.now() + waitMs;
    while (processes.length > 0 && Date.now() < deadline) {
      await sleep(25);
      processes = await findServerProcesses(dataDir, clusterName);
    }
    if (processes.length === 0) return;
  }
  throw embeddedPostgresError(
    `A Postgres server that uses ${dataDir} does not stop. Stop the process ${processes[0]?.pid} manually.`,
  );
}

/** The postmaster ends its children in order. Without one, each child is stopped individually. */
function leaders(processes: readonly ServerProcess[]): readonly ServerProcess[] {
  const postmasters = processes.filter((process) => process.isPostmaster);
  return postmasters.length > 0 ? postmasters : processes;
}

function signalAll(processes: readonly ServerProcess[], signal: NodeJS.Signals): void {
  for (const { pid } of processes) {
    try {
      process.kill(pid, signal);
    } catch {
      // The process has ended meanwhile.
    }
  }
}

/**
 * Returns the Postgres processes that work on this data directory, which must be spelled as it was given to the server.
 * They are found by command line: unlike a process's working directory, root can read it in a container without
 * SYS_PTRACE.
 *
 * @testOnly
 */
export async function findServerProcesses(dataDir: string, clusterName: string): Promise<ServerProcess[]> {
  const postmasterPid = await readPostmasterPid(dataDir);
  const processes = process.platform === 'linux' ? await processesFromProc() : await processesFromPs();
  return processes
    .filter(({ command }) => worksOn(command, dataDir, clusterName))
    .map(({ pid }) => ({ pid, isPostmaster: pid === postmasterPid }));
}

/**
 * A postmaster shows its arguments, its children a title with the cluster's name, which is made from the directory.
 * @testOnly
 */
export function worksOn(command: string, dataDir: string, clusterName: string): boolean {
  const isPostmaster = /^\S*\/postgres -D /.test(command) && `${command} `.includes(` -D ${dataDir} `);
  return isPostmaster || command.startsWith(`postgres: ${clusterName}: `);
}

/** The process ID in postmaster.pid, whose process can have ended long ago; undefined if the file does not exist. */
export async function readPostmasterPid(dataDir: string): Promise<number | undefined> {
  const text = await readFile(path.join(dataDir, 'postmaster.pid'), 'utf8').catch(() => '');
  const pid = Number.parseInt(text, 10);
  return Number.isSafeInteger(pid) && pid > 0 ? pid : undefined;
}

type ListedProcess = { pid: number; command: string };

async function processesFromProc(): Promise<ListedProcess[]> {
  const pids = (await readdir('/proc')).filter((name) => /^\d+$/.test(name));
  return Promise.all(
    pids.map(async (pid) => {
      const text = await readFile(`/proc/${pid}/cmdline`, 'utf8').catch(() => ''); // The process has ended meanwhile.
      return { pid: Number(pid), command: text.replaceAll('\0', ' ') };
    }),
  );
}

async function processesFromPs(): Promise<ListedProcess[]> {
  const { output } = await runProgram('ps', ['-axww', '-o', 'pid=,command='], { outputLengthMax: 4_194_304 });
  return parsePsOutput(output);
}

/**
 * Lines of `ps -o pid=,command=`; for systems without /proc.
 * @testOnly
 */
export function parsePsOutput(output: string): ListedProcess[] {
  return output.split('\n').flatMap((line) => {
    const [, pid, command = ''] = /^\s*(\d+)\s+(.*)$/.exec(line) ?? [];
    return pid === undefined ? [] : [{ pid: Number(pid), command }];
  });
}
