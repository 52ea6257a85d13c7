import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { Readable } from 'node:stream';
import { sql } from 'kysely';
import { afterAll, beforeAll, expect, onTestFinished, test } from 'vitest';
import { createBatchWatch, type BatchWatch } from '#libs/batches/batch/batch-watch.ts';
import type { CallLine } from '#libs/batches/lines/call-line.ts';
import type { ChunkRow } from '#libs/batches/chunks/chunk.ts';
import { ChunkRunner } from '#libs/batches/chunks/run-chunk.ts';
import { createAnswerSizes } from '#libs/batches/lines/answer-sizes.ts';
import { createPermitPool, type PermitPool } from '#libs/batches/lines/permit-pool.ts';
import { toAbortSignal } from '#libs/kernel/call-signal.ts';
import { createMemoryBudget } from '#libs/kernel/sharing/memory-budget.ts';
import type { HeldPlace, Wait } from '#libs/calls/call.ts';
import type { BlobStore } from '#libs/blobs/blob-store.ts';
import { createDiskBlobStore } from '#libs/blobs/disk-blob-store.ts';
import { eventually } from '#test/eventually.ts';
import { useTestDatabase } from '#test/postgres.ts';
import {
  claimChunk,
  closeLate,
  control,
  createRunningBatch,
  follow,
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
let folder: string;
let blobs: BlobStore;
let blob: string;

const lines = 6;
const input = Array.from({ length: lines }, (_value, index) => `{"custom_id":"line-${index + 1}"}\n`).join('');
const inputBytes = input.length - 1; // a chunk ends before its last line feed

beforeAll(async () => {
  folder = await mkdtemp(path.join(tmpdir(), 'sluice-chunk-'));
  blobs = await createDiskBlobStore({ folder });
  ({ blob } = await blobs.put(Readable.from([Buffer.from(input)])));
});
afterAll(() => rm(folder, { recursive: true, force: true }));

type Setup = {
  runner: ChunkRunner;
  permits: PermitPool;
  watch: BatchWatch;
  called: number[];
  counted: { redeliveries: number; results: number };
};

const answer: Awaited<ReturnType<CallLine>> = {
  outcome: { kind: 'response', statusCode: 200, requestId: 'req', body: Buffer.from('{}') },
  usage: null,
};

/** A runner over real files and a real database; `call` stands in for the provider. */
function setUp(
  call: (line: number, signal: AbortSignal, permit: Parameters<CallLine>[0]['permit']) => Promise<unknown>,
  callsMax = 10,
  ranges = createMemoryBudget(1_048_576),
  inputBlob = () => Promise.resolve(blob),
): Setup {
  const permits = createPermitPool({ callsMax, bytesMax: 1_048_576 });
  const watch = createBatchWatch({ db: database.db, logger: silent, intervalMs: 20 });
  const called: number[] = [];
  const counted = { redeliveries: 0, results: 0 };
  const runner = new ChunkRunner({
    db: database.db,
    eventLog: engine.eventLog,
    blobs,
    watch,
    permits,
    memory: createMemoryBudget(16_777_216),
    memoryWaitMsMax: 60_000,
    answerSizes: createAnswerSizes(),
    ranges,
    waits: { begin: () => () => {} },
    isCrowded: () => false,
    isLogFull: () => false,
    ...follow(engine),
    holder: () => ({ id: 'process_settling', lost: new AbortController().signal }),
    finishSmallBatch: () => Promise.resolve(),
    async callLine({ line, signal, permit }) {
      called.push(line);
      await call(line, toAbortSignal(signal), permit);
      return answer;
    },
    inputBlob,
    onRedelivery: () => (counted.redeliveries += 1),
    onSettled: (results) => (counted.results += results),
    logger: silent,
  });
  return { runner, permits, watch, called, counted };
}

/** A running batch of one chunk that covers the file, and the claim of it. */
async function createChunk(): Promise<{ id: string; claim: Claim }> {
  const id = await createRunningBatch(database, engine, { lines });
  await database.db.updateTable('batch_chunk').set({ byte_length: inputBytes }).where('batch_id', '=', id).execute();
  return { id, claim: await claimChunk(database, id, 0) };
}

/** Whether the process of a claim still holds it. */
const isHeld = async ({ id: { batch_id, holder } }: Claim): Promise<boolean> =>
  (await readChunks(database, batch_id)).some((chunk) => chunk.holder === holder);

const nothingInFlight = { calls: 0, bytes: 0, waiting: 0 };
const untilAborted = (signal: AbortSignal): Promise<never> =>
  new Promise((_resolve, reject) => {
    const end = (): void => reject(signal.reason as Error);
    if (signal.aborted) end();
    else signal.addEventListener('abort', end, { once: true });
  });

test('every line is called once and settled, and its permit released', async () => {
  const { runner, permits, called, counted } = setUp(() => Promise.resolve(), 2);
  const { id, claim } = await createChunk();
  await runner.run(claim);
  expect(counted).toEqual({ redeliveries: 0, results: lines });
  expect(called).toEqual([1, 2, 3, 4, 5, 6]);
  expect(await readBatch(database, id)).toMatchObject({ completed: lines, status: 'finalizing' });
  expect(permits.inFlight()).toEqual(nothingInFlight);
});

test('a failed chunk that cannot be released is remembered as one that ran, and a released one is not', async () => {
  const broken = (): Promise<never> => Promise.reject(new Error('no input'));
  const { runner } = setUp(() => Promise.resolve(), 10, undefined, broken);
  const released = await createChunk();
  await runner.run(released.claim);
  expect([await isHeld(released.claim), runner.hasRun(released.claim.work.key)]).toEqual([false, false]);
  await sql`
    create function refuse_release() returns trigger language plpgsql as $$ begin raise 'not now'; end $$`.execute(
    database.db,
  );
  await sql`
    create trigger refuse_release before update on batch_chunk for each row
    when (old.state = 'held' and new.state = 'ready')
    execute function refuse_release()`.execute(database.db);
  onTestFinished(async () => void (await sql`drop function refuse_release cascade`.execute(database.db)));
  const held = await createChunk();
  await runner.run(held.claim);
  expect([await isHeld(held.claim), runner.hasRun(held.claim.work.key)]).toEqual([true, true]);
});

test('a claim that was lost before it began calls nothing', async () => {
  const { runner, called } = setUp(() => Promise.resolve());
  const { id, claim } = await createChunk();
  await loseClaim(database, claim);
  const again = await claimChunk(database, id, 0);
  await loseClaim(database, again);
  await runner.run(again);
  expect(called).toEqual([]);
  expect(await isHeld(again)).toBe(false);
});

test('a call that throws inside the gateway is an error line, and the others are answered', async () => {
  const { runner, permits } = setUp((line) =>
    line === 3 ? Promise.reject(new Error('a bug of ours')) : Promise.resolve(),
  );
  const { id, claim } = await createChunk();
  await runner.run(claim);
  expect(await readBatch(database, id)).toMatchObject({ completed: lines - 1, failed: 1 });
  expect(permits.inFlight()).toEqual(nothingInFlight);
});

test('a worker told to stop settles what is done and hands the chunk back at once', async () => {
  const started = Promise.withResolvers<void>();
  const { runner, permits, called } = setUp(async (line, signal) => {
    if (line === 1) return;
    started.resolve();
    await untilAborted(signal);
  }, 3);
  const { id, claim } = await createChunk();
  const running = runner.run(claim);
  await started.promise;
  runner.drain(50);
  await running;
  expect(called.length).toBeLessThan(lines);
  expect(await readBatch(database, id)).toMatchObject({ completed: 1, status: 'in_progress' });
  expect(permits.inFlight()).toEqual(nothingInFlight);
  expect(await isHeld(claim)).toBe(false);

  // The next worker runs the rest, and only that.
  const next = setUp(() => Promise.resolve());
  await next.runner.run(await claimChunk(database, id, 0));
  expect(next.called).toEqual([2, 3, 4, 5, 6]);
  expect(await readBatch(database, id)).toMatchObject({ completed: lines, status: 'finalizing' });
  // Aborted lines may have been answered by the provider. The log records that they may be repeated.
  const redelivered = (await readEvents(database, id)).filter((event) => event.type === 'batch.chunk_redelivered');
  expect(redelivered.map(({ data }) => data)).toEqual([{ chunk: 0, attempt: 1, unsettled: 5 }]);
  // Only aborted calls count as repeated.
  expect((await readBatch(database, id)).usage).toMatchObject({ repeated_calls: called.length - 1 });
});

test('a lost claim starts no more lines, keeps what is done, and closes nothing', async () => {
  const { id, claim } = await createChunk();
  const { runner, permits, called } = setUp(async (line, signal) => {
    if (line < 3) return;
    claim.lose();
    await untilAborted(signal);
  }, 1);
  await loseClaim(database, claim);
  await runner.run(claim);
  expect(called).toEqual([1, 2, 3]);
  expect(await readBatch(database, id)).toMatchObject({ completed: 2, status: 'in_progress' });
  expect((await readChunks(database, id))[0]?.state).toBe('ready');
  expect(permits.inFlight()).toEqual(nothingInFlight);
});

test('a cancelled batch starts no more lines, and those that run may finish', async () => {
  const { runner, permits, watch, called } = setUp(async (line) => {
    if (line === 2) {
      const noticed = watch.watch(id, 'in_progress');
      await requestCancel(engine, id);
      await new Promise((resolve) => noticed.signal.addEventListener('abort', resolve, { once: true }));
      noticed.unwatch();
    }
  }, 1);
  const { id, claim } = await createChunk();
  await watch.start?.();
  await runner.run(claim);
  await watch.stop?.();
  expect(called).toEqual([1, 2]);
  const batch = await readBatch(database, id);
  expect(batch).toMatchObject({ completed: 2, status: 'finalizing', finalizing_reason: 'cancelled' });
  expect(permits.inFlight()).toEqual(nothingInFlight);
});

test('a call that outlasts the cancelled batch is aborted, and its permit is released', async () => {
  const waiting = Promise.withResolvers<void>();
  const { runner, permits, watch } = setUp(async (line, signal) => {
    if (line < lines) return;
    waiting.resolve();
    await untilAborted(signal);
  });
  const { id, claim } = await createChunk();
  await watch.start?.();
  const run = runner.run(claim);
  await waiting.promise;
  await eventually(
    () => readBatch(database, id),
    ({ completed }) => completed === lines - 1,
  );
  await requestCancel(engine, id);
  await closeLate(engine, id);
  await run;
  await watch.stop?.();
  expect(await readBatch(database, id)).toMatchObject({ completed: lines - 1, status: 'finalizing' });
  expect(permits.inFlight()).toEqual(nothingInFlight);
});

test('a watch for another status of the same batch does not end its lines', async () => {
  const validating = Promise.withResolvers<void>();
  const { runner, watch, called } = setUp((line) => (line === 1 ? validating.promise : Promise.resolve()), 1);
  const { id, claim } = await createChunk();
  // A validation that has been hanging since before the batch began to run.
  const hung = watch.watch(id, 'validating');
  hung.signal.addEventListener('abort', () => validating.resolve(), { once: true });
  await watch.start?.();
  await runner.run(claim);
  await watch.stop?.();
  expect(called).toEqual([1, 2, 3, 4, 5, 6]);
  expect(await readBatch(database, id)).toMatchObject({ completed: lines, status: 'finalizing' });
});

test('a chunk whose input cannot be read is retried, and this does not count against its lines', async () => {
  const { runner, called, permits } = setUp(() => Promise.resolve());
  const { id, claim } = await createChunk();
  await database.db.updateTable('batch_chunk').set({ byte_length: 1_000_000 }).where('batch_id', '=', id).execute();
  await runner.run({ ...claim, work: { ...claim.work, chunk: (await readChunks(database, id))[0] as ChunkRow } });
  expect(called).toEqual([]);
  expect((await readChunks(database, id))[0]).toMatchObject({ claim_end: 'clean', state: 'ready' });
  expect(permits.inFlight()).toEqual(nothingInFlight);
});

test('a database that is away between two steps does not make one lost claim count twice', async () => {
  let failures = 1;
  const { runner, called } = setUp(
    () => Promise.resolve(),
    10,
    createMemoryBudget(1_048_576),
    () => {
      failures -= 1;
      if (failures < 0) return Promise.resolve(blob);
      return Promise.reject(Object.assign(new Error('gone'), { code: 'ECONNRESET' }));
    },
  );
  const { id, claim } = await createChunk();
  await loseClaim(database, claim);
  await runner.run(await claimChunk(database, id, 0));
  expect(called).toHaveLength(lines);
  const recorded = (await readEvents(database, id)).filter(({ type }) => type === 'batch.chunk_redelivered');
  expect(recorded).toHaveLength(1);
  expect((await readChunks(database, id))[0]).toMatchObject({ claims_without_progress: 1 });
});

const until: Wait = { reason: 'budget_used_up', label: 'p', model: 'm', untilMs: null };
const untilEnded = (signal: AbortSignal): Promise<void> => untilAborted(signal).catch(() => {});

/** A runner whose first line is answered, and whose other lines wait until they are stopped. */
function setUpWaiting() {
  const waiting = Promise.withResolvers<void>();
  let waits = 0;
  const calledAfter: number[] = [];
  const setup = setUp(async (line, _signal, permit) => {
    if (line === 1) return;
    waits += 1;
    if (waits === lines - 1) waiting.resolve();
    await permit.waitWithoutPermit(until, untilEnded);
    calledAfter.push(line);
  }, 2);
  return { ...setup, waiting: waiting.promise, calledAfter };
}

test('lines that wait hold no permit: with two permits all six lines get their turn', async () => {
  const { runner, permits, watch, waiting } = setUpWaiting();
  const { id, claim } = await createChunk();
  await watch.start?.();
  const run = runner.run(claim);
  await waiting;
  expect(permits.inFlight()).toMatchObject({ calls: 0, waiting: 0 });
  await requestCancel(engine, id);
  await run;
  await watch.stop?.();
  expect(permits.inFlight()).toEqual(nothingInFlight);
});

test('once lines have waited for their provider, further ones begin with a place there, until one does not use it', async () => {
  const given: (number | undefined)[] = [];
  const places: (HeldPlace & { number: number })[] = [];
  const hold = (): Promise<HeldPlace> => {
    const place = { number: places.length, release: () => {}, isTaken: () => place.number < 2 };
    places.push(place);
    return Promise.resolve(place);
  };
  const { runner } = setUp(async (line, _signal, { waitWithoutPermit, place }) => {
    given[line - 1] = places.find((one) => one === place)?.number;
    const what: Wait = { reason: 'provider_busy', label: 'key', model: 'm', untilMs: null, hold };
    if (line === 1) await waitWithoutPermit(what, () => Promise.resolve());
  }, 1);
  const { id, claim } = await createChunk();
  await runner.run(claim);
  expect(await readBatch(database, id)).toMatchObject({ completed: lines });
  // The fifth line already had its place when the fourth one ended.
  expect(given).toEqual([undefined, 0, 1, 2, 3, undefined]);
});

test('a line that waits for its permit gives back the place that is held for it', async () => {
  let given = 0;
  const hold = (): Promise<HeldPlace> => Promise.resolve({ release: () => (given += 1), isTaken: () => false });
  const answered = Promise.withResolvers<void>();
  const { runner } = setUp(async (line, _signal, { waitWithoutPermit }) => {
    const what: Wait = { reason: 'provider_busy', label: 'key', model: 'm', untilMs: null, hold };
    if (line === 1) await waitWithoutPermit(what, () => Promise.resolve());
    await answered.promise;
  }, 1);
  const { id, claim } = await createChunk();
  const run = runner.run(claim);
  await eventually(
    () => Promise.resolve(given),
    (times) => times > 0,
  );
  answered.resolve();
  await run;
  expect(await readBatch(database, id)).toMatchObject({ completed: lines });
});

test('a cancel ends waiting lines at once; none of them calls, and the batch is drained', async () => {
  const { runner, watch, waiting, calledAfter } = setUpWaiting();
  const { id, claim } = await createChunk();
  await watch.start?.();
  const run = runner.run(claim);
  await waiting;
  await requestCancel(engine, id);
  await run;
  await watch.stop?.();
  expect(calledAfter).toEqual([]);
  expect(await readBatch(database, id)).toMatchObject({
    completed: 1,
    failed: 0,
    status: 'finalizing',
    finalizing_reason: 'cancelled',
  });
});

test('a pause ends waiting lines at once, and after it only the lines without a result are called', async () => {
  const { runner, permits, watch, waiting, calledAfter } = setUpWaiting();
  const { id, claim } = await createChunk();
  await watch.start?.();
  const run = runner.run(claim);
  await waiting;
  await control(engine, id, 'batch.paused');
  await run;
  await watch.stop?.();
  expect(calledAfter).toEqual([]);
  expect(permits.inFlight()).toEqual(nothingInFlight);
  expect(await readBatch(database, id)).toMatchObject({ completed: 1, status: 'in_progress' });
  expect((await readChunks(database, id))[0]).toMatchObject({ state: 'ready', claim_end: 'clean' });
  expect(await isHeld(claim)).toBe(false);
  await expect(claimChunk(database, id, 0)).rejects.toThrow('cannot be claimed');

  await control(engine, id, 'batch.resumed');
  const next = setUp(() => Promise.resolve());
  await next.runner.run(await claimChunk(database, id, 0));
  expect(next.called).toEqual([2, 3, 4, 5, 6]);
  expect(await readBatch(database, id)).toMatchObject({ completed: lines, status: 'finalizing' });
  const types = (await readEvents(database, id)).map(({ type }) => type);
  expect(types).not.toContain('batch.chunk_redelivered');
});

test('a worker that crashed before the pause is not forgotten by it', async () => {
  const { id, claim } = await createChunk();
  await loseClaim(database, claim);
  const again = await claimChunk(database, id, 0);
  await control(engine, id, 'batch.paused');
  const { runner, called, counted } = setUp(() => Promise.resolve());
  await runner.run(again);
  expect(called).toEqual([]);
  expect((await readChunks(database, id))[0]).toMatchObject({ state: 'ready', claim_end: null });
  await control(engine, id, 'batch.resumed');
  await runner.run(await claimChunk(database, id, 0));
  expect(called).toEqual([1, 2, 3, 4, 5, 6]);
  expect(counted).toEqual({ redeliveries: 1, results: lines });
  expect((await readEvents(database, id)).map(({ type }) => type)).toContain('batch.chunk_redelivered');
});

test('a batch that was paused and then cancelled is drained by the claims that are left', async () => {
  const { id, claim } = await createChunk();
  await control(engine, id, 'batch.paused');
  await requestCancel(engine, id);
  const { runner, called } = setUp(() => Promise.resolve());
  await runner.run(claim);
  expect(called).toEqual([]);
  expect(await readBatch(database, id)).toMatchObject({
    paused_at: null,
    status: 'finalizing',
    finalizing_reason: 'cancelled',
  });
});

test('the end of the batch ends waiting lines, and leaves them without a result', async () => {
  const { runner, permits, watch, waiting, calledAfter } = setUpWaiting();
  const { id, claim } = await createChunk();
  await watch.start?.();
  const run = runner.run(claim);
  await waiting;
  await eventually(
    () => readBatch(database, id),
    ({ completed }) => completed === 1,
  );
  await closeLate(engine, id, 'expired');
  await run;
  await watch.stop?.();
  expect(calledAfter).toEqual([]);
  expect(await readBatch(database, id)).toMatchObject({ completed: 1, failed: 0, finalizing_reason: 'expired' });
  expect(permits.inFlight()).toEqual(nothingInFlight);
});

test('a drain does not wait for waiting lines: they are handed back and run by the next worker', async () => {
  const { runner, permits, waiting, calledAfter } = setUpWaiting();
  const { id, claim } = await createChunk();
  const run = runner.run(claim);
  await waiting;
  runner.drain(3_600_000);
  await run;
  expect(calledAfter).toEqual([]);
  expect(permits.inFlight()).toEqual(nothingInFlight);
  expect(await readChunks(database, id)).toMatchObject([{ state: 'ready', claim_end: 'clean' }]);
  const next = setUp(() => Promise.resolve());
  await next.runner.run(await claimChunk(database, id, 0));
  expect(next.called).toEqual([2, 3, 4, 5, 6]);
  expect(await readBatch(database, id)).toMatchObject({ completed: lines, status: 'finalizing' });
});

test('a lost claim ends waiting lines', async () => {
  const { runner, permits, waiting, calledAfter } = setUpWaiting();
  const { id, claim } = await createChunk();
  const run = runner.run(claim);
  await waiting;
  await loseClaim(database, claim);
  claim.lose();
  await run;
  expect(calledAfter).toEqual([]);
  expect(await readBatch(database, id)).toMatchObject({ completed: 1, status: 'in_progress' });
  expect(permits.inFlight()).toEqual(nothingInFlight);
});

test('a chunk waits for memory before it reads anything, and a drain ends that wait', async () => {
  // Both are of the same workspace, which never gets more than the budget.
  const ranges = createMemoryBudget(1_000, { graceMs: 3_600_000 });
  const other = ranges.open('ws_1');
  other.charge(875);
  const { runner, called } = setUp(() => Promise.resolve(), 10, ranges);
  const { id, claim } = await createChunk();
  const run = runner.run(claim);
  await eventually(
    () => Promise.resolve(ranges.stats()),
    ({ waiting }) => waiting === 1,
  );
  expect(called).toEqual([]);
  runner.drain(3_600_000);
  await run;
  expect(ranges.stats()).toMatchObject({ heldBytes: 875, waiting: 0 });
  expect(await readChunks(database, id)).toMatchObject([{ state: 'ready', claim_end: 'clean' }]);

  const next = setUp(() => Promise.resolve(), 10, ranges);
  const again = next.runner.run(await claimChunk(database, id, 0));
  await eventually(
    () => Promise.resolve(ranges.stats()),
    ({ waiting }) => waiting === 1,
  );
  other.release();
  await again;
  expect(await readBatch(database, id)).toMatchObject({ completed: lines, status: 'finalizing' });
  expect(ranges.stats()).toMatchObject({ heldBytes: 0, waiting: 0 });
});
