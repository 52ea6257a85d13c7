import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { sql } from 'kysely';
import { afterAll, afterEach, beforeAll, expect, test, vi } from 'vitest';
import { newId } from '#libs/kernel/ids.ts';
import type { BatchRow } from '#libs/batches/batch/batch-model.ts';
import type { Holder } from '#libs/queue/process-lease.ts';
import { resultsRoot } from '#libs/batches/results/results-root.ts';
import { ensureResultsPartition, remakeResultsPartition, resultsBucket } from '#libs/batches/results/results-bucket.ts';
import { Settler, type BatchSettler } from '#libs/batches/results/settler.ts';
import { createDiskBlobStore } from '#libs/blobs/disk-blob-store.ts';
import { listResults, readResults } from '#libs/batches/results/stored-results.ts';
import type { BlobStore } from '#libs/blobs/blob-store.ts';
import { useTestDatabase } from '#test/postgres.ts';
import {
  claimChunk,
  createRunningBatch,
  follow,
  lineResult,
  loseClaim,
  readBatch,
  readChunks,
  readEvents,
  requestCancel,
  silent,
  useBatchEngine,
} from './running-batch.ts';

const database = useTestDatabase({ lockTimeoutMs: 200 });
const engine = useBatchEngine(database);
const ending = new AbortController();

const holder: Holder = { id: newId('process_'), lost: ending.signal };

let folder: string;
let blobs: BlobStore;

beforeAll(async () => {
  folder = await mkdtemp(path.join(tmpdir(), 'sluice-settler-'));
  blobs = await createDiskBlobStore({ folder });
});
afterAll(() => rm(folder, { recursive: true, force: true }));

function createSettler(more: Partial<ConstructorParameters<typeof Settler>[0]> = {}): Settler {
  const remakePartition = async (id: string): Promise<void> =>
    await remakeResultsPartition(database.db, resultsBucket(await readBatch(database, id)));
  return new Settler({
    ...engine,
    ...follow(engine),
    blobs,
    holder: () => holder,
    logger: silent,
    signal: ending.signal,
    finishSmallBatch: () => Promise.resolve(),
    remakePartition,
    ...more,
  });
}

const settlerOf = (
  id: string,
  logger = silent,
  finishSmallBatch: (batch: BatchRow) => Promise<void> = () => Promise.resolve(),
): BatchSettler => createSettler({ logger, finishSmallBatch }).of({ id, workspaceId: 'ws_1' });

async function storedData(id: string): Promise<{ line: number; data: Buffer; sha256: Buffer }[]> {
  const batch = await readBatch(database, id);
  const results = await listResults(database.db, batch, { first: 1, end: batch.total + 1 });
  const read = await readResults({ db: database.db, blobs }, batch, results);
  return results.map(({ line, sha256 }) => ({ line, data: read.get(line) as Buffer, sha256 }));
}

afterEach(() => {
  vi.restoreAllMocks();
});

test('results are kept when a failover has lost the partition that they belong to', async () => {
  const id = await createRunningBatch(database, engine, { lines: 2 });
  await sql`update batch set created_at = '2031-03-01' where id = ${id}`.execute(database.db);
  await ensureResultsPartition(database.db, '2031-03-01');
  await sql`drop table batch_result_20310301`.execute(database.db);
  const settler = settlerOf(id);
  settler.add(lineResult(id, 1));
  settler.add(lineResult(id, 2));
  await settler.flush();
  expect(await readBatch(database, id)).toMatchObject({ completed: 2, status: 'finalizing' });
  expect(await storedData(id)).toHaveLength(2);
});

test('two results of one line in one group are one row, counted once, and the first is kept', async () => {
  const id = await createRunningBatch(database, engine, { lines: 3 });
  const settler = settlerOf(id);
  const first = lineResult(id, 2, { text: 'first' });
  const results = [first, lineResult(id, 1), lineResult(id, 2, { text: 'second', status: 400 })];
  for (const result of results) settler.add(result);
  await settler.flush();

  const batch = await readBatch(database, id);
  expect([batch.completed, batch.failed]).toEqual([2, 0]);
  expect(batch.usage).toMatchObject({ input_tokens: 2, output_tokens: 4 });
  const stored = await storedData(id);
  expect(stored.map(({ line }) => line)).toEqual([1, 2]);
  expect(stored[1]?.data).toEqual(first.data);
  const settled = (await readEvents(database, id)).filter((event) => event.type === 'batch.lines_settled');
  expect(settled.map(({ data }) => data.results_root)).toEqual([resultsRoot(stored)]);
  expect(results.map(({ released }) => released)).toEqual([1, 1, 1]);
});

test('lines are summed by provider, model and prices, in exact decimals; those without a price are counted', async () => {
  const id = await createRunningBatch(database, engine, { lines: 5 });
  const settler = settlerOf(id);
  const costs: [string | null, string | null][] = [
    ['0.1', 'v1'],
    ['0.2', 'v1'],
    ['0.000000000001', 'v2'],
    [null, null],
    [null, null],
  ];
  for (const [index, [cost, price_version]] of costs.entries()) {
    const result = lineResult(id, index + 1);
    settler.add({ ...result, usage: result.usage && { ...result.usage, cost, price_version } });
  }
  await settler.flush();
  const settled = (await readEvents(database, id)).find((event) => event.type === 'batch.lines_settled');
  const usages = settled?.type === 'batch.lines_settled' ? settled.data.usage : [];
  expect(usages.map((usage) => [usage.cost, usage.price_version, usage.unpriced_lines, usage.output_tokens])).toEqual([
    ['0.3', 'v1', undefined, 4],
    ['0.000000000001', 'v2', undefined, 2],
    [null, null, 2, 4],
  ]);
  expect((await readBatch(database, id)).usage).toMatchObject({ cost: '0.300000000001', unpriced_lines: 2 });
});

test('a repeated result in a later group changes nothing', async () => {
  const id = await createRunningBatch(database, engine, { lines: 3 });
  const settler = settlerOf(id);
  settler.add(lineResult(id, 1));
  await settler.flush();
  settler.add(lineResult(id, 1, { text: 'again' }));
  settler.add(lineResult(id, 2));
  await settler.flush();
  const batch = await readBatch(database, id);
  expect([batch.completed, batch.failed]).toEqual([2, 0]);
  const settled = (await readEvents(database, id)).filter((event) => event.type === 'batch.lines_settled');
  expect(settled.map(({ data }) => data.chunks)).toEqual([
    [{ chunk: 0, first_line: 1, settled: 'gA==' }],
    [{ chunk: 0, first_line: 2, settled: 'gA==' }],
  ]);
});

test('results wait while a process that hangs holds the lock of their batch', async () => {
  const id = await createRunningBatch(database, engine, { lines: 2 });
  const waiting = vi.fn<(fields: object, text: string) => void>();
  const logger = Object.assign(Object.create(silent) as typeof silent, { warn: waiting });
  const hanging = await database.pool.connect();
  try {
    await hanging.query('select pg_advisory_lock(hashtextextended($1, 0))', [id]);
    const settler = settlerOf(id, logger);
    const claim = await claimChunk(database, id, 0);
    settler.add(lineResult(id, 1));
    settler.add(lineResult(id, 2));
    const closed = settler.close(claim.id);
    await vi.waitFor(() => expect(waiting).toHaveBeenCalled(), { timeout: 10_000 });
    await hanging.query('select pg_advisory_unlock(hashtextextended($1, 0))', [id]);
    expect(await closed).toBe('closed');
  } finally {
    hanging.release(true);
  }
  expect(waiting.mock.calls[0]?.[1]).toBe('results are waiting for the database');
  expect(await readBatch(database, id)).toMatchObject({ completed: 2, status: 'finalizing' });
});

test('a small batch whose last line is settled is finished before its chunk gives up its slot', async () => {
  const id = await createRunningBatch(database, engine, { lines: 2 });
  const order: string[] = [];
  const settler = settlerOf(id, silent, async (batch) => {
    const { status, completed } = await readBatch(database, batch.id);
    order.push(`finish ${status} ${completed}`);
    expect(batch).toEqual(await readBatch(database, id));
    order.push('finished');
  });
  const claim = await claimChunk(database, id, 0);
  settler.add(lineResult(id, 1));
  settler.add(lineResult(id, 2));
  expect(await settler.close(claim.id)).toBe('closed');
  order.push('closed');
  expect(order).toEqual(['finish finalizing 2', 'finished', 'closed']);
});

test('a chunk with a line without a result is not closed while its batch runs', async () => {
  const id = await createRunningBatch(database, engine, { lines: 4, linesPerChunk: 2 });
  const settler = settlerOf(id);
  const claim = await claimChunk(database, id, 0);
  settler.add(lineResult(id, 1));
  expect(await settler.close(claim.id)).toBe('incomplete');
  expect((await readChunks(database, id))[0]?.state).toBe('held');
  settler.add(lineResult(id, 2));
  expect(await settler.close(claim.id)).toBe('closed');
  expect((await readChunks(database, id))[0]?.state).toBe('done');
});

test('a group that Postgres rejects leaves the chunk open and frees its memory', async () => {
  const id = await createRunningBatch(database, engine, { lines: 1 });
  const settler = settlerOf(id);
  const claim = await claimChunk(database, id, 0);
  const refused = lineResult(id, 1);
  refused.usage = { ...refused.usage, model: 'a\u0000b' } as typeof refused.usage;
  settler.add(refused);
  await settler.flush();
  expect(refused.released).toBe(1);
  expect(await settler.close(claim.id)).toBe('incomplete');
  expect(await storedData(id)).toEqual([]);
});

test('after its claim was lost, a chunk keeps its results and is not closed', async () => {
  const id = await createRunningBatch(database, engine, { lines: 4, linesPerChunk: 2 });
  const settler = settlerOf(id);
  const claim = await claimChunk(database, id, 0);
  await loseClaim(database, claim);
  const second = await claimChunk(database, id, 0);
  settler.add(lineResult(id, 1));
  settler.add(lineResult(id, 2));
  expect(await settler.close(claim.id)).toBe('claim_lost');
  expect(await readBatch(database, id)).toMatchObject({ completed: 2 });
  expect((await readChunks(database, id))[0]?.state).toBe('held');
  expect(await settler.close(second.id)).toBe('closed');
});

test('the last open chunk of a cancelled batch ends it with what is done', async () => {
  const id = await createRunningBatch(database, engine, { lines: 4, linesPerChunk: 2 });
  const settler = settlerOf(id);
  const claims = [await claimChunk(database, id, 0), await claimChunk(database, id, 1)] as const;
  settler.add(lineResult(id, 1));
  await requestCancel(engine, id);
  expect(await settler.close(claims[0].id)).toBe('closed');
  expect(await readBatch(database, id)).toMatchObject({ status: 'cancelling', completed: 1 });
  expect(await settler.close(claims[1].id)).toBe('closed');
  expect(await readBatch(database, id)).toMatchObject({ status: 'finalizing', finalizing_reason: 'cancelled' });
});

test('after the end of a batch no result is accepted, and its memory is freed', async () => {
  const id = await createRunningBatch(database, engine, { lines: 1 });
  const settler = settlerOf(id);
  settler.add(lineResult(id, 1));
  await settler.flush();
  const late = lineResult(id, 1, { text: 'late' });
  settler.add(late);
  expect(await settler.close({ batch_id: id, chunk: 0, claim: 1, holder: holder.id })).toBe('refused');
  expect(late.released).toBe(1);
});

test('the process that settles the last line of a small batch holds its files from that moment on', async () => {
  await database.db.insertInto('worker_process').values({ id: holder.id }).execute();
  const turnOf = async (id: string) =>
    await database.db.selectFrom('batch_turn').select(['work', 'holder', 'ready']).where('batch_id', '=', id).execute();
  const id = await createRunningBatch(database, engine, { lines: 1 });
  const settler = settlerOf(id);
  settler.add(lineResult(id, 1));
  await settler.flush();
  expect(await turnOf(id)).toEqual([{ work: 'finalise', holder: holder.id, ready: 0 }]);

  // A process that was given up cannot hold anything: any other can write the files.
  await database.db.deleteFrom('worker_process').where('id', '=', holder.id).execute();
  const other = await createRunningBatch(database, engine, { lines: 1 });
  const otherSettler = settlerOf(other);
  otherSettler.add(lineResult(other, 1));
  await otherSettler.flush();
  expect(await turnOf(other)).toEqual([{ work: 'finalise', holder: null, ready: 1 }]);
});

test('the results of several batches are settled in one transaction and one segment, and each has its event', async () => {
  const ids = await Promise.all([1, 2, 3, 4, 5].map(() => createRunningBatch(database, engine, { lines: 64 })));
  const transact = vi.spyOn(engine.eventLog, 'transact');
  const put = vi.spyOn(blobs, 'put');
  const settler = createSettler({ eventLog: { transact } as never });
  // Two rounds with one batch each are on their way while the others become due.
  const batches = ids.map((id) => settler.of({ id, workspaceId: 'ws_1' }));
  for (const [index, batch] of batches.entries())
    for (let line = 1; line <= 63; line += 1)
      batch.add(lineResult(ids[index] as string, line, { text: 'x'.repeat(200), status: line === 9 ? 400 : 200 }));
  await Promise.all(batches.map((batch) => batch.flush()));
  for (const id of ids) {
    expect(await readBatch(database, id)).toMatchObject({ completed: 62, failed: 1, status: 'in_progress' });
    const stored = await storedData(id);
    expect(stored.map(({ line, data }) => [line, data.toString().includes(`"line-${line}"`)])).toEqual(
      Array.from({ length: 63 }, (_value, index) => [index + 1, true]),
    );
    const settled = (await readEvents(database, id)).filter(({ type }) => type === 'batch.lines_settled');
    expect(settled).toHaveLength(1);
  }
  expect([transact.mock.calls.length, put.mock.calls.length]).toEqual([3, 3]);
});

test('a batch whose lock is held by a process that hangs does not hold up the others of its round', async () => {
  const ids = await Promise.all([1, 2, 3, 4, 5].map(() => createRunningBatch(database, engine, { lines: 4 })));
  const settler = createSettler();
  const hanging = await database.pool.connect();
  try {
    const all = ids.map((id) => ({ id, batch: settler.of({ id, workspaceId: 'ws_1' }) }));
    const [first, ...others] = all;
    await hanging.query('select pg_advisory_lock(hashtextextended($1, 0))', [first?.id]);
    const flushed = all.map(async ({ id, batch }) => {
      batch.add(lineResult(id, 1));
      await batch.flush();
    });
    await Promise.all(flushed.slice(1));
    for (const { id } of others) expect(await readBatch(database, id)).toMatchObject({ completed: 1 });
    // Later rounds of others have a place as well.
    for (const { id, batch } of others) {
      batch.add(lineResult(id, 2));
      await batch.flush();
    }
    await hanging.query('select pg_advisory_unlock_all()');
    await flushed[0];
    expect(await readBatch(database, first?.id ?? '')).toMatchObject({ completed: 1 });
  } finally {
    hanging.release(true);
  }
});

test('a batch that Postgres rejects does not cost the other batches of its round their results', async () => {
  const ids = await Promise.all([1, 2, 3].map(() => createRunningBatch(database, engine, { lines: 4 })));
  const settler = createSettler();
  const flushed = ids.map((id, index) => {
    const result = lineResult(id, 1);
    if (index === 1) result.usage = { ...result.usage, model: 'a\u0000b' } as typeof result.usage;
    const batch = settler.of({ id, workspaceId: 'ws_1' });
    batch.add(result);
    return batch.flush();
  });
  await Promise.all(flushed);
  const completed = await Promise.all(ids.map(async (id) => (await readBatch(database, id)).completed));
  expect(completed).toEqual([1, 0, 1]);
});

test('results wait while the blob store is unavailable', async () => {
  const id = await createRunningBatch(database, engine, { lines: 2 });
  const failing = { put: vi.fn<BlobStore['put']>().mockRejectedValueOnce(new Error('no route')) };
  failing.put.mockImplementation((source, options) => blobs.put(source, options));
  const batch = createSettler({ blobs: failing }).of({ id, workspaceId: 'ws_1' });
  batch.add(lineResult(id, 1, { text: 'x'.repeat(10_000) }));
  await batch.flush();
  expect(failing.put).toHaveBeenCalledTimes(2);
  expect(await readBatch(database, id)).toMatchObject({ completed: 1 });
});

test('results of lines in two stripes, and around a line that had a result, are read as they were settled', async () => {
  const id = await createRunningBatch(database, engine, { lines: 9_000, linesPerChunk: 250 });
  const batch = settlerOf(id);
  const settleLines = async (lines: readonly number[], text: string): Promise<void> => {
    for (const line of lines)
      batch.add(lineResult(id, line, { text: text.repeat(300), chunk: Math.floor((line - 1) / 250) }));
    await batch.flush();
  };
  const span = Array.from({ length: 60 }, (_value, index) => 4_060 + index);
  await settleLines([4_070, 4_097], 'first ');
  await settleLines([...span, 1, 9_000], 'second');
  const stored = await storedData(id);
  expect(stored.map(({ line }) => line)).toEqual([1, ...span, 9_000]);
  for (const { line, data } of stored)
    expect([line, data.includes('first '), data.includes(`"line-${line}"`)]).toEqual([
      line,
      line === 4_070 || line === 4_097,
      true,
    ]);
});

test('when the process has no time left, results that cannot be stored are given up once', async () => {
  const id = await createRunningBatch(database, engine, { lines: 2 });
  const ended = new AbortController();
  const put = () => Promise.reject(new Error('no route'));
  const batch = createSettler({ blobs: { put }, signal: ended.signal }).of({ id, workspaceId: 'ws_1' });
  const claim = await claimChunk(database, id, 0);
  const result = lineResult(id, 1, { text: 'x'.repeat(10_000) });
  batch.add(result);
  const closed = batch.close(claim.id);
  ended.abort();
  await expect(closed).rejects.toThrow('no route');
  expect(result.released).toBe(1);
});
