import { sql } from 'kysely';
import { expect, test } from 'vitest';
import { closeQueue } from '#libs/batches/chunks/batch-queues.ts';
import { resetLostChunks } from '#libs/batches/chunks/lost-jobs.ts';
import { resumeRedelivered, type Redelivery } from '#libs/batches/chunks/redelivery.ts';
import { createSettler } from '#libs/batches/results/settle-results.ts';
import type { EventLog } from '#libs/event-log/event-log.ts';
import { useTestDatabase } from '#test/postgres.ts';
import {
  claimChunk,
  createRunningBatch,
  lineResult,
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

async function settle(id: string, lines: readonly number[], chunk = 0): Promise<void> {
  const { signal } = new AbortController();
  const deps = {
    ...engine,
    logger: silent,
    signal,
    finishSmallBatch: () => Promise.resolve(),
    remakePartition: () => Promise.resolve(),
  };
  const settler = createSettler(deps, { id, workspaceId: 'ws_1' });
  for (const line of lines) settler.add(lineResult(id, line, { chunk }));
  await settler.flush();
}

async function takeUp(id: string, claim: Claim, chunk = 0, eventLog: EventLog = engine.eventLog): Promise<Redelivery> {
  const row = (await readChunks(database, id)).find((candidate) => candidate.chunk === chunk);
  if (row === undefined) throw new Error(`there is no chunk ${chunk}`);
  return await resumeRedelivered({ eventLog, queue: engine.queue }, await readBatch(database, id), row, claim);
}

/** Loses a claim, claims the chunk again and resumes it. */
async function redeliver(id: string, claim: Claim, chunk = 0): Promise<{ claim: Claim; redelivery: Redelivery }> {
  await loseClaim(engine, claim);
  const next = await claimChunk(database, engine, id, chunk);
  return { claim: next, redelivery: await takeUp(id, next, chunk) };
}

const recorded = async (id: string) =>
  (await readEvents(database, id)).filter((event) => event.type === 'batch.chunk_redelivered').map(({ data }) => data);

/** What a worker writes when it is the suspect's turn (run-chunk.ts). */
async function callSuspect(id: string, chunk: number): Promise<void> {
  await database.db
    .updateTable('batch_chunk')
    .set({ handed_back: false })
    .where('batch_id', '=', id)
    .where('chunk', '=', chunk)
    .execute();
}

test('a redelivered chunk runs the lines without a result, and the log says how many there are', async () => {
  const id = await createRunningBatch(database, engine, { lines: 5 });
  const first = await claimChunk(database, engine, id, 0);
  await settle(id, [1, 4]);
  const { redelivery } = await redeliver(id, first);
  expect(redelivery).toMatchObject({ action: 'run', settled: new Set([1, 4]) });
  expect(await recorded(id)).toEqual([{ chunk: 0, attempt: 1, unsettled: 3 }]);
});

test('a process that hung after its claim changes nothing when it goes on', async () => {
  const id = await createRunningBatch(database, engine, { lines: 4 });
  const first = await claimChunk(database, engine, id, 0);
  const { claim: hung } = await redeliver(id, first);
  const { redelivery } = await redeliver(id, hung);
  expect(redelivery.action).toBe('drop'); // cut in two, because two claims brought nothing
  const before = [await readChunks(database, id), await recorded(id)];
  expect(await takeUp(id, hung)).toEqual({ action: 'drop' });
  expect([await readChunks(database, id), await recorded(id)]).toEqual(before);
});

test('a batch that was cancelled starts no more lines of a redelivered chunk', async () => {
  const id = await createRunningBatch(database, engine, { lines: 4 });
  const first = await claimChunk(database, engine, id, 0);
  await requestCancel(engine, id);
  expect((await redeliver(id, first)).redelivery).toEqual({ action: 'stop' });
});

test('two claims without a new result split a chunk into two that cover each unsettled line once', async () => {
  const id = await createRunningBatch(database, engine, { lines: 6 });
  const first = await claimChunk(database, engine, id, 0);
  await settle(id, [2]);
  const second = await redeliver(id, first); // a new row: no vain claim
  const third = await redeliver(id, second.claim);
  expect(third.redelivery.action).toBe('run');
  expect((await redeliver(id, third.claim)).redelivery.action).toBe('drop');
  const halves = await readChunks(database, id);
  expect(halves.map(({ first_line, line_count, state }) => [first_line, line_count, state])).toEqual([
    [1, 3, 'pending'],
    [4, 3, 'pending'],
  ]);
  // Line 2 has its result, and the first claim of a half sees that.
  const claim = await claimChunk(database, engine, id, 0);
  expect(claim.retryCount).toBe(0);
  expect(await takeUp(id, claim)).toMatchObject({ action: 'run', settled: new Set([2]) });
});

test('claims that a worker handed back do not count against the lines', async () => {
  const id = await createRunningBatch(database, engine, { lines: 2 });
  let claim = await claimChunk(database, engine, id, 0);
  for (let times = 0; times < 12; times += 1) {
    await database.db.updateTable('batch_chunk').set({ handed_back: true }).where('batch_id', '=', id).execute();
    const next = await redeliver(id, claim);
    expect(next.redelivery.action).toBe('run');
    claim = next.claim;
  }
});

test('a first claim after a snooze does not count as one after a crash when the reply to its COMMIT is lost', async () => {
  const id = await createRunningBatch(database, engine, { lines: 2 });
  const claim = await claimChunk(database, engine, id, 0);
  await database.db
    .updateTable('batch_chunk')
    .set({ generation: 1, handed_back: true })
    .where('batch_id', '=', id)
    .execute();
  const { eventLog } = engine;
  // It appends no event by which the event log could tell that the first try was committed.
  const losingReply: EventLog = {
    transact: async (command, work) => {
      await eventLog.transact(command, work);
      return await eventLog.transact(command, work);
    },
  };
  expect(await takeUp(id, claim, 0, losingReply)).toMatchObject({ action: 'run', isSuspect: false });
  expect(await recorded(id)).toEqual([]);
  expect((await readChunks(database, id))[0]).toMatchObject({ redeliveries_without_progress: 0 });
});

test('a crash counts against a suspect only if it was being called, so that the wrong line is not blamed', async () => {
  const id = await createRunningBatch(database, engine, { lines: 1 });
  let claim = await claimChunk(database, engine, id, 0);
  const countAfterDeath = async (): Promise<unknown> => {
    const next = await redeliver(id, claim);
    claim = next.claim;
    const [chunk] = await readChunks(database, id);
    const { action } = next.redelivery;
    const isSuspect = next.redelivery.action === 'run' && next.redelivery.isSuspect;
    return [action, isSuspect, chunk?.redeliveries_without_progress];
  };
  expect(await countAfterDeath()).toEqual(['run', false, 1]);
  expect(await countAfterDeath()).toEqual(['run', true, 2]);
  for (let times = 0; times < 9; times += 1) expect(await countAfterDeath()).toEqual(['run', true, 2]); // never called
  for (const count of [3, 4]) {
    await callSuspect(id, 0);
    expect(await countAfterDeath()).toEqual(['run', true, count]);
  }
  await callSuspect(id, 0);
  expect(await countAfterDeath()).toEqual(['poison', false, 5]);
});

test('a line that ends its worker each time is isolated, and every other line is run', async () => {
  const lines = 9;
  const deadly = 7;
  const id = await createRunningBatch(database, engine, { lines });
  let deaths = 0;
  let poisoned: number | undefined;
  const isOpen = async () => (await readChunks(database, id)).filter(({ state }) => state !== 'done');
  for (let open = await isOpen(); open.length > 0 && deaths < 60; open = await isOpen()) {
    for (const { chunk } of open) {
      const claim = await claimChunk(database, engine, id, chunk);
      const redelivery = claim.retryCount > 0 || chunk > 0 || deaths > 1 ? await takeUp(id, claim, chunk) : null;
      if (redelivery?.action === 'drop') continue;
      const row = (await readChunks(database, id)).find((candidate) => candidate.chunk === chunk);
      const covered = Array.from({ length: row?.line_count ?? 0 }, (_value, index) => (row?.first_line ?? 0) + index);
      if (redelivery?.action === 'poison') poisoned = redelivery.line;
      else if (covered.includes(deadly)) {
        // The worker dies before it settles anything.
        deaths += 1;
        if (redelivery?.action === 'run' && redelivery.isSuspect) await callSuspect(id, chunk);
        await loseClaim(engine, claim);
        continue;
      }
      await settle(id, covered, chunk);
      await database.db
        .updateTable('batch_chunk')
        .set({ state: 'done' })
        .where('batch_id', '=', id)
        .where('chunk', '=', chunk)
        .execute();
    }
  }
  expect(poisoned).toBe(deadly);
  expect(await readBatch(database, id)).toMatchObject({ completed: lines, status: 'finalizing' });
  // The first run, and the claims for each split and for the final verdict: bounded, whatever the chunk's size.
  expect(deaths).toBeLessThanOrEqual(2 * Math.ceil(Math.log2(lines)) + 5 + 1);
});

test('a chunk that lost its job is enqueued again; in a cancelled batch it becomes done and the batch is closed', async () => {
  const running = await createRunningBatch(database, engine, { lines: 2 });
  const cancelled = await createRunningBatch(database, engine, { lines: 2 });
  await claimChunk(database, engine, running, 0);
  await claimChunk(database, engine, cancelled, 0);
  await requestCancel(engine, cancelled);
  await sql`delete from pgboss.job where data ->> 'batch_id' in (${running}, ${cancelled})`.execute(database.db);
  await resetLostChunks(database.db, engine.queue, silent);
  expect((await readChunks(database, running))[0]).toMatchObject({ state: 'pending', generation: 1 });
  expect((await readChunks(database, cancelled))[0]).toMatchObject({ state: 'done' });
  const { rows } = await sql<{ batch_id: string }>`
    select data ->> 'batch_id' as batch_id from pgboss.job
    where name = ${closeQueue.name} and data ->> 'batch_id' in (${running}, ${cancelled})`.execute(database.db);
  expect(rows).toEqual([{ batch_id: cancelled }]);
});
