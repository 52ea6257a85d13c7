import { sql } from 'kysely';
import { expect, test } from 'vitest';
import { allQueues } from '#apps/platform/queues.ts';
import { linesTickets, sendTickets } from '#libs/batches/chunks/tickets.ts';
import { createLogger } from '#libs/kernel/logging/logger.ts';
import { createJobQueue } from '#libs/queue/job-queue.ts';
import { sleep } from '#libs/kernel/sleep.ts';
import { useTestDatabase } from '#test/postgres.ts';

const database = useTestDatabase();
const logger = createLogger({ name: 'test', level: 'silent' });

// Each pass of pg-boss's monitor reads ended jobs too, so they are not kept for long.
test('a ticket that ended two hours ago is deleted, an hour after the last pass that deleted', async ({
  onTestFinished,
}) => {
  const { connectionString, db } = database;
  const queue = createJobQueue({ connectionString, role: 'worker', queues: allQueues, logger, poolSizeMax: 2 });
  onTestFinished(async () => await queue.stop?.());
  await queue.start?.();
  const left = async (): Promise<number> => {
    const { rows } = await sql<{ n: number }>`
      select count(*)::int as n from pgboss.job where name = ${linesTickets.name} and state = 'completed'`.execute(db);
    return rows[0]?.n ?? -1;
  };
  // The first pass, which a queue gets when it was never maintained.
  for (;;) {
    const { rows } =
      await sql`select from pgboss.queue where name = ${linesTickets.name} and maintain_on is not null`.execute(db);
    if (rows.length > 0) break;
    await sleep(100);
  }
  await db.transaction().execute((tx) => sendTickets(queue, tx, 'lines', 1));
  await sql`update pgboss.job set state = 'completed', completed_on = now() - interval '2 hours' where name = ${linesTickets.name}`.execute(
    db,
  );
  // An hour passes.
  await sql`update pgboss.queue set maintain_on = maintain_on - interval '1 hour'`.execute(db);
  for (let waited = 0; waited < 15_000 && (await left()) > 0; waited += 250) await sleep(250);
  expect(await left()).toBe(0);
});
