import { sql } from 'kysely';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { createTestLogger } from '#libs/http/http-test-kit.ts';
import { deleteOldCalls } from '#libs/request-log/write/delete-old-calls.ts';
import { ensureLogPartition } from '#libs/request-log/write/log-partitions.ts';
import { createRequestLog } from '#libs/request-log/write/request-log.ts';
import { logEntry } from '#test/log-entry.ts';
import { createTestDatabase, type TestDatabase } from '#test/postgres.ts';

let database: TestDatabase;
beforeEach(async () => {
  database = await createTestDatabase();
});
afterEach(async () => {
  await database.drop();
});

const midnightMs = Date.UTC(2026, 10, 22);

function createLog(clock: { now: () => number }) {
  const { logger, lines } = createTestLogger();
  return {
    log: createRequestLog({ app: 'api', db: database.db, pool: database.pool, logger, clock, retryDelayMs: 10 }),
    lines,
  };
}

async function partitions(): Promise<string[]> {
  const { rows } = await sql<{ name: string }>`
    select inhrelid::regclass::text as name from pg_inherits where inhparent = 'request_log_row'::regclass order by 1`.execute(
    database.db,
  );
  return rows.map((row) => row.name);
}

test('the partitions of today and tomorrow are there after the start', async () => {
  const { log } = createLog({ now: () => midnightMs - 1 });
  await log.start?.();
  await log.stop?.();
  expect(await partitions()).toEqual(['request_log_row_20261121', 'request_log_row_20261122']);
});

test('rows of both sides of midnight lie in the partitions of their days', async () => {
  let nowMs = midnightMs - 1;
  const { log } = createLog({ now: () => nowMs });
  log.record(logEntry({ request_id: 'req_before' }));
  nowMs += 1;
  log.record(logEntry({ request_id: 'req_after' }));
  await log.flush();
  nowMs += 86_400_000 * 3;
  log.record(logEntry({ request_id: 'req_later' }));
  await log.stop?.();
  const { rows } = await sql`
    select tableoid::regclass::text as partition, recorded_on, request_id, sequence from request_log_row order by sequence
  `.execute(database.db);
  expect(rows).toEqual([
    { partition: 'request_log_row_20261121', recorded_on: '2026-11-21', request_id: 'req_before', sequence: 1 },
    { partition: 'request_log_row_20261122', recorded_on: '2026-11-22', request_id: 'req_after', sequence: 2 },
    { partition: 'request_log_row_20261125', recorded_on: '2026-11-25', request_id: 'req_later', sequence: 3 },
  ]);
});

test('many processes that see a new day at once make its partition once, with the indexes of the log', async () => {
  await Promise.all(Array.from({ length: 8 }, () => ensureLogPartition(database.db, '2026-11-21')));
  expect(await partitions()).toEqual(['request_log_row_20261121']);
  const { rows } = await sql<{ parent: string }>`
    select parent.relname as parent from pg_index
    join pg_inherits on inhrelid = indexrelid join pg_class as parent on parent.oid = inhparent
    where indrelid = 'request_log_row_20261121'::regclass order by 1`.execute(database.db);
  expect(rows.map((row) => row.parent)).toEqual([
    'request_log_row_list',
    'request_log_row_pkey',
    'request_log_row_session',
    'request_log_row_trace',
  ]);
});

test('a new partition does not wait for a reader of the log, nor keeps writers out', async () => {
  const { log } = createLog({ now: () => midnightMs - 1 });
  await log.start?.();
  const reader = await database.pool.connect();
  try {
    await reader.query('begin');
    await reader.query('select count(*) from request_log'); // holds its lock until the transaction ends
    await ensureLogPartition(database.db, '2026-12-01');
  } finally {
    await reader.query('rollback');
    reader.release();
  }
  expect(await partitions()).toContain('request_log_row_20261201');
  await log.stop?.();
});

test('a partition that was dropped under a running process is made again', async () => {
  const { log } = createLog({ now: () => midnightMs - 1 });
  log.record(logEntry());
  await log.flush();
  await sql`drop table request_log_row_20261121`.execute(database.db);
  log.record(logEntry());
  await log.flush();
  await log.stop?.();
  const { rows } = await sql`select sequence from request_log`.execute(database.db);
  expect(rows).toEqual([{ sequence: 2 }]);
});

test('retention drops whole days, and no day that ended less than that long ago', async () => {
  for (const day of ['2026-10-20', '2026-10-22', '2026-10-23', '2026-11-21', '2026-11-22']) {
    await ensureLogPartition(database.db, day);
  }
  await sql`create table request_log_row_20200101 (id int)`.execute(database.db); // not of the log
  // 2026-10-22 ended 30 days before this moment.
  expect(await deleteOldCalls(database.db, 30, Date.UTC(2026, 10, 21, 23, 59))).toEqual(['2026-10-20']);
  expect(await deleteOldCalls(database.db, 30, Date.UTC(2026, 10, 22))).toEqual(['2026-10-22']);
  expect(await deleteOldCalls(database.db, 30, Date.UTC(2026, 10, 22))).toEqual([]);
  expect(await partitions()).toEqual([
    'request_log_row_20261023',
    'request_log_row_20261121',
    'request_log_row_20261122',
  ]);
  await sql`select from request_log_row_20200101`.execute(database.db);
});

test.each([0, -1, 1.5, Number.NaN])('a retention of %d days is refused', async (days) => {
  await ensureLogPartition(database.db, '2020-01-01');
  await expect(deleteOldCalls(database.db, days, midnightMs)).rejects.toThrow(RangeError);
  expect(await partitions()).toEqual(['request_log_row_20200101']);
});
