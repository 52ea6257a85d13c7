import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { appendFile, mkdtemp, readdir, readFile, rm, truncate, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { sql } from 'kysely';
import { afterEach, beforeEach, expect, onTestFinished, test } from 'vitest';
import { createTestLogger } from '#libs/http/http-test-kit.ts';
import { checkRequestLog } from '#libs/request-log/audit/check-log.ts';
import { createCopyRows } from '#libs/request-log/write/copy-rows.ts';
import { createInsertRows, type WriteRows } from '#libs/request-log/write/insert-rows.ts';
import { createRequestLog, type RequestLog, type RequestLogDeps } from '#libs/request-log/write/request-log.ts';
import { eventually } from '#test/eventually.ts';
import { logEntry } from '#test/log-entry.ts';
import { useTestDatabase } from '#test/postgres.ts';

// Rows of the request log that wait on the disk while the database is away.

const database = useTestDatabase();
const logs: RequestLog[] = [];
let folder: string;
let isDatabaseDown: boolean;

beforeEach(async () => {
  folder = await mkdtemp(path.join(tmpdir(), 'sluice-rows-'));
  isDatabaseDown = true;
});
afterEach(async () => {
  isDatabaseDown = false;
  for (const log of logs.splice(0)) await log.stop?.();
  await rm(folder, { recursive: true, force: true });
});

/** A log whose database is unavailable while `isDatabaseDown` is true. */
function createLog(deps: Partial<RequestLogDeps> = {}) {
  const { logger, lines } = createTestLogger();
  const copyRows = createCopyRows(database.pool);
  const away = (): Error => Object.assign(new Error('connect ECONNREFUSED'), { code: 'ECONNREFUSED' });
  const insertRows: WriteRows = async (content) => {
    if (isDatabaseDown) throw away();
    await createInsertRows(database.db, log.processId)(content);
  };
  const log: RequestLog = createRequestLog({
    app: 'api',
    db: database.db,
    pool: database.pool,
    logger,
    clock: { now: () => Date.now() },
    retryDelayMs: 10,
    disk: { folder, bytesMax: 16_777_216 },
    copyRows: async (group, isBehind) => {
      if (isDatabaseDown) throw away();
      await copyRows(group, isBehind);
    },
    insertRows,
    ...deps,
  });
  logs.push(log);
  const record = (count: number): void => {
    for (let index = 0; index < count; index += 1) log.record(logEntry());
  };
  return { log, lines, record };
}

/** As long after now as a file has to be left alone before another process takes it. */
const later = { now: () => Date.now() + 61_000 };

async function sequencesOf(processId: string): Promise<number[]> {
  const { rows } = await sql<{ sequence: number }>`
    select sequence from request_log where process_id = ${processId} order by sequence`.execute(database.db);
  return rows.map((row) => row.sequence);
}

const countTo = (count: number): number[] => Array.from({ length: count }, (_, index) => index + 1);
const patience = { timeoutMs: 20_000 };

test('while the database is away far more rows wait than memory may hold; afterwards all are there, in order', async () => {
  const { log, record } = createLog({ queueRowsMax: 1_000 });
  for (let wave = 0; wave < 10; wave += 1) {
    record(900);
    const recorded = 900 * (wave + 1);
    await eventually(
      () => log.stats().rowsOnDisk,
      (rows) => rows === recorded,
      patience,
    );
    expect(log.isFull()).toBe(false);
  }
  expect(log.stats()).toMatchObject({ waitingRows: 9_000, rowsOnDisk: 9_000, writtenRows: 0, lostRows: 0 });
  isDatabaseDown = false;
  record(50);
  await log.flush();
  expect(await sequencesOf(log.processId)).toEqual(countTo(9_050));
  expect(log.stats()).toMatchObject({
    waitingRows: 0,
    rowsOnDisk: 0,
    waitingBytes: 0,
    writtenRows: 9_050,
    lostRows: 0,
  });
  expect(await readdir(folder)).toEqual([]);
});

test('when the disk has no more room rows wait in memory, and then the log is full', async () => {
  const { log, record } = createLog({ queueRowsMax: 1_000, disk: { folder, bytesMax: 100_000 } });
  record(900);
  const kept = await eventually(
    () => log.stats().rowsOnDisk,
    (rows) => rows > 0,
    patience,
  );
  expect(kept).toBeLessThan(900);
  record(kept + 100);
  expect(log.isFull()).toBe(true);
  isDatabaseDown = false;
  await log.flush();
  expect(await sequencesOf(log.processId)).toEqual(countTo(1_000 + kept));
});

test('a disk that refuses rows is told of once, and they wait in memory', async () => {
  const { log, record, lines } = createLog({ disk: { folder: '/dev/null/rows', bytesMax: 1_000_000 } });
  record(100);
  const refusals = (): unknown[] =>
    lines.filter(({ msg }) => msg === 'request-log rows cannot be buffered on the disk');
  await eventually(refusals, (found) => found.length > 0, patience);
  record(100);
  isDatabaseDown = false;
  await log.flush();
  expect(await sequencesOf(log.processId)).toEqual(countTo(200));
  expect(refusals()).toHaveLength(1);
});

test('rows of a process that is killed while the database is away are written by another, and none is missing', async () => {
  const script = fileURLToPath(new URL('./keeping-writer.ts', import.meta.url));
  const writer = spawn(process.execPath, [script, 'postgres://nobody@127.0.0.1:1/none', folder], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  onTestFinished(() => void writer.kill('SIGKILL'));
  const [output] = (await once(writer.stdout, 'data')) as [Buffer];
  const processId = output.toString().trim();
  writer.kill('SIGKILL');
  await once(writer, 'exit');
  // Killed in the middle of a write, by a machine that lost its power.
  await appendFile(path.join(folder, `${processId}.rows`), Buffer.alloc(700));

  isDatabaseDown = false;
  const early = createLog().log;
  await early.start?.();
  await early.stop?.();
  expect(await sequencesOf(processId)).toEqual([]);

  const { log, lines } = createLog({ clock: later });
  await log.start?.();
  await eventually(
    () => readdir(folder),
    (names) => names.length === 0,
    patience,
  );
  expect(await sequencesOf(processId)).toEqual(countTo(300));
  expect(lines.find((line) => line['process_id'] === processId)).toMatchObject({ rows: 300, lost_rows: 0 });
  const { processes } = await checkRequestLog(database.db);
  expect(processes.find((each) => each.processId === processId)).toMatchObject({ rows: 300, missing: 0 });
});

test('a stop without a database leaves rows on the disk; a file that was cut off gives back what is whole, and nothing is written twice', async () => {
  const first = createLog({ stopDeadlineMs: 300 });
  first.record(640);
  await first.log.stop?.();
  expect(first.log.stats()).toMatchObject({ lostRows: 0, waitingRows: 640, rowsOnDisk: 640 });
  const [name = ''] = await readdir(folder);
  const file = path.join(folder, name);
  const whole = await readFile(file);
  isDatabaseDown = false;
  const adopt = async (): Promise<number[]> => {
    const { log } = createLog({ clock: later });
    await log.start?.();
    await eventually(
      () => readdir(folder),
      (names) => names.length === 0,
      patience,
    );
    return await sequencesOf(first.log.processId);
  };

  await truncate(file, Math.round(whole.length / 2));
  const written = await adopt();
  expect(written).toEqual(countTo(written.length));
  expect(written.length).toBeGreaterThan(200);
  expect(written.length).toBeLessThan(400);

  await writeFile(file, whole);
  expect(await adopt()).toEqual(countTo(640));
});
