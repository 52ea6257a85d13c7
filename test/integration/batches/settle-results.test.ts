import { sql } from 'kysely';
import { afterEach, expect, test, vi } from 'vitest';
import { newId } from '#libs/kernel/ids.ts';
import type { BatchRow } from '#libs/batches/batch-model.ts';
import type { Holder } from '#libs/queue/process-lease.ts';
import { resultsRoot } from '#libs/batches/results/results-root.ts';
import { ensureResultsPartition, remakeResultsPartition, resultsBucket } from '#libs/batches/results/results-bucket.ts';
import { createSettler, type Settler } from '#libs/batches/results/settle-results.ts';
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

function settlerOf(
  id: string,
  logger = silent,
  finishSmallBatch: (batch: BatchRow) => Promise<void> = () => Promise.resolve(),
): Settler {
  const remakePartition = async (): Promise<void> =>
    await remakeResultsPartition(database.db, resultsBucket(await readBatch(database, id)));
  const deps = {
    ...engine,
    ...follow(engine),
    holder: () => holder,
    logger,
    signal: ending.signal,
    finishSmallBatch,
    remakePartition,
  };
  return createSettler(deps, { id, workspaceId: 'ws_1' });
}

async function storedData(id: string): Promise<{ line: number; data: Buffer }[]> {
  return await database.db
    .selectFrom('batch_result')
    .select(['line', 'data'])
    .where('batch_id', '=', id)
    .orderBy('line')
    .execute();
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
  const results = [first, lineResult(id, 1), lineResult(id, 2, { text: 'second', succeeded: false })];
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
    [{ chunk: 0, ranges: [[1, 1]] }],
    [{ chunk: 0, ranges: [[2, 2]] }],
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
