import { sql } from 'kysely';
import pg from 'pg';
import { afterEach, describe, expect, inject, test, vi } from 'vitest';
import { createDatabase, createPool } from '#libs/database/pool.ts';
import { createTestLogger } from '#libs/http/http-test-kit.ts';
import { createRequestLog, type RequestLog, type RequestLogDeps } from '#libs/request-log/write/request-log.ts';
import { logEntry } from '#test/log-entry.ts';
import { createTestDatabase, useTestDatabase } from '#test/postgres.ts';
import { startTcpProxy } from '../database/tcp-proxy.ts';

const database = useTestDatabase();
const logs: RequestLog[] = [];

function createLog(deps: Partial<RequestLogDeps> = {}) {
  const { logger, lines } = createTestLogger();
  const log = createRequestLog({
    app: 'api',
    db: database.db,
    pool: database.pool,
    logger,
    clock: { now: () => Date.now() },
    retryDelayMs: 10,
    ...deps,
  });
  logs.push(log);
  return { log, lines };
}

afterEach(async () => {
  for (const log of logs.splice(0)) await log.stop?.();
});

/** The rows of one process in their order, each with the transaction that wrote it: a group is one transaction. */
async function rowsOf(log: RequestLog, db = database.db) {
  const { rows } = await sql<{ sequence: number; group: string; request_id: string }>`
    select sequence, xmin::text as "group", request_id from request_log_row
    where process_id = ${log.processId} order by sequence`.execute(db);
  return rows;
}

/** For conditions that a busy machine takes its time to meet. */
const patience = { timeout: 20_000 };

const countTo = (count: number): number[] => Array.from({ length: count }, (_, index) => index + 1);

test('a row holds what was recorded, its day and its place in the sequence of its process', async () => {
  const { log } = createLog({ clock: { now: () => Date.UTC(2026, 10, 21, 12) } });
  const entry = logEntry({ metadata: { user: 'ü "quoted" \\ back', '': '' }, batch_id: 'batch_1', batch_line: 7 });
  log.record(entry);
  await log.flush();
  const [row] = await database.db
    .selectFrom('request_log_row')
    .selectAll()
    .where('process_id', '=', log.processId)
    .execute();
  expect(row).toEqual({
    ...entry,
    id: expect.stringMatching(/^01a1fdfa-4600-7/),
    recorded_on: '2026-11-21',
    process_id: log.processId,
    sequence: 1,
  });
});

describe('groups', () => {
  test('are of 64 rows when rows come no faster than they are written', async () => {
    const { log } = createLog();
    for (let group = 0; group < 4; group += 1) {
      for (let index = 0; index < 64; index += 1) log.record(logEntry());
      await vi.waitFor(() => expect(log.stats().waitingRows).toBe(0));
    }
    const groups = Map.groupBy(await rowsOf(log), (row) => row.group);
    expect([...groups.values()].map((rows) => rows.length)).toEqual([64, 64, 64, 64]);
  });

  test('grow to 512 rows, one after the other, when rows come faster', async () => {
    const { log } = createLog();
    for (let index = 0; index < 2_000; index += 1) log.record(logEntry());
    await log.flush();
    const rows = await rowsOf(log);
    expect(rows.map((row) => row.sequence)).toEqual(countTo(2_000));
    const groups = [...Map.groupBy(rows, (row) => row.group).values()];
    expect(groups.map((group) => group.length)).toEqual([64, 512, 512, 512, 400]);
    const transactions = groups.map(([row]) => Number(row?.group));
    expect(transactions.toSorted((a, b) => a - b)).toEqual(transactions);
  });

  test('several processes write at once, each in its own gap-free sequence', async () => {
    const processes = [createLog(), createLog(), createLog()].map(({ log }) => log);
    for (let round = 0; round < 20; round += 1) {
      for (const log of processes) for (let index = 0; index < 40; index += 1) log.record(logEntry());
      await vi.waitFor(() => expect(processes.every((log) => log.stats().waitingRows < 64)).toBe(true));
    }
    for (const log of processes) {
      await log.flush();
      expect((await rowsOf(log)).map((row) => row.sequence)).toEqual(countTo(800));
    }
  });
});

test('what a hostile provider answers does not keep rows out of the log', async () => {
  const { log, lines } = createLog();
  for (let index = 1; index <= 64; index += 1) log.record(logEntry({ request_id: `req_${index}` }));
  const odd = [
    logEntry({ response_model: 'nul\0' }),
    logEntry({ finish_reason: '\u{D800}' }),
    logEntry({ input_tokens: 1e300, output_tokens: 2.5, duration_ms: NaN }),
    logEntry({ provider_request_id: 'é'.repeat(1_000_000) }),
    logEntry({ metadata: { a: '\0' } }),
    logEntry({ trace_id: 'x'.repeat(1_000_000) }),
  ];
  for (const entry of odd) log.record(entry);
  await log.flush();
  expect((await rowsOf(log)).map((row) => row.sequence)).toEqual(countTo(70));
  expect(log.stats()).toMatchObject({ writtenRows: 70, lostRows: 0, waitingRows: 0, waitingBytes: 0 });
  // Half a character outside metadata has become U+FFFD before.
  expect(lines.filter((line) => String(line.msg).includes('writing it without invalid characters'))).toHaveLength(3);
});

test('a row that breaks a rule of the table is logged and left out, alone', async () => {
  const { log, lines } = createLog();
  for (let index = 1; index <= 64; index += 1) {
    log.record(logEntry(index === 10 ? { kind: 'neither' as 'live', request_id: 'req_bad' } : {}));
  }
  await log.flush();
  expect((await rowsOf(log)).map((row) => row.sequence)).toEqual(countTo(64).filter((sequence) => sequence !== 10));
  expect(log.stats()).toMatchObject({ writtenRows: 63, lostRows: 1 });
  expect(lines.at(-1)).toMatchObject({ level: 50, request_id: 'req_bad', sequence: 10, workspace_id: 'ws_1' });
});

describe('a database that is away', () => {
  test('gets every row exactly once when it is back; meanwhile the log says that it is full', async () => {
    const own = await createTestDatabase({ connectionTimeoutMs: 1_000 });
    const admin = new pg.Client({ connectionString: inject('postgres').adminUrl });
    await admin.connect();
    try {
      const name = new URL(own.connectionString).pathname.slice(1);
      const { log } = createLog({ db: own.db, pool: own.pool, queueRowsMax: 500 });
      for (let index = 0; index < 100; index += 1) log.record(logEntry());
      await log.flush();

      await admin.query(`alter database ${name} allow_connections false`);
      await admin.query('select pg_terminate_backend(pid) from pg_stat_activity where datname = $1', [name]);
      for (let index = 0; index < 400; index += 1) log.record(logEntry());
      expect(log.isFull()).toBe(false);
      for (let index = 0; index < 100; index += 1) log.record(logEntry());
      expect(log.isFull()).toBe(true);
      await vi.waitFor(() => expect(log.stats().isDatabaseDown).toBe(true), { timeout: 10_000 });
      expect(log.stats()).toMatchObject({ writtenRows: 100, lostRows: 0, waitingRows: 500 });

      await admin.query(`alter database ${name} allow_connections true`);
      for (let index = 0; index < 10; index += 1) log.record(logEntry());
      await log.flush();
      expect((await rowsOf(log, own.db)).map((row) => row.sequence)).toEqual(countTo(610));
      expect(log.isFull()).toBe(false);
      expect(log.stats()).toMatchObject({ isDatabaseDown: false, writtenRows: 610, lostRows: 0, waitingBytes: 0 });
      await log.stop?.();
    } finally {
      await admin.end();
      await own.drop();
    }
  });

  test('and that ends the session in the middle of a write still gets its rows once', async () => {
    const { log } = createLog();
    log.record(logEntry());
    await log.flush(); // the partition is there
    const holder = await database.pool.connect();
    try {
      await holder.query('begin');
      await holder.query('lock table request_log_row in share mode');
      for (let index = 0; index < 64; index += 1) log.record(logEntry());
      const terminated = await vi.waitFor(async () => {
        // Not in the holder's transaction: all that it sees of other sessions is what it saw first.
        const { rows } = await database.pool.query(
          `select pg_terminate_backend(pid) as done from pg_stat_activity
           where datname = current_database() and wait_event_type = 'Lock' and query like 'copy request_log_row %'`,
        );
        expect(rows).toHaveLength(1);
        return rows;
      }, patience);
      expect(terminated).toEqual([{ done: true }]);
      await vi.waitFor(() => expect(log.stats().isDatabaseDown).toBe(true), patience);
      await holder.query('commit');
    } finally {
      holder.release();
    }
    await log.flush();
    expect((await rowsOf(log)).map((row) => row.sequence)).toEqual(countTo(65));
  });

  // What the server sends: CopyInResponse asks for the rows; CommandComplete comes after they are durable.
  test.each([
    ['before the rows were sent', (data: Buffer) => data[0] === 0x47],
    ['after they were committed', (data: Buffer) => data.includes('COPY 64\0')],
  ])('and whose connection is lost %s gets its rows once', async (_when, isMoment) => {
    const proxy = await startTcpProxy(database.connectionString);
    const { logger } = createTestLogger();
    const pool = createPool({ connectionString: proxy.connectionString, applicationName: 'through-proxy' }, logger);
    try {
      const { log, lines } = createLog({ db: createDatabase(pool), pool });
      let losses = 0;
      proxy.setFilter((data) => {
        if (losses > 0 || !isMoment(data)) return true;
        losses += 1;
        proxy.resetAll();
        return false;
      });
      for (let index = 0; index < 70; index += 1) log.record(logEntry());
      await log.flush();
      expect(losses).toBe(1);
      // A heartbeat that was under way on another connection lost it too.
      const ofRows = lines.filter((line) => line.loop !== 'request log heartbeat');
      expect(ofRows.map((line) => line.msg)).toEqual([
        'the request log is waiting for the database',
        'the request log can be written again',
      ]);
      expect((await rowsOf(log)).map((row) => row.sequence)).toEqual(countTo(70));
      expect(log.stats()).toMatchObject({ writtenRows: 70, lostRows: 0, isDatabaseDown: false });
    } finally {
      await pool.end();
      await proxy.close();
    }
  });
});
