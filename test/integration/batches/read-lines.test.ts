import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { Readable } from 'node:stream';
import { sql, type KyselyPlugin } from 'kysely';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { readFailures, readLines, type LinesPage } from '#libs/batches/results/read-lines.ts';
import { resultsBucket } from '#libs/batches/results/results-bucket.ts';
import type { BlobStore } from '#libs/blobs/blob-store.ts';
import { createDiskBlobStore } from '#libs/blobs/disk-blob-store.ts';
import { useTestDatabase } from '#test/postgres.ts';
import { createRunningBatch, readBatch, useBatchEngine } from './running-batch.ts';

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
    const counting: KyselyPlugin = {
      transformQuery: ({ node }) => node,
      transformResult: ({ result }) => {
        for (const { head } of result.rows) if (head instanceof Buffer) read.resultBytes += head.length;
        return Promise.resolve(result);
      },
    };
    const deps = {
      db: database.db.withPlugin(counting),
      blobs: {
        readRange: (name: string, offset: number, length: number) => {
          read.fileBytes += length;
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
  await sql`
    insert into batch_result (bucket, batch_id, line, succeeded, data)
    select ${resultsBucket(batch)}::date, ${id}, line, true, convert_to('{"id":"r","custom_id":"line-' || line ||
      '","response":{"status_code":200,"request_id":"q","body":{"model":"m","pad":"' || repeat('y', 60000) || '"}},"error":null}', 'UTF8')
    from generate_series(1, 150) as line`.execute(database.db);
  const answered = await readAll({ limit: 10, outcome: 'completed' });
  expect(numbersOf(answered.pages)).toEqual(all.slice(0, 150));
  expect(answered.resultBytes).toBeLessThan(mebibyte);
  const found = await readAll({ limit: 100, search: 'line-14' });
  expect(numbersOf(found.pages)).toEqual([14, ...all.slice(139, 149)]);
  const both = await readAll({ limit: 7, search: 'line-' });
  expect(numbersOf(both.pages)).toEqual(all);
  expect(both.pages.at(-1)?.lines.at(-1)).toMatchObject({ outcome: 'pending', custom_id: 'line-160' });
});

test('failed lines are grouped by the first code that is a text, or else by the type of the error', async () => {
  const answered = (body: string): string =>
    `"response":{"status_code":400,"request_id":"q","body":${body}},"error":null`;
  const ends = [
    answered('{"error":{"message":"m","type":"t","code":"plain"}}'),
    answered('{ "error" : { "code" : "spaced" } }'),
    answered('{"error":{"code":null,"type":"of_type"}}'),
    answered('{"error":{"code":429,"inner":{"code":"inner"},"type":"t"}}'),
    answered(String.raw`{"error":{"code":"a\"b","type":"escaped"}}`),
    answered(`{"error":{"code":"${'x'.repeat(101)}"}}`),
    answered('{"error":{"message":"\xff \u{1f600}"}}'),
    '"response":null,"error":{"code":"worker_crashed","message":"m"}',
  ];
  const failing = await createRunningBatch(database, engine, { lines: ends.length });
  const batch = await readBatch(database, failing);
  for (const [index, end] of ends.entries()) {
    const data = Buffer.from(`{"id":"r","custom_id":"a \\"code\\":\\"b\\"",${end}}`);
    await sql`insert into batch_result (bucket, batch_id, line, succeeded, data)
      values (${resultsBucket(batch)}::date, ${failing}, ${index + 1}, false, ${data})`.execute(database.db);
  }
  const { groups } = await readFailures(database.db, { ...batch, failed: ends.length });
  expect(groups.map(({ code, status_code: status, lines: of }) => [of, status, code])).toEqual([
    [[6, 7], 400, null],
    [[1], 400, 'plain'],
    [[2], 400, 'spaced'],
    [[3], 400, 'of_type'],
    [[4], 400, 'inner'],
    [[5], 400, 'escaped'],
    [[8], null, 'worker_crashed'],
  ]);
});
