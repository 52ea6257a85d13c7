import { expect, test } from 'vitest';
import type { BatchDetail } from '#libs/contracts/batches/batches.ts';
import { releaseChunk } from '#libs/batches/chunks/chunk.ts';
import { resumeChunk } from '#libs/batches/chunks/resume-chunk.ts';
import { withRepeated } from '#libs/batches/chunks/settled-lines.ts';
import { findBatchProgress } from '#libs/batches/look/find-batch-progress.ts';
import { findBatchWaits } from '#libs/batches/look/find-batch-waits.ts';
import { writeReport } from '#libs/batches/lines/report-lines.ts';
import { useTestDatabase } from '#test/postgres.ts';
import {
  claimChunk,
  control,
  createRunningBatch,
  loseClaim,
  readBatch,
  readEvents,
  settleLines,
  useBatchEngine,
  type Claim,
} from './running-batch.ts';

const database = useTestDatabase();
const engine = useBatchEngine(database);

const settle = (id: string, ...lines: number[]): Promise<void> => settleLines(engine, id, lines);

async function progressOf(id: string): Promise<BatchDetail['gateway']> {
  const batch = await readBatch(database, id);
  return await findBatchProgress(database.db, batch, await findBatchWaits(database.db, batch));
}

/** Claims a chunk after its claim was lost. */
async function claimAgain(id: string): Promise<Claim> {
  const claim = await claimChunk(database, id, 0);
  await resumeChunk(engine.eventLog, await readBatch(database, id), claim.id);
  return claim;
}

test('lines that a dead worker was possibly calling count once each, when they are settled', async () => {
  const id = await createRunningBatch(database, engine, { lines: 6 });
  const first = await claimChunk(database, id, 0);
  await settle(id, 1, 2);
  expect(await progressOf(id)).toMatchObject({ repeated_calls: 0, repeated_cost_usd: null });
  await loseClaim(database, first);
  // A result that the process still brings, before another one has claimed the chunk.
  await settle(id, 3);
  await claimAgain(id);
  await settle(id, 4);
  // Both processes bring a result of line 5, and each is sent twice, as after a lost reply to COMMIT.
  for (const line of [5, 5, 4]) await settle(id, line);
  expect(await progressOf(id)).toMatchObject({ repeated_calls: 2, repeated_cost_usd: '0.002' });
  const settled = (await readEvents(database, id)).flatMap((event) =>
    event.type === 'batch.lines_settled' ? [event.data.repeated ?? null] : [],
  );
  expect(settled).toEqual([null, null, { calls: 1, cost: '0.1' }, { calls: 1, cost: '0.1' }]);
});

test('of a worker that was stopped in time, only the calls that it gave up count', async () => {
  const id = await createRunningBatch(database, engine, { lines: 4 });
  const { id: claim } = await claimChunk(database, id, 0);
  await releaseChunk(database.db, claim, 'stopped', withRepeated(claim, [2]));
  await claimAgain(id);
  await settle(id, 1, 2, 3);
  expect(await progressOf(id)).toMatchObject({ repeated_calls: 1, repeated_cost_usd: '0.001' });
});

test('a running batch has a rate and an end, and neither is claimed while it is held up', async () => {
  const id = await createRunningBatch(database, engine, { lines: 8 });
  await claimChunk(database, id, 0);
  expect(await progressOf(id)).toMatchObject({ eta: null, lines_per_second: 0, calls_in_flight: 0 });
  await settle(id, 1, 2, 3, 4);
  const running = await progressOf(id);
  expect(running.lines_per_second).toBeGreaterThan(0);
  expect(Date.parse(running.eta ?? '')).toBeGreaterThan(Date.now());

  const wait = { reason: 'retry', label: 'p', model: 'm', budget: null, lines: 4, since_ms: 1, until_ms: null };
  await writeReport(database.db, 'process_1', [{ batchId: id, waits: [wait], calls: 0 }]);
  expect(await progressOf(id)).toMatchObject({ eta: null, calls_in_flight: 0 });
  await writeReport(database.db, 'process_2', [{ batchId: id, waits: [], calls: 3 }]);
  expect(await progressOf(id)).toMatchObject({ eta: expect.any(String), calls_in_flight: 3 });

  await control(engine, id, 'batch.paused');
  expect(await progressOf(id)).toMatchObject({ eta: null, calls_in_flight: 3 });
  await control(engine, id, 'batch.resumed');
  // Results from before the pause say nothing about the rate after it.
  expect(await progressOf(id)).toMatchObject({ eta: null, lines_per_second: 0 });
});

test('a batch that has ended makes no progress', async () => {
  const id = await createRunningBatch(database, engine, { lines: 1 });
  await settle(id, 1);
  expect(await progressOf(id)).toEqual({
    eta: null,
    lines_per_second: null,
    calls_in_flight: 0,
    repeated_calls: 0,
    repeated_cost_usd: null,
  });
});
