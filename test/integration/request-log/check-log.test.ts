import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { sql } from 'kysely';
import pg from 'pg';
import { afterEach, beforeEach, describe, expect, inject, onTestFinished, test } from 'vitest';
import { createDatabase, createPool } from '#libs/database/pool.ts';
import { createTestLogger } from '#libs/http/http-test-kit.ts';
import { checkRequestLog, type LogCheck, type LogCheckOptions } from '#libs/request-log/audit/check-log.ts';
import { deleteOldCalls } from '#libs/request-log/write/delete-old-calls.ts';
import { createKilledReport } from '#libs/request-log/audit/report-killed.ts';
import { createRequestLog, type RequestLog, type RequestLogDeps } from '#libs/request-log/write/request-log.ts';
import { eventually } from '#test/eventually.ts';
import { logEntry } from '#test/log-entry.ts';
import { createTestDatabase, type TestDatabase } from '#test/postgres.ts';
import { runCheck } from '#test/run-check.ts';
import { startTcpProxy } from '../database/tcp-proxy.ts';
import { run, standaloneEnvironment } from '../standalone/npm-start.ts';

let database: TestDatabase;
beforeEach(async () => {
  database = await createTestDatabase();
});
afterEach(() => database.drop());

const dayMs = 86_400_000;

function createLog(deps: Partial<RequestLogDeps> = {}) {
  const { logger, lines } = createTestLogger();
  const { db, pool } = database;
  const clock = { now: () => Date.now() };
  const log = createRequestLog({ app: 'api', db, pool, logger, clock, retryDelayMs: 10, ...deps });
  return { log, lines };
}

function record(log: RequestLog, count: number): void {
  for (let index = 0; index < count; index += 1) log.record(logEntry());
}

const check = (options?: LogCheckOptions): Promise<LogCheck> => checkRequestLog(database.db, options);

async function remove(log: RequestLog, ...sequences: number[]): Promise<void> {
  await database.db
    .deleteFrom('request_log_row')
    .where('process_id', '=', log.processId)
    .where('sequence', 'in', sequences)
    .execute();
}

/** The command itself, as an operator runs it. */
async function runCommand(...args: string[]) {
  const env = standaloneEnvironment('/nonexistent', { DATABASE_URL: database.connectionString });
  return await run(['apps/cli/main.ts', 'check', 'logs', ...args], env);
}

/** What the command would report, without the second that its process takes. */
const report = (since?: string) => runCheck(database, 'logs', { since });

/** As if the last that was heard of any process was two minutes ago. */
const passTwoMinutes = () =>
  sql`update request_log_process set heard_at = heard_at - interval '2 min'`.execute(database.db);

test('after an orderly stop every row is there, and the command says so', async () => {
  const { log } = createLog();
  await log.start?.();
  record(log, 100);
  await log.stop?.();
  const idle = createLog().log;
  await idle.start?.();
  await idle.stop?.();
  expect(await check()).toMatchObject({
    rows: 100,
    missing: 0,
    idleProcesses: 1,
    processes: [{ processId: log.processId, state: 'ended', rows: 100, first: 1, last: 100, gaps: [], lateRows: 0 }],
  });
  const { code, stdout } = await runCommand();
  expect(code).toBe(0);
  expect(stdout).toMatch(
    /^CHECK +RESULT +COMPARED\nlogs +ok +days: \d, rows: 100, stopped processes: 1, idle processes: 1\n$/,
  );
});

test('rows that were deleted show as gaps, with exit status 1', async () => {
  const { log } = createLog();
  await log.start?.();
  record(log, 100);
  await log.stop?.();
  await remove(log, 1, 40, 50, 51, 100);
  expect(await check()).toMatchObject({
    rows: 95,
    missing: 5,
    processes: [
      {
        missing: 5,
        gaps: [
          [1, 1],
          [40, 40],
          [50, 51],
          [100, 100],
        ],
      },
    ],
  });
  const { code, stdout } = await runCommand();
  expect(code).toBe(1);
  expect(stdout).toMatch(/\nlogs +failed +days: \d, rows: 95, missing rows: 5, stopped processes: 1\n\n/);
  expect(stdout).toContain(`\nproblem  logs: api ${log.processId}: missing 5 rows: 1, 40, 50 to 51, 100\n`);
  const json = await runCommand('--json');
  expect(JSON.parse(json.stdout)).toMatchObject({ check: 'logs', ok: false, counts: { rows: 95, missing_rows: 5 } });
});

test('of very many gaps the first are named, and all are counted', async () => {
  const { log } = createLog();
  record(log, 100);
  await log.stop?.();
  await remove(log, ...Array.from({ length: 49 }, (_value, index) => 2 * index + 2));
  const [process] = (await check()).processes;
  expect(process?.missing).toBe(49);
  expect(process?.gaps).toEqual(Array.from({ length: 20 }, (_value, index) => [2 * index + 2, 2 * index + 2]));
});

test('a process that is killed leaves rows that were recorded and are not there', async () => {
  const script = fileURLToPath(new URL('./log-writer.ts', import.meta.url));
  const child = spawn(process.execPath, [script, database.connectionString], { stdio: ['ignore', 'pipe', 'inherit'] });
  onTestFinished(() => void child.kill('SIGKILL'));
  const [processId] = (await once(createInterface(child.stdout), 'line')) as [string];
  // It has told of the rows that wait.
  await eventually(check, ({ processes }) => processes[0]?.said?.last_sequence === 133);
  expect((await check()).processes).toMatchObject([{ state: 'running', rows: 128, missing: 0 }]);

  child.kill('SIGKILL');
  await once(child, 'exit');
  const silent = await eventually(
    () => check({ silentAfterMs: 500 }),
    ({ processes }) => processes[0]?.state === 'silent',
  );
  expect(silent).toMatchObject({ missing: 5, processes: [{ processId, rows: 128, missing: 5, gaps: [[129, 133]] }] });
  await passTwoMinutes();
  const subject = `worker ${processId}`;
  expect(await report()).toMatchObject({
    ok: false,
    counts: { killed_processes: 1 },
    findings: [
      { state: 'problem', subject, message: 'missing 5 rows: 129 to 133' },
      {
        state: 'note',
        subject,
        message: expect.stringMatching(/^killed; it last reported 133 rows at .+Z, and later rows may be lost$/),
      },
    ],
  });
});

test('a process that is running has no missing rows', async () => {
  const { log } = createLog();
  await log.start?.();
  record(log, 70);
  await log.flush();
  expect(await report()).toMatchObject({ ok: true, counts: { rows: 70, running_processes: 1 }, findings: [] });
  await remove(log, 7);
  expect((await check()).processes).toMatchObject([{ state: 'running', missing: 1, gaps: [[7, 7]] }]);
  await log.stop?.();
});

test('rows that Postgres refused are missing, and told of', async () => {
  const { log } = createLog();
  await log.start?.();
  record(log, 10);
  log.record(logEntry({ kind: 'neither' as 'live' }));
  record(log, 10);
  await log.stop?.();
  expect((await check()).processes).toMatchObject([
    { state: 'ended', rows: 20, missing: 1, gaps: [[11, 11]], said: { last_sequence: 21, lost_rows: 1 } },
  ]);
  expect((await report()).findings.map(({ message }) => message)).toEqual([
    'missing 1 row: 11',
    '1 row rejected by Postgres or not written before it stopped; see its log',
  ]);
});

test('rows of a process that never said a word are compared among each other', async () => {
  const { log } = createLog({ writeProcess: async () => {} });
  record(log, 10);
  await log.stop?.();
  await remove(log, 1, 5);
  expect((await check()).processes).toMatchObject([
    { processId: log.processId, state: 'unknown', rows: 8, earlierRows: 1, missing: 1, gaps: [[5, 5]] },
  ]);
});

test('a row that is recorded after the stop is told of', async () => {
  const { log } = createLog();
  record(log, 3);
  await log.stop?.();
  record(log, 1);
  await log.flush();
  expect(await check()).toMatchObject({ missing: 0, processes: [{ state: 'ended', rows: 4, lateRows: 1 }] });
});

describe('over several days', () => {
  const todayMs = Math.floor(Date.now() / dayMs) * dayMs;
  const dayAt = (days: number): string => new Date(todayMs + days * dayMs).toISOString().slice(0, 10);

  /** A process of three days, with ten rows on the first, none on the second, and ten on the third, today. */
  async function writeThreeDays(): Promise<RequestLog> {
    let nowMs = todayMs - 2 * dayMs;
    const { log } = createLog({ clock: { now: () => nowMs } });
    await log.start?.();
    record(log, 10);
    await log.flush();
    nowMs = todayMs;
    record(log, 10);
    await log.stop?.();
    return log;
  }

  test('rows that retention dropped are not missing, and those at the start of what it kept are', async () => {
    const log = await writeThreeDays();
    expect(await check()).toMatchObject({ firstDay: dayAt(-2), rows: 20, missing: 0 });
    await deleteOldCalls(database.db, 1, todayMs);
    expect(await check()).toMatchObject({
      firstDay: dayAt(-1),
      rows: 10,
      missing: 0,
      processes: [{ state: 'ended', first: 11, last: 20, earlierRows: 10 }],
    });
    expect(await report()).toMatchObject({ ok: true, findings: [] });
    await remove(log, 11, 20);
    expect((await check()).processes).toMatchObject([
      {
        missing: 2,
        gaps: [
          [11, 11],
          [20, 20],
        ],
      },
    ]);
  });

  test('--since reads later days only', async () => {
    const log = await writeThreeDays();
    await remove(log, 3);
    expect((await report()).ok).toBe(false);
    const later = await runCommand('--since', dayAt(-1), '--json');
    expect(later.code).toBe(0);
    expect(JSON.parse(later.stdout)).toMatchObject({ ok: true, counts: { rows: 10, missing_rows: 0 } });
    expect(await report(dayAt(30))).toMatchObject({ ok: true, counts: { days: 0, rows: 0 }, findings: [] });
    expect((await runCommand('--since', '2026-02-30')).code).toBe(2);
  });

  test('a whole day that is gone by other hands is missing', async () => {
    await writeThreeDays();
    await sql`drop table ${sql.table(`request_log_row_${dayAt(0).replaceAll('-', '')}`)}`.execute(database.db);
    expect(await check()).toMatchObject({ missing: 10, processes: [{ gaps: [[11, 20]] }] });
  });

  test('what processes said is kept as long as their rows', async () => {
    const old = await writeThreeDays();
    const { log } = createLog();
    record(log, 1);
    await log.stop?.();
    await sql`update request_log_process set heard_at = heard_at - interval '3 days'
      where process_id = ${old.processId}`.execute(database.db);
    await deleteOldCalls(database.db, 1, todayMs);
    const processes = await sql`select process_id from request_log_process`.execute(database.db);
    expect(processes.rows).toEqual([{ process_id: log.processId }]);
    const days = await sql`select recorded_on from request_log_day group by 1`.execute(database.db);
    expect(days.rows).toEqual([{ recorded_on: dayAt(0) }]);
  });
});

describe('a database that is away', () => {
  test('at the start is told of the process when it is back', async () => {
    const admin = new pg.Client({ connectionString: inject('postgres').adminUrl });
    await admin.connect();
    onTestFinished(() => admin.end());
    const name = new URL(database.connectionString).pathname.slice(1);
    await admin.query(`alter database ${name} allow_connections false`);
    await admin.query('select pg_terminate_backend(pid) from pg_stat_activity where datname = $1', [name]);
    const { log } = createLog({ heartbeatMs: 20 });
    await log.start?.();
    record(log, 3);
    await admin.query(`alter database ${name} allow_connections true`);
    await log.flush();
    const running = await eventually(check, ({ processes }) => processes[0]?.said?.last_sequence === 3);
    expect(running.processes).toMatchObject([{ processId: log.processId, state: 'running', rows: 3, missing: 0 }]);
    await log.stop?.();
    expect((await check()).processes).toMatchObject([{ state: 'ended', rows: 3, missing: 0 }]);
  });

  test('at the stop is not waited for past the deadline, and what was lost shows', async () => {
    const proxy = await startTcpProxy(database.connectionString);
    const { logger } = createTestLogger();
    const pool = createPool({ connectionString: proxy.connectionString, applicationName: 'through-proxy' }, logger);
    const limits = { groupWaitMs: 600_000, stopDeadlineMs: 200, heartbeatMs: 20 };
    const { log, lines } = createLog({ db: createDatabase(pool), pool, ...limits });
    await log.start?.();
    record(log, 64);
    await log.flush();
    record(log, 5);
    await eventually(check, ({ processes }) => processes[0]?.said?.last_sequence === 69);
    await proxy.close();
    record(log, 2);
    await log.stop?.();
    expect(lines.find((line) => line.msg === 'request-log rows lost during shutdown')).toBeDefined();
    await pool.end();
    await passTwoMinutes();
    // Of the two that came last nobody knows; that there may be such rows is what its state says.
    expect((await check()).processes).toMatchObject([
      { state: 'silent', rows: 64, missing: 5, gaps: [[65, 69]], said: { last_sequence: 69, stopped_at: null } },
    ]);
  });
});

test('a worker logs once that a process was killed, and says nothing of those that stopped', async () => {
  const [killed, stopped] = [createLog(), createLog()];
  for (const { log } of [killed, stopped]) await log.start?.();
  await stopped.log.stop?.();
  await sql`update request_log_process set heard_at = now() - interval '2 minutes'`.execute(database.db);
  const { logger, lines } = createTestLogger();
  const report = createKilledReport({ db: database.db, logger });
  await report();
  await report();
  expect(lines).toMatchObject([
    {
      level: 40,
      msg: 'a process was killed or lost its database connection',
      process_id: killed.log.processId,
      app: 'api',
    },
  ]);
  await killed.log.stop?.();
});
