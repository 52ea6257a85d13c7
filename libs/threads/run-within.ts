import { Script } from 'node:vm';

// A script that runs in node:vm can be stopped after a timeout, with everything it calls, without ending the thread.
const jobName = 'sluice.limited-work';
let job: () => void = () => undefined;
const script = new Script(`globalThis[Symbol.for('${jobName}')]()`);
Object.defineProperty(globalThis, Symbol.for(jobName), { value: () => job() });

/** Runs synchronous `work` for at most `timeoutMs`. Returns false when it was stopped. Throws what it throws. */
export function runWithin(work: () => void, timeoutMs: number): boolean {
  job = work;
  try {
    script.runInThisContext({ timeout: timeoutMs });
    return true;
  } catch (error) {
    if (error instanceof Error && 'code' in error && error.code === 'ERR_SCRIPT_EXECUTION_TIMEOUT') return false;
    throw error;
  } finally {
    job = () => undefined;
  }
}

const attemptsMax = 4;

/**
 * Whether work finishes in time. `prepare` returns the work and is called before each attempt, outside the limit. The
 * limit is wall time and threads have a low priority, so on a busy machine work can be stopped that has hardly run.
 * Unless the thread used half the time, it is tried again with twice the time.
 */
export function finishesInTime(prepare: () => () => void, timeoutMs: number): boolean {
  for (let attempt = 0; attempt < attemptsMax; attempt += 1) {
    const work = prepare();
    const before = process.threadCpuUsage();
    if (runWithin(work, timeoutMs * 2 ** attempt)) return true;
    const { user, system } = process.threadCpuUsage(before);
    if ((user + system) / 1_000 >= timeoutMs / 2) return false;
  }
  return false;
}
