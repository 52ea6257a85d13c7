import { Script } from 'node:vm';

// A script that node:vm runs can be stopped by time, with whatever it calls, without ending the thread.
const jobName = 'sluice.guardrail';
let job: () => void = () => undefined;
const script = new Script(`globalThis[Symbol.for('${jobName}')]()`);
Object.defineProperty(globalThis, Symbol.for(jobName), { value: () => job() });

/** Runs `work`, which must not wait for anything, for at most `timeoutMs`; false when it was stopped. Throws what it throws. */
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

/** What is left of the time that checks of tenants may take of one call; shared by all of them. */
export type WorkBudget = {
  leftMs: number;
  /** For waiting, which holds up nobody but the caller; and a batch's place among the lines under way. */
  webhooksLeftMs: number;
};

// Nothing else runs while a tenant's expressions and schemas do; sound ones take microseconds.
const workMs = 200;

const webhooksMs = 60_000;

export const createWorkBudget = (webhooksLeftMs = webhooksMs): WorkBudget => ({ leftMs: workMs, webhooksLeftMs });

/** `runWithin` what is left of a budget, and at most `timeoutMs` of it. */
export function runOn(budget: WorkBudget, work: () => void, timeoutMs = budget.leftMs): boolean {
  const limitMs = Math.ceil(Math.min(timeoutMs, budget.leftMs));
  if (limitMs <= 0) return false;
  const start = performance.now();
  try {
    return runWithin(work, limitMs);
  } finally {
    budget.leftMs -= performance.now() - start;
  }
}
