import { Script } from 'node:vm';

// A script that runs in node:vm can be stopped after a timeout, with everything it calls, without ending the thread.
const jobName = 'sluice.guardrail';
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
