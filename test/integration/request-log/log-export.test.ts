import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { randomBytes } from 'node:crypto';
import { Readable } from 'node:stream';
import { text } from 'node:stream/consumers';
import { sql } from 'kysely';
import { afterAll, beforeAll, expect, test } from 'vitest';
import type { BlobStore } from '#libs/blobs/blob-store.ts';
import { createDiskBlobStore } from '#libs/blobs/disk-blob-store.ts';
import { createEventLog } from '#libs/event-log/event-log.ts';
import { findReferencedBlobs } from '#libs/files/referenced-blobs.ts';
import { createTestLogger } from '#libs/http/http-test-kit.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { Secret } from '#libs/kernel/logging/secret.ts';
import { createRequestLog } from '#libs/request-log/write/request-log.ts';
import { runLogExport, sweepLogExports } from '#libs/request-log/read/run-log-export.ts';
import { logExportModel, type LogExportData } from '#libs/resources/log-exports.ts';
import { logEntry } from '#test/log-entry.ts';
import { useTestDatabase } from '#test/postgres.ts';

// The worker's side of exports: what a crash, a cancel, a full disk and time do to them.

const database = useTestDatabase();
const { logger } = createTestLogger();
const expected = Array.from({ length: 25 }, (_, index) => `req_${24 - index}`);
let folder: string;
let blobs: BlobStore;

beforeAll(async () => {
  folder = await mkdtemp(path.join(tmpdir(), 'sluice-exports-'));
  blobs = await createDiskBlobStore({ folder });
  const { db, pool } = database;
  const log = createRequestLog({ app: 'api', db, pool, logger, clock: { now: () => Date.UTC(2026, 10, 21) } });
  for (const traceId of expected.toReversed()) log.record(logEntry({ trace_id: traceId }));
  log.record(logEntry({ workspace_id: 'ws_2', trace_id: 'foreign' }));
  for (const bodies_blob of ['bodies_1.0', 'swept.0']) {
    log.record(logEntry({ workspace_id: 'ws_bodies', trace_id: bodies_blob, bodies_blob }));
  }
  await log.stop?.();
});
afterAll(() => rm(folder, { recursive: true, force: true }));

async function started(id: string, data: Partial<LogExportData> = {}, workspaceId = 'ws_1'): Promise<string> {
  const eventLog = createEventLog(database.db);
  const metadata = { actor: { type: 'system' as const, id: 'test' } };
  await eventLog.transact({ workspaceId, streams: [id], metadata }, async (unit) => {
    const created = { filters: {}, requested_data: ['trace_id'], ...data };
    await unit.append(logExportModel, id, [
      { type: 'log_export.created', data: created },
      { type: 'log_export.started', data: { status: 'in_progress', until: '2027-01-01T00:00:00.000Z' } },
    ]);
  });
  return id;
}

const bodyKey = { key: new Secret(randomBytes(32).toString('base64')) };

const run = (id: string, store: BlobStore = blobs, rowsMax = 1_000): Promise<void> => {
  const eventLog = createEventLog(database.db);
  const limits = { rowsMax, partRows: 10, pageRows: 4 };
  return runLogExport(
    { db: database.db, eventLog, blobs: store, logger, secrets: { readOwned: async () => bodyKey }, limits },
    id,
    new AbortController().signal,
  );
};

const partsOf = (id: string) =>
  database.db.selectFrom('log_export_part').selectAll().where('export_id', '=', id).orderBy('part').execute();

async function fileOf(id: string): Promise<string> {
  let whole = '';
  for (const { blob } of await partsOf(id)) whole += await text(await blobs.read(blob));
  return whole;
}

async function dataOf(id: string): Promise<LogExportData> {
  const { rows } = await sql<{ data: LogExportData }>`select data from resource where id = ${id}`.execute(database.db);
  return rows[0]?.data as LogExportData;
}

const lines = expected.map((trace_id) => `${JSON.stringify({ trace_id })}\n`).join('');

/** A store whose writers fail after `left` writes, as if the process had been killed there. */
const failingAfter = (left: number, error: Error): BlobStore => ({
  ...blobs,
  async openWriter() {
    const writer = await blobs.openWriter();
    return {
      ...writer,
      write: (chunk) => {
        left -= 1;
        return left < 0 ? Promise.reject(error) : writer.write(chunk);
      },
    };
  },
});

test.each(['ndjson', 'csv'] as const)(
  'a %s export that was ended in the middle goes on, each row once',
  async (format) => {
    const id = await started(`export_resumed_${format}`, { format });
    await expect(run(id, failingAfter(6, new Error('killed')))).rejects.toThrow('killed');
    expect(await dataOf(id)).toMatchObject({ status: 'in_progress' });
    expect(await partsOf(id)).toMatchObject([{ part: 0, rows: 12 }]);
    await run(id);
    expect(await dataOf(id)).toMatchObject({ status: 'success' });
    expect((await partsOf(id)).map(({ rows }) => rows)).toEqual([12, 12, 1]);
    expect(await fileOf(id)).toBe(format === 'ndjson' ? lines : ['trace_id', ...expected, ''].join('\n'));
  },
);

test('the page of an export is counted over its parts', async () => {
  const id = await started('export_page', { filters: { current_page: 1, page_size: 11 } });
  await expect(run(id, failingAfter(4, new Error('killed')))).rejects.toThrow('killed');
  await run(id);
  expect((await fileOf(id)).trimEnd().split('\n')).toEqual(
    expected.slice(11, 22).map((trace_id) => JSON.stringify({ trace_id })),
  );
});

test('a full disk and too many records end an export as failed, and say why', async () => {
  const full = await started('export_full');
  await run(full, failingAfter(2, new GatewayError('storage_full', 'storage_full', 'The disk is full.')));
  expect(await dataOf(full)).toMatchObject({ status: 'failed', error: 'The disk is full.' });
  const large = await started('export_large');
  await run(large, blobs, 20);
  expect(await dataOf(large)).toMatchObject({
    status: 'failed',
    error: expect.stringContaining('More than 20 records'),
  });
});

test('bodies that cannot be opened end an export as failed, and it says which record they are of', async () => {
  const { db } = database;
  const { blob } = await blobs.put(Readable.from([randomBytes(100)]));
  const row = { id: 'bodies_1', workspace_id: 'ws_bodies', blob, offsets: [0, 100], size_bytes: 100, key_owner: 'key' };
  await db
    .insertInto('recorded_bodies')
    .values({ ...row, expires_at: new Date(Date.now() + 3_600_000) })
    .execute();
  const whole = { requested_data: ['trace_id', 'request'] } satisfies Partial<LogExportData>;
  const damaged = await started('export_damaged', whole, 'ws_bodies');
  await run(damaged);
  expect(await dataOf(damaged)).toMatchObject({ status: 'failed', error: expect.stringMatching(/bodies of log_\w+/) });
  await sql`delete from recorded_bodies`.execute(db);
  const gone = await started('export_gone', whole, 'ws_bodies');
  await run(gone);
  expect((await fileOf(gone)).split('\n').filter((line) => line.includes('"body":null'))).toHaveLength(2);
});

test('an export that has ended is not written again', async () => {
  const id = await started('export_twice');
  await run(id);
  const parts = await partsOf(id);
  await run(id);
  expect(await partsOf(id)).toEqual(parts);
});

test('the files of exports are needed until their time is over', async () => {
  const id = await started('export_old');
  await run(id);
  const names = (await partsOf(id)).map(({ blob }) => blob);
  expect(await findReferencedBlobs(database.db, names)).toEqual(new Set(names));
  await sweepLogExports(database.db, 3_600_000);
  expect(await partsOf(id)).toHaveLength(3);
  await sweepLogExports(database.db, 0);
  expect(await partsOf(id)).toEqual([]);
  expect(await findReferencedBlobs(database.db, names)).toEqual(new Set());
});
