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

export type Chore = { name: string; everyMs: number; run: () => Promise<unknown> };

/**
 * Runs the chores that are due, and begins none once the signal has aborted. Their times are kept in this process only:
 * a chore that runs once too often is harmless, and one process that starts anew runs all of them.
 */
export function createChores(
  chores: readonly Chore[],
  deps: { now: () => number; onError: (chore: string, error: unknown) => void },
): (signal: AbortSignal) => Promise<void> {
  const lastRun = new Map<string, number>();
  return async (signal) => {
    for (const chore of chores) {
      if (signal.aborted) return;
      if (deps.now() - (lastRun.get(chore.name) ?? Number.NEGATIVE_INFINITY) < chore.everyMs) continue;
      lastRun.set(chore.name, deps.now());
      try {
        await chore.run();
      } catch (error) {
        deps.onError(chore.name, error);
      }
    }
  };
}
