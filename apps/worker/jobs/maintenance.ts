import { z } from 'zod';
import type { QueueDefinition } from '#libs/queue/job-queue.ts';

// A schedule sends no payload.
const Nothing = z.unknown().transform((): object => ({}));

/** What has to be done now and then by one worker, whichever it is: pg-boss sends one job a minute. */
export const maintenanceQueue: QueueDefinition<object> = {
  name: 'maintenance',
  payload: Nothing,
  options: {
    retryLimit: 0,
    expireInSeconds: 3_600,
    // Without it, the job of a killed worker would keep the next one out (`exclusive`) until it expires.
    heartbeatSeconds: 10,
    deleteAfterSeconds: 3_600,
    retentionSeconds: 600,
    policy: 'exclusive',
  },
};

export type MaintenanceTask = { name: string; everyMs: number; run: () => Promise<unknown> };

/**
 * Runs the tasks that are due, and begins none once the signal has aborted. Their times are kept in this process only:
 * a task that runs once too often is harmless, and one process that starts anew runs all of them.
 */
export function createMaintenance(
  tasks: readonly MaintenanceTask[],
  deps: { now: () => number; onError: (task: string, error: unknown) => void },
): (signal: AbortSignal) => Promise<void> {
  const lastRun = new Map<string, number>();
  return async (signal) => {
    for (const task of tasks) {
      if (signal.aborted) return;
      if (deps.now() - (lastRun.get(task.name) ?? Number.NEGATIVE_INFINITY) < task.everyMs) continue;
      lastRun.set(task.name, deps.now());
      try {
        await task.run();
      } catch (error) {
        deps.onError(task.name, error);
      }
    }
  };
}
