import { PgBoss } from 'pg-boss';

/** Uses the queue as an operator does, without the queues' workers. */
export async function withQueue<Result>(
  connectionString: string,
  use: (boss: PgBoss) => Promise<Result>,
): Promise<Result> {
  const boss = new PgBoss({ connectionString, max: 1, supervise: false, schedule: false, migrate: false });
  boss.on('error', () => {}); // the call rejects
  await boss.start();
  try {
    return await use(boss);
  } finally {
    await boss.stop({ graceful: false });
  }
}

/** Deletes all jobs, of one queue or of all. */
export const deleteJobs = (connectionString: string, queue?: string): Promise<number | null> =>
  withQueue(connectionString, (boss) => boss.deleteAllJobs(queue));
