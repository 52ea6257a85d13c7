import { mkdtemp, readFile, rm, writeFile, chmod } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { Readable } from 'node:stream';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { checkResults } from '#libs/batches/look/check-results.ts';
import { createDiskBlobStore } from '#libs/blobs/disk-blob-store.ts';
import type { BlobStore } from '#libs/blobs/blob-store.ts';
import { useTestDatabase } from '#test/postgres.ts';
import { createRunningBatch, settleLines, useBatchEngine } from './running-batch.ts';

// Results that were changed where they are stored, before or after the files were made from them.

const database = useTestDatabase();
const engine = useBatchEngine(database);
let folder: string;
let blobs: BlobStore;
let id: string;

beforeAll(async () => {
  folder = await mkdtemp(path.join(tmpdir(), 'sluice-stored-'));
  blobs = await createDiskBlobStore({ folder });
});
afterAll(() => rm(folder, { recursive: true, force: true }));

/** A running batch with the results of two events: of lines 1 to 3, and of lines 4 and 6. */
beforeEach(async () => {
  await database.tamper('delete from batch');
  id = await createRunningBatch(database, engine, { lines: 8 });
  await settleLines(engine, id, [1, 2, 3]);
  await settleLines(engine, id, [4, 6]);
});

async function findViolations(): Promise<string[]> {
  const files = { find: () => Promise.resolve(undefined) };
  const violations: string[] = [];
  for await (const check of checkResults({ db: database.db, files, blobs })) {
    expect(check.batchId).toBe(id);
    violations.push(...check.violations);
  }
  return violations;
}

const change = (statement: string): Promise<void> =>
  database.tamper(`update batch_result set ${statement} and batch_id = '${id}'`);

/** Moves the results of the first event to a segment, as those of large groups are. Returns the file. */
async function toSegment(): Promise<string> {
  const { rows } = await database.pool.query<{ data: Buffer }>(
    'select data from batch_result where batch_id = $1 and first_line = 1',
    [id],
  );
  const { blob } = await blobs.put(Readable.from(rows.map(({ data }) => data)));
  await change(`data = null, segment = '${blob}', segment_offset = 0 where first_line = 1`);
  return path.join(folder, blob.slice(0, 2), blob.slice(2, 4), blob);
}

test('unchanged results have no findings, in rows and in segments', async () => {
  expect(await findViolations()).toEqual([]);
  await toSegment();
  expect(await findViolations()).toEqual([]);
});

test.each([
  [
    'a byte in a row',
    "data = overlay(data placing '\\x58'::bytea from octet_length(data) - 30) where first_line = 1",
    ['line 3: its stored result was changed'],
  ],
  [
    'a row that is cut off',
    "data = '' where first_line = 4",
    [4, 6].map((line) => `line ${line}: its stored result was lost`),
  ],
  [
    'a digest',
    "digests = overlay(digests placing '\\x0000'::bytea from 33) where first_line = 4",
    ['line 6: its stored result was changed', 'event 4: results_root does not match the stored results'],
  ],
  [
    'a byte and its digest',
    "data = '{}', lengths = '{1,1}', digests = sha256('{') || sha256('}') where first_line = 4",
    ['event 4: results_root does not match the stored results'],
  ],
  [
    'a number of a line',
    "lines = '{4,5}' where first_line = 4",
    ['event 4: results_root does not match the stored results'],
  ],
  ['a version', 'version = 5 where first_line = 4', ['event 4: its results are not stored']],
  [
    'an earlier version',
    'version = 2 where first_line = 1',
    ['the stored results of event 2 belong to no event', 'event 3: its results are not stored'],
  ],
])('a change is found: %s', async (_what, statement, violations) => {
  await change(statement);
  expect(await findViolations()).toEqual(violations);
});

test('removed results are found, all of them too', async () => {
  await database.tamper(`delete from batch_result where first_line = 1 and batch_id = '${id}'`);
  expect(await findViolations()).toEqual(['event 3: its results are not stored']);
  await database.tamper(`delete from batch_result where batch_id = '${id}'`);
  expect(await findViolations()).toEqual([
    'event 3: its results are not stored',
    'event 4: its results are not stored',
  ]);
  // Retention deletes the results of ended batches.
  await database.tamper(`update batch set status = 'completed' where id = '${id}'`);
  expect(await findViolations()).toEqual([]);
});

test('a changed byte in a segment is found, and a lost segment', async () => {
  const file = await toSegment();
  const bytes = await readFile(file);
  bytes[10] = (bytes[10] ?? 0) ^ 1;
  await chmod(file, 0o600);
  await writeFile(file, bytes);
  expect(await findViolations()).toEqual(['line 1: its stored result was changed']);
  await rm(file);
  expect(await findViolations()).toEqual([1, 2, 3].map((line) => `line ${line}: its stored result was lost`));
});
