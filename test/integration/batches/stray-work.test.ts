import { expect, onTestFinished, test } from 'vitest';
import { resumeChunk } from '#libs/batches/chunks/resume-chunk.ts';
import { createStrayWork } from '#libs/batches/chunks/stray-work.ts';
import { useTestDatabase } from '#test/postgres.ts';
import {
  claimChunk,
  createRunningBatch,
  readBatch,
  readChunks,
  readEvents,
  silent,
  useBatchEngine,
  type Claim,
} from './running-batch.ts';

const database = useTestDatabase();
const engine = useBatchEngine(database);

/** A process that holds a claim and runs nothing looks twice for work that it should run. */
async function releaseStray(claim: Claim, hasRun = false) {
  const stray = createStrayWork({
    db: database.db,
    lease: { holder: () => claim.holder },
    running: () => [],
    hasRun: (key) => hasRun && key === claim.work.key,
    onReleased: () => {},
    logger: silent,
  });
  onTestFinished(() => stray.stop());
  stray.start();
  await stray.wake();
  await stray.wake();
  return stray;
}

async function resume(batchId: string): Promise<void> {
  const claim = await claimChunk(database, batchId, 0);
  await resumeChunk(engine.eventLog, await readBatch(database, batchId), claim.id);
}

async function redeliveries(batchId: string): Promise<number> {
  const events = await readEvents(database, batchId);
  return events.filter(({ type }) => type === 'batch.chunk_redelivered').length;
}

test('a first claim whose answer was lost is made ready again, and its lines do not count as called', async () => {
  const batchId = await createRunningBatch(database, engine, { lines: 3 });
  await releaseStray(await claimChunk(database, batchId, 0));
  expect(await readChunks(database, batchId)).toMatchObject([{ state: 'ready', holder: null, claim_end: 'clean' }]);
  await resume(batchId);
  expect(await redeliveries(batchId)).toBe(0);
  expect(await readChunks(database, batchId)).toMatchObject([{ repeated: null }]);
});

test('after a crash, a claim whose answer was lost leaves the crash to be counted once', async () => {
  const batchId = await createRunningBatch(database, engine, { lines: 3 });
  await releaseStray(await claimChunk(database, batchId, 0), true);
  await releaseStray(await claimChunk(database, batchId, 0));
  await resume(batchId);
  expect(await redeliveries(batchId)).toBe(1);
});

test('a chunk that ran here and could not be released counts as possibly called', async () => {
  const batchId = await createRunningBatch(database, engine, { lines: 3 });
  await releaseStray(await claimChunk(database, batchId, 0), true);
  expect(await readChunks(database, batchId)).toMatchObject([{ state: 'ready', holder: null, claim_end: null }]);
  await resume(batchId);
  expect(await redeliveries(batchId)).toBe(1);
});

test('the answer to a claim that comes after its chunk was made ready again begins nothing', async () => {
  const batchId = await createRunningBatch(database, engine, { lines: 3 });
  const claim = await claimChunk(database, batchId, 0);
  const stray = await releaseStray(claim);
  expect(stray.wasReleased(claim.work.key)).toBe(true);
  expect(stray.wasReleased((await claimChunk(database, batchId, 0)).work.key)).toBe(false);
});
