import { sql } from 'kysely';
import { beforeEach, describe, expect, test } from 'vitest';
import { chunkQueue } from '#libs/batches/chunks/batch-queues.ts';
import { chunkJobId, enqueueChunks } from '#libs/batches/chunks/dispatch-chunks.ts';
import { resetLostChunks } from '#libs/batches/chunks/lost-jobs.ts';
import { snoozeChunk, wakeSnoozedChunks, wakeWorkspaceChunks } from '#libs/batches/chunks/snooze-chunk.ts';
import { findBatchWaits } from '#libs/batches/find-batch-waits.ts';
import { isRedelivered, resumeRedelivered, type ChunkRow } from '#libs/batches/chunks/redelivery.ts';
import { useTestDatabase } from '#test/postgres.ts';
import {
  claimChunk,
  createRunningBatch,
  loseClaim,
  readBatch,
  readChunks,
  readEvents,
  requestCancel,
  silent,
  useBatchEngine,
  type Claim,
} from './running-batch.ts';

const database = useTestDatabase();
const engine = useBatchEngine(database);

const batchOf = (id: string) => ({ id, workspace_id: 'ws_1' });
const jobOf = (id: string, claim: Claim) => ({ ...claim, payload: { batch_id: id, chunk: 0, generation: 0 } });
const hourMs = 3_600_000;

/** The jobs of a batch that can be claimed, now or later. */
async function jobsOf(batchId: string) {
  const { rows } = await sql<{ id: string; isDue: boolean; group_id: string }>`
    select id, start_after <= now() as "isDue", group_id from pgboss.job
    where name = ${chunkQueue.name} and state < 'active' and data ->> 'batch_id' = ${batchId}
    order by created_on`.execute(database.db);
  return rows;
}

async function createClaimed(): Promise<{ id: string; claim: Claim }> {
  const id = await createRunningBatch(database, engine, { lines: 3 });
  return { id, claim: await claimChunk(database, engine, id, 0) };
}

test('a snoozed chunk comes back later under a new job, and no crash is counted', async () => {
  const { id, claim } = await createClaimed();
  await snoozeChunk(engine, jobOf(id, claim), batchOf(id), hourMs);
  expect(await jobsOf(id)).toEqual([{ id: chunkJobId(id, 0, 1), isDue: false, group_id: id }]);
  expect(await readChunks(database, id)).toMatchObject([{ state: 'enqueued', generation: 1, handed_back: true }]);
  const [wait, ...others] = await findBatchWaits(database.db, await readBatch(database, id));
  expect([wait, others]).toMatchObject([{ reason: 'snoozed', until: expect.any(Number) }, []]);
  // It is neither reset as lost nor enqueued again.
  await resetLostChunks(database.db, engine.queue, silent);
  await enqueueChunks(database.db, engine.queue, { ofBatch: 10, ofAll: 1_000 });
  expect(await jobsOf(id)).toHaveLength(1);
  await database.db.transaction().execute((tx) => wakeSnoozedChunks(tx, id));
  expect(await jobsOf(id)).toMatchObject([{ isDue: true }]);

  const next = await claimChunk(database, engine, id, 0);
  const [chunk] = await readChunks(database, id);
  expect(chunk && isRedelivered(chunk, next)).toBe(true);
  const taken = await resumeRedelivered(engine, await readBatch(database, id), chunk as ChunkRow, next);
  expect(taken).toMatchObject({ action: 'run', settled: new Set() });
  expect(await readChunks(database, id)).toMatchObject([{ redeliveries_without_progress: 0, handed_back: false }]);
  // An auditor can tell a snooze from a crash that happens afterwards.
  const recorded = async () => (await readEvents(database, id)).slice(2);
  const snoozed = { type: 'batch.chunk_snoozed', data: { chunk: 0, unsettled: 3, resume_at: expect.any(String) } };
  expect(await recorded()).toEqual([snoozed]);
  await loseClaim(engine, next);
  const again = await claimChunk(database, engine, id, 0);
  const [crashed] = await readChunks(database, id);
  await resumeRedelivered(engine, await readBatch(database, id), crashed as ChunkRow, again);
  const crash = { type: 'batch.chunk_redelivered', data: { chunk: 0, attempt: 1, unsettled: 3 } };
  expect(await recorded()).toEqual([snoozed, crash]);
});

test('a chunk whose claim was lost is not snoozed', async () => {
  const { id, claim } = await createClaimed();
  await loseClaim(engine, claim);
  await snoozeChunk(engine, jobOf(id, claim), batchOf(id), hourMs);
  expect(await jobsOf(id)).toEqual([{ id: chunkJobId(id, 0, 0), isDue: true, group_id: id }]);
  expect(await readChunks(database, id)).toMatchObject([{ generation: 0, handed_back: false }]);
});

test('a snoozed chunk of a batch that was cancelled meanwhile is due at once, to be closed', async () => {
  const { id, claim } = await createClaimed();
  await requestCancel(engine, id);
  await snoozeChunk(engine, jobOf(id, claim), batchOf(id), hourMs);
  expect(await jobsOf(id)).toMatchObject([{ isDue: true }]);
});

test('the snoozed chunks of a workspace are due at once when one of its credentials changes', async () => {
  const { id, claim } = await createClaimed();
  await snoozeChunk(engine, jobOf(id, claim), batchOf(id), hourMs);
  await wakeWorkspaceChunks(database.db, ['ws_2']);
  expect(await jobsOf(id)).toMatchObject([{ isDue: false }]);
  await wakeWorkspaceChunks(database.db, ['ws_1']);
  expect(await jobsOf(id)).toMatchObject([{ isDue: true }]);
});

test('snoozed chunks count towards the jobs of their own batch only', async () => {
  const id = await createRunningBatch(database, engine, { lines: 6, linesPerChunk: 1 });
  const other = await createRunningBatch(database, engine, { lines: 1 });
  await enqueueChunks(database.db, engine.queue, { ofBatch: 2, ofAll: 1_000 });
  expect(await jobsOf(id)).toHaveLength(2);
  expect(await jobsOf(other)).toHaveLength(1);
  await enqueueChunks(database.db, engine.queue, { ofBatch: 2, ofAll: 1_000 });
  expect(await jobsOf(id)).toHaveLength(2);
  await sql`update pgboss.job set start_after = now() + interval '1 hour'
    where name = ${chunkQueue.name} and group_id = ${id} and state < 'active'`.execute(database.db);
  await enqueueChunks(database.db, engine.queue, { ofBatch: 2, ofAll: 1_000 });
  expect(await jobsOf(id)).toHaveLength(2);
  await database.db.transaction().execute((tx) => wakeSnoozedChunks(tx, other));
  expect(await jobsOf(id)).toMatchObject([{ isDue: false }, { isDue: false }]);
});

test('all batches together have no more jobs ready than allowed, and the oldest come first', async () => {
  await sql`delete from pgboss.job where name = ${chunkQueue.name}`.execute(database.db);
  await sql`update batch_chunk set state = 'done'`.execute(database.db);
  const ids: string[] = [];
  for (let n = 0; n < 4; n += 1) ids.push(await createRunningBatch(database, engine, { lines: 5, linesPerChunk: 1 }));
  await enqueueChunks(database.db, engine.queue, { ofBatch: 2, ofAll: 5 });
  const counts = await Promise.all(ids.map(async (id) => (await jobsOf(id)).length));
  expect(counts).toEqual([2, 2, 1, 0]);
});

test('however many chunks are snoozed, a batch that has not begun gets its jobs', async () => {
  await sql`delete from pgboss.job where name = ${chunkQueue.name}`.execute(database.db);
  await sql`update batch_chunk set state = 'done'`.execute(database.db);
  const throttled = await createRunningBatch(database, engine, { lines: 4, linesPerChunk: 1 });
  for (let chunk = 0; chunk < 4; chunk += 1) {
    const claim = await claimChunk(database, engine, throttled, chunk);
    const job = { ...claim, payload: { batch_id: throttled, chunk, generation: 0 } };
    await snoozeChunk(engine, job, batchOf(throttled), hourMs);
  }
  await sql`update pgboss.job set start_after = now() where name = ${chunkQueue.name}`.execute(database.db);
  expect(await jobsOf(throttled)).toEqual(Array(4).fill(expect.objectContaining({ isDue: true })));
  const other = await createRunningBatch(database, engine, { lines: 3, linesPerChunk: 1 });
  expect(await enqueueChunks(database.db, engine.queue, { ofBatch: 4, ofAll: 2 })).toBe(6);
  expect(await jobsOf(other)).toHaveLength(2);
});

test('batches whose jobs fill the queue still let another one enqueue its first job', async () => {
  await sql`delete from pgboss.job where name = ${chunkQueue.name}`.execute(database.db);
  await sql`update batch_chunk set state = 'done'`.execute(database.db);
  const ids: string[] = [];
  for (let n = 0; n < 4; n += 1) ids.push(await createRunningBatch(database, engine, { lines: 5, linesPerChunk: 1 }));
  const release = () => enqueueChunks(database.db, engine.queue, { ofBatch: 4, ofAll: 8 });
  const jobs = () => Promise.all(ids.map(async (id) => (await jobsOf(id)).length));
  await release();
  expect(await jobs()).toEqual([4, 4, 0, 0]);
  await release();
  expect(await jobs()).toEqual([4, 4, 1, 1]);
  ids.push(await createRunningBatch(database, engine, { lines: 1 }));
  await release();
  expect(await jobs()).toEqual([4, 4, 1, 1, 1]);
});

describe('when the batches of one workspace have filled the queue', () => {
  const limits = { ofBatch: 4, ofAll: 2 };
  const release = () => enqueueChunks(database.db, engine.queue, limits);
  const prioritiesOf = async (batchId: string): Promise<number[]> => {
    const { rows } = await sql<{ priority: number }>`
      select priority from pgboss.job where name = ${chunkQueue.name} and group_id = ${batchId} and state <= 'active'
      order by priority desc`.execute(database.db);
    return rows.map(({ priority }) => priority);
  };
  /** As if the jobs of a batch had been waiting, or running, for a while. */
  const age = (batchId: string, state: 'created' | 'active') =>
    sql`update pgboss.job set created_on = now() - interval '1 minute', start_after = now() - interval '1 minute',
      state = ${state}, started_on = case when ${state} = 'active' then now() end
      where name = ${chunkQueue.name} and group_id = ${batchId}`.execute(database.db);

  beforeEach(async () => {
    await sql`delete from pgboss.job where name = ${chunkQueue.name}`.execute(database.db);
    await sql`update batch_chunk set state = 'done'`.execute(database.db);
    await sql`update batch set status = 'completed'`.execute(database.db);
    for (let n = 0; n < 12; n += 1) await createRunningBatch(database, engine, { lines: 2, linesPerChunk: 1 });
    for (let pass = 0; pass < 4; pass += 1) await release();
  });

  test('a batch of another workspace gets a reserved job, and when its job has ended the next one', async () => {
    const small = await createRunningBatch(database, engine, { lines: 2, linesPerChunk: 1, workspaceId: 'ws_2' });
    await release();
    expect(await prioritiesOf(small)).toEqual([1]);
    await release();
    expect(await prioritiesOf(small)).toEqual([1]);
    await sql`update pgboss.job set state = 'completed' where group_id = ${small}`.execute(database.db);
    await release();
    expect(await prioritiesOf(small)).toEqual([1]);
  });

  test('two batches of another workspace get one, although its first one hangs', async () => {
    const hanging = await createRunningBatch(database, engine, { lines: 2, linesPerChunk: 1, workspaceId: 'ws_2' });
    await release();
    await age(hanging, 'active');
    const ids = [];
    for (let n = 0; n < 2; n += 1)
      ids.push(await createRunningBatch(database, engine, { lines: 1, workspaceId: 'ws_2' }));
    for (let pass = 0; pass < 3; pass += 1) await release();
    const all = await Promise.all([hanging, ...ids].map(prioritiesOf));
    expect(all.flat()).toEqual([1, 1]);
  });

  test('a job of another workspace that waits behind them is reserved after a second', async () => {
    const small = await createRunningBatch(database, engine, { lines: 3, linesPerChunk: 1, workspaceId: 'ws_2' });
    await enqueueChunks(database.db, engine.queue, { ofBatch: 4, ofAll: 1_000 });
    expect(await prioritiesOf(small)).toEqual([1, 0, 0]);
    await release();
    expect(await prioritiesOf(small)).toEqual([1, 0, 0]);
    await age(small, 'created');
    await release();
    expect(await prioritiesOf(small)).toEqual([1, 1, 0]);
    await release();
    expect(await prioritiesOf(small)).toEqual([1, 1, 0]);
  });

  test('a snoozed chunk of another workspace is reserved when it is due', async () => {
    const small = await createRunningBatch(database, engine, { lines: 1, workspaceId: 'ws_2' });
    await release();
    await sql`update pgboss.job set priority = -1, start_after = now() + interval '1 hour' where group_id = ${small}`.execute(
      database.db,
    );
    await release();
    expect(await prioritiesOf(small)).toEqual([-1]);
    await age(small, 'created');
    await release();
    expect(await prioritiesOf(small)).toEqual([1]);
  });
});
