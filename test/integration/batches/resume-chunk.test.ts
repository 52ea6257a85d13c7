import { expect, test } from 'vitest';
import { closeChunk, snoozeChunk, releaseChunk, wakeChunks } from '#libs/batches/chunks/chunk.ts';
import { callSuspect, isClaimedAgain, resumeChunk, type Resumed } from '#libs/batches/chunks/resume-chunk.ts';
import { unsettledLines } from '#libs/batches/chunks/settled-lines.ts';
import type { EventLog } from '#libs/event-log/event-log.ts';
import { useTestDatabase } from '#test/postgres.ts';
import {
  claimChunk,
  closeBatch,
  createRunningBatch,
  loseClaim,
  readBatch,
  readChunks,
  readEvents,
  requestCancel,
  settleLines,
  useBatchEngine,
  type Claim,
} from './running-batch.ts';

const database = useTestDatabase();
const engine = useBatchEngine(database);

const settle = (id: string, lines: readonly number[], chunk = 0): Promise<void> =>
  settleLines(engine, id, lines, chunk);

const takeUp = async (id: string, claim: Claim, eventLog: EventLog = engine.eventLog): Promise<Resumed> =>
  await resumeChunk(eventLog, await readBatch(database, id), claim.id);

/** Loses a claim, claims the chunk again and resumes it. */
async function redeliver(id: string, claim: Claim, chunk = 0): Promise<{ claim: Claim; resumed: Resumed }> {
  await loseClaim(database, claim);
  const next = await claimChunk(database, id, chunk);
  return { claim: next, resumed: await takeUp(id, next) };
}

/** The lines that a resumed chunk still has to run. */
const openLines = (resumed: Resumed): number[] | null =>
  resumed.action === 'run' ? unsettledLines(resumed.chunk) : null;

const recorded = async (id: string) =>
  (await readEvents(database, id)).filter((event) => event.type === 'batch.chunk_redelivered').map(({ data }) => data);

test('a redelivered chunk runs the lines without a result, and the log says how many there are', async () => {
  const id = await createRunningBatch(database, engine, { lines: 5 });
  const first = await claimChunk(database, id, 0);
  await settle(id, [1, 4]);
  const { resumed } = await redeliver(id, first);
  expect(openLines(resumed)).toEqual([2, 3, 5]);
  expect(await recorded(id)).toEqual([{ chunk: 0, attempt: 1, unsettled: 3 }]);
});

test('a process that hung after its claim changes nothing when it goes on', async () => {
  const id = await createRunningBatch(database, engine, { lines: 4 });
  const first = await claimChunk(database, id, 0);
  const { claim: hung } = await redeliver(id, first);
  const { resumed } = await redeliver(id, hung);
  expect(resumed.action).toBe('drop'); // cut in two, because two claims brought nothing
  const before = [await readChunks(database, id), await recorded(id)];
  expect(await takeUp(id, hung)).toEqual({ action: 'drop' });
  expect([await readChunks(database, id), await recorded(id)]).toEqual(before);
});

test('a batch that was cancelled starts no more lines of a redelivered chunk', async () => {
  const id = await createRunningBatch(database, engine, { lines: 4 });
  await loseClaim(database, await claimChunk(database, id, 0));
  const claim = await claimChunk(database, id, 0);
  await requestCancel(engine, id);
  expect(await takeUp(id, claim)).toEqual({ action: 'stop' });
});

test('two claims without a new result split a chunk into two that cover each unsettled line once', async () => {
  const id = await createRunningBatch(database, engine, { lines: 6 });
  const first = await claimChunk(database, id, 0);
  await settle(id, [2]);
  const second = await redeliver(id, first); // a new row: no vain claim
  const third = await redeliver(id, second.claim);
  expect(third.resumed.action).toBe('run');
  expect((await redeliver(id, third.claim)).resumed.action).toBe('drop');
  const halves = await readChunks(database, id);
  expect(halves.map(({ first_line, line_count, state }) => [first_line, line_count, state])).toEqual([
    [1, 3, 'ready'],
    [4, 3, 'ready'],
  ]);
  // Line 2 has its result, and the first claim of a half sees that.
  const events = await recorded(id);
  expect(openLines(await takeUp(id, await claimChunk(database, id, 0)))).toEqual([1, 3]);
  expect(openLines(await takeUp(id, await claimChunk(database, id, 1)))).toEqual([4, 5, 6]);
  expect(await recorded(id)).toEqual(events);
});

test('claims that a worker handed back do not count against the lines', async () => {
  const id = await createRunningBatch(database, engine, { lines: 2 });
  let claim = await claimChunk(database, id, 0);
  for (let times = 0; times < 12; times += 1) {
    await releaseChunk(database.db, claim.id, 'stopped');
    claim = await claimChunk(database, id, 0);
    expect((await takeUp(id, claim)).action).toBe('run');
  }
});

test('a claim after a snooze does not count as one after a crash when the reply to its COMMIT is lost', async () => {
  const id = await createRunningBatch(database, engine, { lines: 2 });
  await snoozeChunk(database.db, (await claimChunk(database, id, 0)).id, 60_000);
  await wakeChunks(database.db, ['ws_1']);
  const claim = await claimChunk(database, id, 0);
  const { eventLog } = engine;
  // It appends no event by which the event log could tell that the first try was committed.
  const losingReply: EventLog = {
    transact: async (command, work) => {
      await eventLog.transact(command, work);
      return await eventLog.transact(command, work);
    },
  };
  expect(await takeUp(id, claim, losingReply)).toMatchObject({ action: 'run', isSuspect: false });
  expect(await recorded(id)).toEqual([]);
  expect((await readChunks(database, id))[0]).toMatchObject({ claims_without_progress: 0 });
});

test('a crash counts against a suspect only if it was being called, so that the wrong line is not blamed', async () => {
  const id = await createRunningBatch(database, engine, { lines: 1 });
  let claim = await claimChunk(database, id, 0);
  const countAfterDeath = async (): Promise<unknown> => {
    const next = await redeliver(id, claim);
    claim = next.claim;
    const [chunk] = await readChunks(database, id);
    const { action } = next.resumed;
    const isSuspect = next.resumed.action === 'run' && next.resumed.isSuspect;
    return [action, isSuspect, chunk?.claims_without_progress];
  };
  expect(await countAfterDeath()).toEqual(['run', false, 1]);
  expect(await countAfterDeath()).toEqual(['run', true, 2]);
  for (let times = 0; times < 9; times += 1) expect(await countAfterDeath()).toEqual(['run', true, 2]); // never called
  for (const count of [3, 4]) {
    await callSuspect(database.db, claim.id);
    expect(await countAfterDeath()).toEqual(['run', true, count]);
  }
  await callSuspect(database.db, claim.id);
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
      const claim = await claimChunk(database, id, chunk);
      const resumed = isClaimedAgain(claim.work.chunk) ? await takeUp(id, claim) : null;
      if (resumed?.action === 'drop') continue;
      const row = (await readChunks(database, id)).find((candidate) => candidate.chunk === chunk);
      const covered = row === undefined ? [] : unsettledLines(row);
      if (resumed?.action === 'poison') poisoned = resumed.line;
      else if (covered.includes(deadly)) {
        // The worker dies before it settles anything.
        deaths += 1;
        if (resumed?.action === 'run' && resumed.isSuspect) await callSuspect(database.db, claim.id);
        await loseClaim(database, claim);
        continue;
      }
      await settle(id, covered, chunk);
      await database.db.transaction().execute((tx) => closeChunk(tx, claim.id));
    }
  }
  expect(poisoned).toBe(deadly);
  expect(await readBatch(database, id)).toMatchObject({ completed: lines, status: 'finalizing' });
  // The first run, and the claims for each split and for the final verdict: bounded, whatever the chunk's size.
  expect(deaths).toBeLessThanOrEqual(2 * Math.ceil(Math.log2(lines)) + 5 + 1);
});

test('a chunk of a process that was given up is ready; in a cancelled batch it is done, and the batch is closed', async () => {
  const running = await createRunningBatch(database, engine, { lines: 2 });
  const cancelled = await createRunningBatch(database, engine, { lines: 2 });
  const claims = [await claimChunk(database, running, 0), await claimChunk(database, cancelled, 0)];
  await requestCancel(engine, cancelled);
  for (const claim of claims) await loseClaim(database, claim);
  expect((await readChunks(database, running))[0]).toMatchObject({ state: 'ready', claim_end: null });
  expect((await readChunks(database, cancelled))[0]).toMatchObject({ state: 'done' });
  await closeBatch(engine, cancelled);
  expect(await readBatch(database, cancelled)).toMatchObject({ status: 'finalizing', finalizing_reason: 'cancelled' });
});
