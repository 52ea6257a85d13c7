import { readdir, readFile, writeFile } from 'node:fs/promises';

/** What the system reports about one process: memory in bytes, processor time of all its threads in seconds. */
export type Usage = { residentPeakBytes: number; cpuSeconds: number };

// USER_HZ is 100 on every Linux that Node runs on (getconf CLK_TCK).
const ticksPerSecond = 100;

/** The peak since the last `resetPeak`, and the processor time since the process began. */
export async function readUsage(pid: number): Promise<Usage> {
  const [status, stat] = await Promise.all([readProc(pid, 'status'), readProc(pid, 'stat')]);
  const peak = /^VmHWM:\s+(\d+) kB$/m.exec(status)?.[1];
  const fields = fieldsIn(stat);
  return {
    residentPeakBytes: peak === undefined ? Number.NaN : Number(peak) * 1_024,
    cpuSeconds: (Number(fields[11]) + Number(fields[12])) / ticksPerSecond,
  };
}

/** The processor time of the main thread since the process began. */
export async function readMainThreadSeconds(pid: number): Promise<number> {
  const stat = fieldsIn(await readProc(pid, `task/${pid}/stat`));
  return (Number(stat[11]) + Number(stat[12])) / ticksPerSecond;
}

/** Resets the peak of resident memory (proc(5), clear_refs). Returns false where the system does not allow it. */
export async function resetPeak(pid: number): Promise<boolean> {
  try {
    await writeFile(`/proc/${pid}/clear_refs`, '5');
    return true;
  } catch {
    return false;
  }
}

/**
 * Processor seconds of a process and of all its children, including ended ones: the Postgres server and its backends.
 */
export async function readFamilyCpuSeconds(pid: number): Promise<number> {
  const parents = await Promise.all((await pids()).map(async (each) => ({ pid: each, stat: await readStat(each) })));
  const ticks = (stat: string[]): number => Number(stat[11]) + Number(stat[12]);
  let total = 0;
  for (const { pid: each, stat } of parents) {
    if (each === pid) total += ticks(stat) + Number(stat[13]) + Number(stat[14]);
    else if (stat[1] === String(pid)) total += ticks(stat);
  }
  return total / ticksPerSecond;
}

async function pids(): Promise<number[]> {
  return (await readdir('/proc')).filter((name) => /^\d+$/.test(name)).map(Number);
}

/** The fields of /proc/PID/stat after the command's name; none for a process that has ended meanwhile. */
async function readStat(pid: number): Promise<string[]> {
  try {
    return fieldsIn(await readProc(pid, 'stat'));
  } catch {
    return [];
  }
}

/** The name of the command, in parentheses, can itself contain spaces and parentheses. */
const fieldsIn = (stat: string): string[] => stat.slice(stat.lastIndexOf(')') + 2).split(' ');

const readProc = (pid: number, file: string): Promise<string> => readFile(`/proc/${pid}/${file}`, 'utf8');
