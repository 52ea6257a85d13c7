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
