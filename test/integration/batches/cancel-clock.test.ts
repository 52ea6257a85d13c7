import { sql } from 'kysely';
import { expect, test } from 'vitest';
import { createBatches } from '#libs/batches/batches.ts';
import { closeBatch } from '#libs/batches/close-batch.ts';
import { closeQueue } from '#libs/batches/batch-queues.ts';
import { useTestDatabase } from '#test/postgres.ts';
import { claimChunk, createRunningBatch, readBatch, useBatchEngine } from './running-batch.ts';

const database = useTestDatabase();
const engine = useBatchEngine(database);
const metadata = { actor: { type: 'system' as const, id: 'test' } };

// A fail-over to a standby whose clock is two seconds behind: the events of the last two seconds lie in the future, so
// `cancelling_at` is the batch's last event and not the clock. The job "ten minutes after the cancel" is due by the clock.
test('a batch that is cancelled just after the clock was set back ends ten minutes later, although a line hangs', async () => {
  const { db } = database;
  const id = await createRunningBatch(database, engine, { lines: 1 });
  await claimChunk(database, engine, id, 0); // its worker hangs
  await sql`update batch set updated_at = now() + interval '2 seconds' where id = ${id}`.execute(db);
  const releaseTarget = async (): Promise<void> => {};
  const batches = createBatches({
    db,
    eventLog: engine.eventLog,
    queue: engine.queue,
    expiresAfterMs: 86_400_000,
    releaseTarget,
  });
  await batches.cancel('ws_1', id, metadata);
  const { rows } = await sql<{
    late: Date;
  }>`select max(start_after) as late from pgboss.job where name = ${closeQueue.name}`.execute(db);
  const late = rows[0]?.late as Date;
  // The moment at which that job runs: everything is so much in the past.
  const passedMs = late.getTime() + 1_000 - Date.now();
  await sql`update batch set updated_at = updated_at - ${`${passedMs} ms`}::interval,
    cancelling_at = cancelling_at - ${`${passedMs} ms`}::interval where id = ${id}`.execute(db);
  await sql`delete from pgboss.job where name = ${closeQueue.name}`.execute(db);
  await closeBatch({ db, eventLog: engine.eventLog, queue: engine.queue, releaseTarget }, id, 'job');
  const { status } = await readBatch(database, id);
  const { rows: next } = await sql`select from pgboss.job where name = ${closeQueue.name}`.execute(db);
  // Either it is over, or somebody will look again.
  expect({ isOver: status === 'finalizing', looksAgain: next.length > 0 }).not.toEqual({
    isOver: false,
    looksAgain: false,
  });
});
