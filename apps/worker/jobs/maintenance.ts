import { z } from 'zod';
import type { QueueDefinition } from '#libs/queue/job-queue.ts';

// A schedule sends no payload.
const Nothing = z.unknown().transform((): object => ({}));

/** Tasks that one of the workers does from time to time. pg-boss sends one job a minute. */
export const maintenanceQueue: QueueDefinition<object> = {
  name: 'maintenance',
  payload: Nothing,
  options: {
    retryLimit: 0,
    expireInSeconds: 3_600,
    // Without it, the job of a killed worker would block the next one (`exclusive`) until it expires.
    heartbeatSeconds: 10,
    deleteAfterSeconds: 3_600,
    retentionSeconds: 600,
    policy: 'exclusive',
  },
};

export type MaintenanceTask = { name: string; everyMs: number; run: () => Promise<unknown> };

/**
 * Runs the tasks that are due, and starts none once the signal has aborted. Their times are only kept in this process: it
 * does no harm to run a task too often, and a restarted process runs all of them.
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
