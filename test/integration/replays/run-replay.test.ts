import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { Readable } from 'node:stream';
import { sql } from 'kysely';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { batchModel } from '#libs/batches/batch/batch-model.ts';
import type { BatchEvent } from '#libs/batches/batch/batch.ts';
import { createBatches } from '#libs/batches/batch/batches.ts';
import { createDiskBlobStore } from '#libs/blobs/disk-blob-store.ts';
import type { BlobStore } from '#libs/blobs/blob-store.ts';
import type { BatchTarget } from '#libs/database/schema.ts';
import { readStream } from '#libs/event-log/read-events.ts';
import { createFiles } from '#libs/files/files.ts';
import { batchLineId, newId } from '#libs/kernel/ids.ts';
import { replaysToContinue } from '#libs/replays/replay-jobs.ts';
import { runReplay } from '#libs/replays/run-replay.ts';
import { trafficReplayModel, type TrafficReplayData } from '#libs/resources/traffic-replays.ts';
import { createOutputChecker } from '#libs/validation/outputs/output-checker.ts';
import { useTestDatabase } from '#test/postgres.ts';
import { silent, useBatchEngine } from '../batches/running-batch.ts';

// The worker's side of traffic replays: both steps, and what repeats, deleted files and foreign batches do to them.

const database = useTestDatabase();
const engine = useBatchEngine(database);
const outputs = createOutputChecker({ threads: 1 });
const workspaceId = 'ws_1';
const metadata = { actor: { type: 'system' as const, id: 'test' } };
const released: BatchTarget[] = [];
let folder: string;
let blobs: BlobStore;

beforeAll(async () => {
  folder = await mkdtemp(path.join(tmpdir(), 'sluice-replays-'));
  blobs = await createDiskBlobStore({ folder });
});
afterAll(async () => {
  await outputs.stop();
  await rm(folder, { recursive: true, force: true });
});

function run(replayId: string, batchId: string): Promise<void> {
  const { db } = database;
  const { eventLog, queue } = engine;
  const limits = { openBatchesMax: 100, queuedLinesMax: 1_000 };
  const batches = createBatches({
    db,
    eventLog,
    queue,
    limits,
    expiresAfterMs: 86_400_000,
    releaseTarget: async () => {},
  });
  const deps = {
    db,
    eventLog,
    blobs,
    outputs,
    batches,
    logger: silent,
    files: createFiles({ db, eventLog, blobs }),
    secrets: { readOwned: async () => undefined },
    releaseTarget: async (_unit: unknown, target: BatchTarget) => void released.push(target),
  };
  return runReplay(deps, { replay_id: replayId, batch_id: batchId }, new AbortController().signal);
}

async function storeFile(lines: readonly object[]): Promise<string> {
  const id = newId('file-');
  const text = lines.map((line) => `${JSON.stringify(line)}\n`).join('');
  const blob = await blobs.put(Readable.from([Buffer.from(text)]));
  const files = createFiles({ db: database.db, eventLog: engine.eventLog, blobs });
  const file = { purpose: 'batch', filename: 'lines.jsonl', blob, expiresAfterSeconds: null };
  await engine.eventLog.transact({ workspaceId, streams: [id], metadata }, (unit) => files.record(unit, id, file));
  return id;
}

const chat = (content: string): object => ({ choices: [{ message: { role: 'assistant', content } }] });

/** Appends the end of a batch with these answers; null: the line failed. */
async function endBatch(id: string, answers: readonly (string | null)[], customIds: readonly string[]): Promise<void> {
  const results = answers.map((answer, index) => ({
    id: batchLineId(id, index + 1),
    custom_id: customIds[index],
    response: { status_code: answer === null ? 400 : 200, request_id: 'r', body: answer === null ? {} : chat(answer) },
    error: null,
  }));
  const [good, bad] = [200, 400].map((wanted) => results.filter(({ response }) => response.status_code === wanted));
  const outcome = {
    output_file_id: await storeFile(good ?? []),
    error_file_id: await storeFile(bad ?? []),
    output_sha256: null,
    error_sha256: null,
    total: answers.length,
    completed: 0,
    failed: 0,
  };
  await append(id, [
    { type: 'batch.validated', data: { line_count: answers.length, chunk_count: 1, model: 'm' } },
    { type: 'batch.finalizing', data: { reason: 'completed' } },
    { type: 'batch.completed', data: outcome },
  ]);
}

const append = (id: string, events: readonly BatchEvent[]): Promise<unknown> =>
  engine.eventLog.transact({ workspaceId, streams: [id], metadata }, (unit) => unit.append(batchModel, id, events));

async function createBatch(customIds: readonly string[]): Promise<string> {
  const id = newId('batch_');
  const body = { model: 'm', messages: [{ role: 'user', content: 'Hi' }] };
  const data = {
    endpoint: '/v1/chat/completions',
    completion_window: '24h',
    metadata: null,
    output_expires_after: null,
    target: { type: 'none' as const },
    gateway_options: {},
    headers: { api_key_id: 'key_1' },
    input_file_id: await storeFile(customIds.map((custom_id) => ({ custom_id, body }))),
    expires_at: new Date(Date.now() + 86_400_000).toISOString(),
  };
  await append(id, [{ type: 'batch.created', data }]);
  return id;
}

const ids = ['a', 'b', 'c', 'd'];

/** A replay of a batch with four lines that has ended. */
async function createReplay(answers: readonly (string | null)[] | null, more: Partial<TrafficReplayData> = {}) {
  const source = await createBatch(ids);
  await endBatch(source, ['same', 'one two', null, 'fine'], ids);
  const batch = await createBatch(ids);
  if (answers !== null) await endBatch(batch, answers, ids);
  const id = newId('replay_');
  const data: TrafficReplayData = {
    filters: null,
    source_batch_id: source,
    endpoint: '/v1/chat/completions',
    model: null,
    prompt: null,
    config: null,
    selection: { calls: 4, left_out: {}, has_more: false },
    batch_id: batch,
    judge: null,
    status: 'running',
    ...more,
  };
  await engine.eventLog.transact({ workspaceId, streams: [id], metadata }, (unit) =>
    unit.append(trafficReplayModel, id, [{ type: 'traffic_replay.created', data }]),
  );
  return { id, batch, source };
}

const judge = () => ({
  model: 'wise',
  limit: 10,
  seed: 1,
  instructions: null,
  batch_id: newId('batch_'),
  target: { type: 'virtual_key' as const, virtual_key_id: 'vk_1' },
});

async function readData(id: string): Promise<TrafficReplayData> {
  const { rows } = await sql<{ data: TrafficReplayData }>`select data from resource where id = ${id}`.execute(
    database.db,
  );
  return rows[0]?.data as TrafficReplayData;
}
const readTypes = async (id: string): Promise<string[]> =>
  (await readStream(database.db, id)).map(({ type }) => type.replace('traffic_replay.', ''));

test('answers are compared with those of the original batch, and a repeated job changes nothing', async () => {
  const { id, batch } = await createReplay(['same', 'one three', 'new', null]);
  await run(id, batch);
  await run(id, batch);
  expect(await readTypes(id)).toEqual(['created', 'compared']);
  expect(await readData(id)).toMatchObject({
    status: 'completed',
    report: { original: { answered: 3, failed: 1 }, replay: { answered: 3, failed: 1 }, equal: 1, different: 1 },
    differences: [
      { line: 4, custom_id: 'd', kind: 'replay_failed', similarity: null, original_line: 4 },
      { line: 2, custom_id: 'b', kind: 'different', similarity: 0.5, original_line: 2 },
      { line: 3, custom_id: 'c', kind: 'original_failed', similarity: null, original_line: 3 },
    ],
  });
});

test('a batch that has not ended, or only claims to belong to the replay, changes nothing', async () => {
  const { id, batch } = await createReplay(null);
  const other = await createBatch(ids);
  await endBatch(other, ['same', 'one two', null, 'fine'], ids);
  await run(id, batch);
  await run(id, other);
  expect(await readTypes(id)).toEqual(['created']);
});

test('the judge gets the different answers in its own batch, once, and its verdicts are counted', async () => {
  const asked = judge();
  const { id, batch } = await createReplay(['same', 'one three', 'new', 'good'], { judge: asked });
  await run(id, batch);
  await run(id, batch);
  expect(await readTypes(id)).toEqual(['created', 'compared']);
  expect(await readData(id)).toMatchObject({ status: 'judging', report: { different: 2 } });
  const { rows } = await sql<{ target: object; metadata: object; headers: object }>`
    select target, metadata, headers from batch where id = ${asked.batch_id}`.execute(database.db);
  expect(rows).toEqual([{ target: asked.target, metadata: { traffic_replay: id }, headers: { api_key_id: 'key_1' } }]);
  await endBatch(asked.batch_id, ['{"reason":"r","better":"tie"}', null], ['2', '4']);
  await run(id, asked.batch_id);
  expect(await readData(id)).toMatchObject({
    status: 'completed',
    verdicts: { judged: 2, wins: 0, ties: 1, losses: 0, unclear: 1 },
  });
  expect(released).toEqual([]);
});

test('a batch that failed fails its replay, and the secrets of the judge are deleted', async () => {
  const asked = judge();
  const { id, batch } = await createReplay(null, { judge: asked });
  const problem = { code: 'model_not_found', message: 'There is no such model.', param: null, line: 1 };
  await append(batch, [{ type: 'batch.failed', data: { errors: [problem] } }]);
  await run(id, batch);
  expect(await readData(id)).toMatchObject({
    status: 'failed',
    error: expect.stringContaining('There is no such model.'),
  });
  expect(released.splice(0)).toEqual([asked.target]);
});

test('a replay whose files were lost fails with the reason', async () => {
  const { id, batch, source } = await createReplay(['same', 'one two', 'new', 'fine']);
  const { rows } = await sql<{ blob: string }>`
    select blob from file where id = (select output_file_id from batch where id = ${source})`.execute(database.db);
  await blobs.remove(rows[0]?.blob ?? '');
  await run(id, batch);
  expect(await readTypes(id)).toEqual(['created', 'failed']);
});

test('a replay whose job was lost is found when its batch has ended, and not before', async () => {
  const waiting = await createReplay(null);
  const due = await createReplay(['same', 'one two', 'new', 'fine']);
  const find = () => replaysToContinue.findOpen(database.db, { changedBefore: '0 seconds', after: '', max: 100 });
  const found = (await find()).map(({ job }) => job);
  expect(found).toContainEqual({ replay_id: due.id, batch_id: due.batch });
  expect(found.map(({ replay_id: id }) => id)).not.toContain(waiting.id);
  await run(due.id, due.batch);
  expect((await find()).map(({ id }) => id)).not.toContain(due.id);
});
