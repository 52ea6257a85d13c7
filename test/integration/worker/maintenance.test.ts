import { sql } from 'kysely';
import { afterAll, expect, test } from 'vitest';
import { createMaintenance, type MaintenanceTask } from '#apps/worker/jobs/maintenance.ts';
import { maintenanceQueue } from '#apps/platform/queues.ts';
import { createDatabaseClock } from '#libs/database/database-clock.ts';
import { createLogger } from '#libs/kernel/logging/logger.ts';
import { createJobQueue } from '#libs/queue/job-queue.ts';
import { eventually } from '#test/eventually.ts';
import { useTestDatabase } from '#test/postgres.ts';

const database = useTestDatabase();
const logger = createLogger({ name: 'test', level: 'silent' });
const stops: (() => unknown)[] = [];
afterAll(async () => {
  for (const stop of stops.toReversed()) await stop();
});

test('each task runs once in the installation, beside a task that does not end, and none by a clock that jumped ahead', async () => {
  const runs: string[] = [];
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
  await eventually(
    () => runs.toSorted().join(),
    (found) => found === 'quick,slow,sweep',
    { timeoutMs: 15_000 },
  );
  finish();
  const jobs = () =>
    sql<{ count: number }>`select count(*)::int as count from pgboss.job where name = ${maintenanceQueue.name}
      and state = 'completed'`.execute(database.db);
  await eventually(jobs, ({ rows }) => rows[0]?.count === 4, { timeoutMs: 15_000 });
  for (const stop of stops.splice(0).toReversed()) await stop();

  await sql`delete from pgboss.job where name = ${maintenanceQueue.name}`.execute(database.db);
  runs.length = 0;
  await start(() => Date.now() - 86_400_000);
  await eventually(jobs, ({ rows }) => rows[0]?.count === 4, { timeoutMs: 15_000 });
  expect(runs).toEqual(['quick']);
});
