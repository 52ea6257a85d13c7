import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { Readable } from 'node:stream';
import { sql } from 'kysely';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { readFailures, readLines, type LinesPage } from '#libs/batches/look/read-lines.ts';
import type { BlobStore } from '#libs/blobs/blob-store.ts';
import { createDiskBlobStore } from '#libs/blobs/disk-blob-store.ts';
import { useTestDatabase } from '#test/postgres.ts';
import { createRunningBatch, readBatch, storeResults, useBatchEngine } from './running-batch.ts';

// A page of lines is read with little memory, however large the lines are.

const database = useTestDatabase();
const engine = useBatchEngine(database);
const mebibyte = 1_048_576;
const linesPerChunk = 4;
const lines = 160;
let folder: string;
let blobs: BlobStore;
let id: string;
let blob: string;

/** A line of 256 KiB. */
const requestOf = (line: number): string =>
  `{"custom_id":"line-${line}","body":"${'x'.repeat(mebibyte / linesPerChunk - 40)}"}`.padEnd(
    mebibyte / linesPerChunk - 1,
  );

beforeAll(async () => {
  folder = await mkdtemp(path.join(tmpdir(), 'sluice-lines-'));
  blobs = await createDiskBlobStore({ folder });
  const content = Array.from({ length: lines }, (_value, index) => Buffer.from(`${requestOf(index + 1)}\n`));
  ({ blob } = await blobs.put(Readable.from(content)));
  id = await createRunningBatch(database, engine, { lines, linesPerChunk });
  await sql`update batch_chunk set byte_offset = chunk * ${mebibyte}, byte_length = ${mebibyte} - 1
    where batch_id = ${id}`.execute(database.db);
});
afterAll(() => rm(folder, { recursive: true, force: true }));

type Query = Omit<Parameters<typeof readLines>[2], 'after'>;

/** All pages, and what each had read at the most: of the input file, and of results. */
async function readAll(query: Query): Promise<{ pages: LinesPage[]; fileBytes: number; resultBytes: number }> {
  const most = { fileBytes: 0, resultBytes: 0 };
  const pages: LinesPage[] = [];
  for (let after = 0, isEnd = false; !isEnd;) {
    const read = { fileBytes: 0, resultBytes: 0 };
    const deps = {
      db: database.db,
      blobs: {
        readRange: (name: string, offset: number, length: number) => {
          read[name === blob ? 'fileBytes' : 'resultBytes'] += length;
          return blobs.readRange(name, offset, length);
        },
      },
      inputBlob: () => Promise.resolve(blob),
    };
    const page = await readLines(deps, await readBatch(database, id), { ...query, after });
    pages.push(page);
    [after, isEnd] = [page.lastLine, !page.hasMore];
    for (const name of ['fileBytes', 'resultBytes'] as const) most[name] = Math.max(most[name], read[name]);
  }
  return { pages, ...most };
}

const numbersOf = (pages: readonly LinesPage[]): number[] =>
  pages.flatMap((page) => page.lines.map(({ line }) => line));
const all = Array.from({ length: lines }, (_value, index) => index + 1);

test('pages of pending lines read no more of a large input file than a page has', async () => {
  const { pages, fileBytes } = await readAll({ limit: 10, outcome: 'pending' });
  expect(numbersOf(pages)).toEqual(all);
  expect(pages[1]?.lines[0]).toMatchObject({ custom_id: 'line-11', outcome: 'pending' });
  expect(fileBytes).toBeLessThanOrEqual(17 * mebibyte);
});

test('a search finds each line once, and answers are not read beyond those of the page', async () => {
  const batch = await readBatch(database, id);
  // Lines 1 to 150 have answers of 60 KB.
  const answers = all.slice(0, 150).map((line) => {
    const answer = `"response":{"status_code":200,"request_id":"q","body":{"model":"m","pad":"${'y'.repeat(60_000)}"}}`;
    return { line, status: 200, data: Buffer.from(`{"id":"r","custom_id":"line-${line}",${answer},"error":null}`) };
  });
  await storeResults(database, batch, answers, blobs);
  const answered = await readAll({ limit: 10, outcome: 'completed' });
  expect(numbersOf(answered.pages)).toEqual(all.slice(0, 150));
  expect(answered.resultBytes).toBeLessThan(mebibyte);
  const found = await readAll({ limit: 100, search: 'line-14' });
  expect(numbersOf(found.pages)).toEqual([14, ...all.slice(139, 149)]);
  const both = await readAll({ limit: 7, search: 'line-' });
  expect(numbersOf(both.pages)).toEqual(all);
  expect(both.pages.at(-1)?.lines.at(-1)).toMatchObject({ outcome: 'pending', custom_id: 'line-160' });
});

test('failed lines are grouped by code and status, over any number of groups', async () => {
  const failing = await createRunningBatch(database, engine, { lines: 200 });
  const batch = await readBatch(database, failing);
  const failures = [
    { status: 429, failure: { code: 'rate_limited', message: 'slow down' } },
    { status: 0, failure: { code: 'worker_crashed', message: 'm' } },
    { status: 500, failure: { code: null, message: null } },
    { status: 503, failure: { code: null, message: 'busy' } },
    { status: 200, failure: null },
  ];
  const rows = all.concat([161, 162]).map((line) => {
    const failure = failures[line === 7 ? 1 : line % 5] as (typeof failures)[number];
    return { line, ...failure, data: Buffer.from('{}') };
  });
  await storeResults(database, batch, rows, blobs);
  const { groups, examined_lines: examined } = await readFailures(database.db, { ...batch, failed: 130 });
  expect(groups).toEqual([
    { code: 'worker_crashed', status_code: null, count: 34, lines: [1, 6, 7, 11, 16], message: 'm' },
    { code: 'rate_limited', status_code: 429, count: 32, lines: [5, 10, 15, 20, 25], message: 'slow down' },
    { code: null, status_code: 500, count: 32, lines: [2, 12, 17, 22, 27], message: null },
    { code: null, status_code: 503, count: 32, lines: [3, 8, 13, 18, 23], message: 'busy' },
  ]);
  expect(examined).toBe(130);
  const deps = { db: database.db, blobs, inputBlob: () => Promise.resolve(blob) };
  const limited = await readLines(deps, batch, { limit: 3, after: 20, status_code: 429 });
  expect(numbersOf([limited])).toEqual([25, 30, 35]);
});
