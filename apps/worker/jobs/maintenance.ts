import type { Kysely } from 'kysely';
import { readClock, type DatabaseClock } from '#libs/database/database-clock.ts';
import type { Database } from '#libs/database/schema.ts';
import { createBackgroundLoop } from '#libs/kernel/background-loop.ts';
import type { Part } from '#libs/kernel/lifecycle.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import type { JobQueue } from '#libs/queue/job-queue.ts';
import { maintenanceQueue, quickTaskPriority } from '../../platform/queues.ts';

export type MaintenanceTask = {
  name: string;
  everySeconds: number;
  run: () => Promise<unknown>;
  /** Whether the task deletes or expires nothing by the database's clock. */
  ignoresClock?: true;
};

const offerEveryMs = 30_000;
/** Tasks that are due this often are quick. They have a dedicated slot, so they never wait for a sweep of all files. */
const quickSeconds = 60;

/**
 * Runs each task once per interval in the whole installation: every worker offers its job to the queue, which accepts
 * the first one of each interval. A slow task therefore delays no other one, and a task that is still running is not
 * started again.
 */
export function createMaintenance(
  tasks: readonly MaintenanceTask[],
  deps: { db: Kysely<Database>; queue: JobQueue; clock: Pick<DatabaseClock, 'set' | 'jumpedAhead'>; logger: Logger },
): Part & { work: (stopping: AbortSignal) => Promise<void> } {
  const { db, queue, clock, logger } = deps;

  async function offer(): Promise<void> {
    for (const { name, everySeconds } of tasks) {
      const priority = everySeconds <= quickSeconds ? quickTaskPriority : 0;
      const options = { singletonSeconds: everySeconds, priority };
      await queue.enqueue(db, maintenanceQueue, { task: name }, options);
    }
  }

  async function run(name: string): Promise<void> {
    const task = tasks.find((each) => each.name === name);
    if (task === undefined) return;
    try {
      if (task.ignoresClock !== true) {
        await readClock(db, clock);
        if (clock.jumpedAhead())
          return logger.warn({ task: name }, 'task was skipped because the clock of the database jumped ahead');
      }
      await task.run();
    } catch (error) {
      logger.error({ err: error, task: name }, 'maintenance task failed');
    }
  }

  return {
    ...createBackgroundLoop({ name: 'maintenance', periodMs: offerEveryMs, run: offer, logger }),
    async work(stopping) {
      const handler = async ({ payload }: { payload: { task: string } }): Promise<void> => {
        if (!stopping.aborted) await run(payload.task);
      };
      const lanes = [{ minPriority: quickTaskPriority }, { maxPriority: quickTaskPriority - 1 }];
      for (const priorities of lanes) await queue.work(maintenanceQueue, { concurrency: 1, priorities }, handler);
    },
  };
}
