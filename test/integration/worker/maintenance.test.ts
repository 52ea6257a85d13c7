import { expect, onTestFinished, test } from 'vitest';
import { createMaintenance, type MaintenanceTask } from '#apps/worker/jobs/maintenance.ts';
import { maintenanceQueue } from '#apps/platform/queues.ts';
import { createDatabaseClock } from '#libs/database/database-clock.ts';
import { createLogger } from '#libs/kernel/logging/logger.ts';
import { createJobQueue } from '#libs/queue/job-queue.ts';
import { eventually } from '#test/eventually.ts';
import { useTestDatabase } from '#test/postgres.ts';
import { deleteJobs, withQueue } from '#test/queue-jobs.ts';

const database = useTestDatabase();
const logger = createLogger({ name: 'test', level: 'silent' });

test('each task runs once in the installation, beside a task that does not end, and none by a clock that jumped ahead', async () => {
  const stops: (() => unknown)[] = [];
  const stopAll = async (): Promise<void> => {
    for (const stop of stops.splice(0).toReversed()) await stop();
  };
  onTestFinished(stopAll);
  const runs: string[] = [];
  // A new half minute can begin meanwhile, and then `quick` runs again.
  const ran = (): string =>
    runs
      .filter((name, at) => name !== 'quick' || runs.indexOf(name) === at)
      .toSorted()
      .join();
  const { promise: held, resolve: finish } = Promise.withResolvers<void>();
  const record = (name: string) => (): Promise<void> => Promise.resolve(void runs.push(name));
  const tasks: MaintenanceTask[] = [
    {
      name: 'slow',
      everySeconds: 86_400,
      async run() {
        runs.push('slow');
        await held;
      },
    },
    { name: 'failing', everySeconds: 86_400, run: () => Promise.reject(new Error('no')) },
    { name: 'sweep', everySeconds: 86_400, run: record('sweep') },
    { name: 'quick', everySeconds: 30, run: record('quick'), ignoresClock: true },
  ];
  const start = async (own: () => number): Promise<void> => {
    const { connectionString, db } = database;
    const queue = createJobQueue({
      connectionString,
      role: 'worker',
      queues: [maintenanceQueue],
      logger,
      poolSizeMax: 2,
    });
    await queue.start?.();
    const clock = createDatabaseClock({ ownTime: own, monotonicMs: () => performance.now() });
    const maintenance = createMaintenance(tasks, { db, queue, clock, logger });
    await maintenance.work(new AbortController().signal);
    void maintenance.start?.();
    stops.push(
      () => queue.stop?.(),
      () => maintenance.stop?.(),
    );
  };
  for (let worker = 0; worker < 3; worker += 1) await start(Date.now);
  await eventually(ran, (found) => found === 'quick,slow,sweep', { timeoutMs: 15_000 });
  finish();
  const jobs = () => withQueue(database.connectionString, (boss) => boss.findJobs(maintenanceQueue.name));
  const haveEnded = (found: Awaited<ReturnType<typeof jobs>>): boolean =>
    found.length >= 4 && found.every(({ state }) => state === 'completed');
  await eventually(jobs, haveEnded, { timeoutMs: 15_000 });
  await stopAll();

  await deleteJobs(database.connectionString, maintenanceQueue.name);
  runs.length = 0;
  await start(() => Date.now() - 86_400_000);
  await eventually(jobs, haveEnded, { timeoutMs: 15_000 });
  expect(ran()).toBe('quick');
});
