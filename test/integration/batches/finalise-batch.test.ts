import { createHash } from 'node:crypto';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { Readable } from 'node:stream';
import { buffer } from 'node:stream/consumers';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { batchModel } from '#libs/batches/batch/batch-model.ts';
import type { FinalizingReason } from '#libs/batches/batch/batch.ts';
import { finaliseBatch } from '#libs/batches/results/finalise-batch.ts';
import type { BlobStore, StoredBlob } from '#libs/blobs/blob-store.ts';
import { createDiskBlobStore } from '#libs/blobs/disk-blob-store.ts';
import { useTestDatabase } from '#test/postgres.ts';
import {
  createRunningBatch,
  follow,
  readBatch,
  readChunks,
  readEvents,
  silent,
  storeResults,
  useBatchEngine,
  type Row,
} from './running-batch.ts';

const database = useTestDatabase();
const engine = useBatchEngine(database);
let folder: string;
let blobs: BlobStore;

beforeAll(async () => {
  folder = await mkdtemp(path.join(tmpdir(), 'sluice-finalise-'));
  blobs = await createDiskBlobStore({ folder });
});
afterAll(() => rm(folder, { recursive: true, force: true }));

/** A `finalizing` batch with these results, in segments of a store or in rows. */
async function createFinalizing(
  lines: number,
  rows: readonly Row[],
  reason: FinalizingReason,
  store?: BlobStore,
): Promise<string> {
  const id = await createRunningBatch(database, engine, { lines });
  await storeResults(database, await readBatch(database, id), rows, store);
  const completed = rows.filter(({ status }) => status === 200).length;
  const metadata = { actor: { type: 'system' as const, id: 'test' } };
  await engine.eventLog.transact({ workspaceId: 'ws_1', streams: [id], metadata }, (unit) =>
    unit.append(batchModel, id, [
      {
        type: 'batch.lines_settled',
        data: { chunks: [], completed, failed: rows.length - completed, usage: [], results_root: '' },
      },
      { type: 'batch.finalizing', data: { reason } },
    ]),
  );
  return id;
}

async function finalise(id: string, input = 'unused', retries = 0): Promise<Map<string, StoredBlob>> {
  const files = new Map<string, StoredBlob>();
  await finaliseBatch(
    {
      db: database.db,
      ...follow(engine),
      eventLog: engine.eventLog,
      blobs,
      inputBlob: () => Promise.resolve(input),
      recordFile: (_unit, { filename, blob }) => {
        files.set(filename.includes('_output') ? 'output' : 'error', blob);
        return Promise.resolve();
      },
      releaseTarget: () => Promise.resolve(),
      logger: silent,
    },
    await readBatch(database, id),
    new AbortController().signal,
    retries,
  );
  return files;
}

const contentOf = async (blob: StoredBlob | undefined): Promise<Buffer> =>
  blob ? await buffer(await blobs.read(blob.blob)) : Buffer.alloc(0);

test.each(['rows', 'a segment'])(
  'answers larger than a page are written whole and in order, from %s',
  async (place) => {
    const mebibyte = 1_048_576;
    // One answer larger than a page, several that together fill more than one, and small ones around them.
    const sizes = [10, 3 * mebibyte, 3 * mebibyte, 3 * mebibyte, 10, 9 * mebibyte, 10, 10];
    const rows = sizes.map((size, index) => ({
      line: index + 1,
      status: index % 4 === 0 ? 400 : 200,
      data: Buffer.alloc(size, String(index)),
    }));
    const id = await createFinalizing(sizes.length, rows, 'completed', place === 'rows' ? undefined : blobs);
    const files = await finalise(id);
    for (const [kind, status] of [
      ['output', 200],
      ['error', 400],
    ] as const) {
      const expected = createHash('sha256');
      for (const row of rows) if (row.status === status) expected.update(row.data).update('\n');
      expect(files.get(kind)?.sha256).toBe(expected.digest('hex'));
    }
    expect(await readBatch(database, id)).toMatchObject({ status: 'completed' });
  },
);

test('lines without a result are written in input order, over any number of pages', async () => {
  const lines = 9_000;
  const requests = Array.from({ length: lines }, (_value, index) => `{"custom_id":"line-${index + 1}"}`);
  const { blob, sizeBytes } = await blobs.put(Readable.from([Buffer.from(requests.join('\n'))]));
  // Rows at both ends and around a page boundary, and none at all in the second page.
  const answered = [1, 2, 4_095, 4_096, 8_999];
  const rows = answered.map((line) => ({ line, status: 400, data: Buffer.from(`{"custom_id":"line-${line}"}`) }));
  const id = await createFinalizing(lines, rows, 'expired');
  await database.db.updateTable('batch_chunk').set({ byte_length: sizeBytes }).where('batch_id', '=', id).execute();
  const files = await finalise(id, blob);
  expect(files.has('output')).toBe(false);
  const written = (await contentOf(files.get('error'))).toString('utf8').trimEnd().split('\n');
  const parsed = written.map((line) => JSON.parse(line) as { custom_id: string; error?: { code: string } });
  expect(parsed.map(({ custom_id }) => custom_id)).toEqual(requests.map((_line, index) => `line-${index + 1}`));
  expect(parsed.filter(({ error }) => error?.code === 'batch_expired')).toHaveLength(lines - answered.length);
  expect(await readBatch(database, id)).toMatchObject({ status: 'expired' });
  expect((await readChunks(database, id)).map(({ state }) => state)).toEqual(['done']);
});

test.each(['expired', 'cancelled'] as const)(
  'a batch that is %s and has lost its input ends at the third attempt, with the results that it has',
  async (reason) => {
    const rows = [
      { line: 1, status: 200, data: Buffer.from('{"custom_id":"line-1"}') },
      { line: 3, status: 0, data: Buffer.from('{"custom_id":"line-3"}') },
    ];
    const id = await createFinalizing(4, rows, reason);
    const lost = 'f'.repeat(32);
    for (const retries of [0, 1]) await expect(finalise(id, lost, retries)).rejects.toThrow('no longer exists');
    const files = await finalise(id, lost, 2);
    expect((await contentOf(files.get('output'))).toString()).toBe('{"custom_id":"line-1"}\n');
    const errors = (await contentOf(files.get('error'))).toString().trimEnd().split('\n');
    const code = `batch_${reason}`;
    expect(errors.map((line) => JSON.parse(line) as object)).toMatchObject([
      { custom_id: null, error: { code } },
      { custom_id: 'line-3' },
      { custom_id: null, error: { code } },
    ]);
    expect(await readBatch(database, id)).toMatchObject({ status: reason });
  },
);

test('when two finalise a batch at the same time, one of them ends it', async () => {
  const rows = [{ line: 1, status: 200, data: Buffer.from('{}') }];
  const id = await createFinalizing(1, rows, 'completed');
  const both = await Promise.all([finalise(id), finalise(id)]);
  expect(both.filter((files) => files.size > 0)).toHaveLength(1);
  const ends = (await readEvents(database, id)).filter((event) => event.type === 'batch.completed');
  expect(ends).toHaveLength(1);
});

test('files that do not match the counts do not end the batch', async () => {
  const rows = [{ line: 1, status: 200, data: Buffer.from('{}') }];
  const id = await createFinalizing(1, rows, 'completed');
  await database.db.deleteFrom('batch_result').where('batch_id', '=', id).execute();
  const { blob } = await blobs.put(Readable.from([Buffer.from('{"custom_id":"line-1"}')]));
  await database.db.updateTable('batch_chunk').set({ byte_length: 22 }).where('batch_id', '=', id).execute();
  await expect(finalise(id, blob)).rejects.toThrow('do not fit the counts');
  expect(await readBatch(database, id)).toMatchObject({ status: 'finalizing' });
});

test('lines of a segment that was lost or damaged become errors after many attempts, and the others are kept', async () => {
  const texts = Array.from({ length: 200 }, (_value, index) => `{"n":${index + 1}}`);
  const rows = texts.map((text, index) => ({ line: index + 1, status: 200, data: Buffer.from(text) }));
  const id = await createFinalizing(rows.length, rows, 'completed', blobs);
  const stored = await database.db
    .selectFrom('batch_result')
    .select(['first_line', 'segment', 'digests'])
    .where('batch_id', '=', id)
    .orderBy('first_line')
    .execute();
  await blobs.remove(stored[1]?.segment ?? '');
  const digests = Buffer.from(stored[0]?.digests ?? '');
  digests[0] = 255 - (digests[0] ?? 0);
  await database.db
    .updateTable('batch_result')
    .set({ digests })
    .where('batch_id', '=', id)
    .where('first_line', '=', 1)
    .execute();
  for (const retries of [0, 29]) await expect(finalise(id, 'unused', retries)).rejects.toThrow('no longer exists');
  const files = await finalise(id, 'unused', 30);
  const kept = texts.filter((_text, index) => index !== 0 && (index < 64 || index >= 128));
  expect((await contentOf(files.get('output'))).toString()).toBe(kept.map((text) => `${text}\n`).join(''));
  const errors = (await contentOf(files.get('error'))).toString().trimEnd().split('\n');
  expect(errors).toHaveLength(65);
  for (const line of errors) expect(JSON.parse(line)).toMatchObject({ error: { code: 'result_lost' } });
  expect(await readBatch(database, id)).toMatchObject({ status: 'completed', completed: 200 });
});
