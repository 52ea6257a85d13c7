import { execFile } from 'node:child_process';
import { createSecretKey } from 'node:crypto';
import { cp, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { sql } from 'kysely';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { exportLog } from '#apps/cli/audit/export-log.ts';
import { writeCallProof } from '#apps/cli/audit/prove-call.ts';
import { rollUp } from '#libs/analytics/rollups/roll-up.ts';
import { createDiskBlobFolder } from '#libs/blobs/disk-blob-folder.ts';
import { createEventLog, type EventLog } from '#libs/event-log/event-log.ts';
import { readStream } from '#libs/event-log/read-events.ts';
import { createLogger } from '#libs/kernel/logging/logger.ts';
import type { CallsSealed } from '#libs/request-log/seal/sealed-calls.ts';
import { sealCalls } from '#libs/request-log/seal/seal-calls.ts';
import type { RequestLogEntry } from '#libs/request-log/row/log-entry.ts';
import { toLogId } from '#libs/request-log/row/log-id.ts';
import { eraseCallsOfUser } from '#libs/request-log/write/erase-calls.ts';
import { deleteOldCalls } from '#libs/request-log/write/delete-old-calls.ts';
import { createRequestLog, type RequestLog } from '#libs/request-log/write/request-log.ts';
import { createAuditKeys } from '#libs/seal/audit-keys.ts';
import { sealNext, type SealDeps } from '#libs/seal/seal-log.ts';
import { logEntry } from '#test/log-entry.ts';
import { createTestDatabase, type TestDatabase } from '#test/postgres.ts';
import { runCheck } from '#test/run-check.ts';
import { untilClosed } from '../event-log/streams.ts';

const logger = createLogger({ name: 'test', level: 'silent' });
const dayMs = 86_400_000;

let database: TestDatabase;
let eventLog: EventLog;
beforeEach(async () => {
  database = await createTestDatabase();
  eventLog = createEventLog(database.db);
});
afterEach(() => database.drop());

const createLog = (nowMs = () => Date.now()): RequestLog =>
  createRequestLog({
    app: 'api',
    db: database.db,
    pool: database.pool,
    logger,
    clock: { now: nowMs },
    groupWaitMs: 600_000,
  });

/** Records calls without writing them. */
function record(log: RequestLog, count: number, given: Partial<RequestLogEntry> = {}): void {
  for (let index = 0; index < count; index += 1) log.record(logEntry({ request_id: `req_${index}`, ...given }));
}

const seal = (limits?: { recordsMax?: number; groupsMax?: number }): Promise<number> =>
  sealCalls({ db: database.db, eventLog, logger, ...(limits === undefined ? {} : { limits }) });

const passOn = () => rollUp(database.db, { nowMs: Date.now(), logRetentionMs: 30 * dayMs });

async function readSeals(workspaceId: string): Promise<CallsSealed[]> {
  const events = await readStream(database.db, `request_log_${workspaceId}`);
  expect(new Set(events.map(({ type }) => type)).size).toBeLessThanOrEqual(1);
  return events.map(({ data }) => data as unknown as CallsSealed);
}

const countEach = (seals: readonly CallsSealed[]): number[] => seals.map(({ records }) => records);

const ids = async (): Promise<string[]> =>
  (await database.db.selectFrom('request_log_row').select('id').orderBy('id').execute()).map(({ id }) => toLogId(id));

test('calls are sealed once, by workspace, without lines of batches', async () => {
  const log = createLog();
  record(log, 2);
  record(log, 1, { kind: 'batch', batch_id: 'batch_1', batch_line: 1 });
  record(log, 1);
  record(log, 1, { workspace_id: 'ws_2' });
  await log.flush();
  expect(await seal()).toBe(4);
  expect(await seal()).toBe(0);
  await passOn();
  expect(await seal()).toBe(0);
  expect(await database.db.selectFrom('call_seal_due').selectAll().execute()).toEqual([]);
  const [first, ...others] = await readSeals('ws_1');
  expect(others).toEqual([]);
  const [oldest, , , newest] = await ids();
  expect(first).toEqual({
    records: 3,
    root: expect.stringMatching(/^[0-9a-f]{64}$/),
    first_id: oldest,
    last_id: newest,
    processes: [{ process_id: log.processId, first: 1, last: 4, records: 3 }],
  });
  expect(await readSeals('ws_2')).toMatchObject([{ records: 1, processes: [{ first: 5, last: 5 }] }]);
  expect(await runCheck(database, 'calls')).toMatchObject({ ok: true, counts: { seals: 2, records: 4 } });
});

test('rows that arrive late are in a later seal', async () => {
  const late = createLog(() => Date.now() - 3_600_000);
  record(late, 3);
  const log = createLog();
  record(log, 2);
  await log.flush();
  expect(await seal()).toBe(2);
  await late.flush();
  record(log, 1);
  await log.flush();
  await passOn();
  expect(await seal()).toBe(4);
  const seals = await readSeals('ws_1');
  expect(countEach(seals)).toEqual([2, 4]);
  expect(seals[1]?.processes).toEqual(
    expect.arrayContaining([
      { process_id: late.processId, first: 1, last: 3, records: 3 },
      { process_id: log.processId, first: 3, last: 3, records: 1 },
    ]),
  );
  expect(await runCheck(database, 'calls')).toMatchObject({ ok: true, counts: { seals: 2, records: 6 } });
});

test('a large backlog becomes several seals, and an interruption between them loses and doubles nothing', async () => {
  let nowMs = Date.now();
  // The clock of the process is set back, so its rows are not in the order of their IDs.
  const log = createLog(() => (nowMs -= 400));
  record(log, 600);
  await log.flush();
  const other = createLog();
  record(other, 5);
  record(other, 3, { workspace_id: 'ws_2' });
  await other.flush();
  let events = 0;
  const failing: Pick<EventLog, 'transact'> = {
    transact: async (command, work) => {
      if ((events += 1) > 2) throw new Error('killed');
      return await eventLog.transact(command, work);
    },
  };
  const limits = { recordsMax: 250, groupsMax: 2 };
  await expect(sealCalls({ db: database.db, eventLog: failing, logger, limits })).rejects.toThrow('killed');
  const before = [...(await readSeals('ws_1')), ...(await readSeals('ws_2'))];
  const sealed = await seal(limits);
  expect(countEach(before).reduce((sum, count) => sum + count, sealed)).toBe(608);
  const all = countEach(await readSeals('ws_1'));
  expect(all.reduce((sum, count) => sum + count, 0)).toBe(605);
  expect(Math.max(...all)).toBe(250);
  expect(await runCheck(database, 'calls')).toMatchObject({ ok: true, counts: { records: 608 } });
});

test('two workers at the same time seal each call once', async () => {
  const log = createLog();
  record(log, 20);
  await log.flush();
  const counts = await Promise.all([seal(), seal()]);
  expect(counts.reduce((sum, count) => sum + count, 0)).toBe(20);
  expect(countEach(await readSeals('ws_1'))).toEqual([20]);
});

test('a changed and a removed record are named', async () => {
  const log = createLog();
  record(log, 5);
  await log.flush();
  await seal();
  const [first = '', second = ''] = await ids();
  await database.tamper(`
    update request_log_row set cost = 0.1 where id = '${second.slice(4)}';
    delete from request_log_row where sequence in (3, 4)`);
  const { ok, findings } = await runCheck(database, 'calls');
  expect(ok).toBe(false);
  expect(findings.map(({ message }) => message).toSorted()).toEqual([
    `2 records were removed, after ${first}`,
    `the record ${second} was changed`,
  ]);
  expect(findings[0]?.subject).toMatch(/^ws_1, seal /);
  await database.tamper(`update call_seal set hashes = sha256('x')`);
  const forged = await runCheck(database, 'calls');
  expect(forged.findings.map(({ message }) => message)).toEqual([
    '3 of 5 records exist and do not have its root, and its hashes were changed',
  ]);
});

test('retention is counted, and does not look like a removed record', async () => {
  let nowMs = Date.now() - 3 * dayMs;
  const log = createLog(() => nowMs);
  record(log, 2);
  await log.flush();
  await seal();
  record(log, 2);
  nowMs = Date.now();
  record(log, 3);
  await log.flush();
  await seal();
  await deleteOldCalls(database.db, 1, Date.now());
  await seal();
  expect(await runCheck(database, 'calls')).toMatchObject({
    ok: true,
    counts: { seals: 2, records: 3, records_deleted_by_retention: 4 },
  });
});

test('an erased person leaves every root valid', async () => {
  const log = createLog();
  record(log, 2, { user_id: 'user_1', metadata: { _user: 'ann@example.org', team: 'a' } });
  await log.flush();
  await seal();
  expect(await eraseCallsOfUser(database.db, { userId: 'user_1', emails: ['ann@example.org'] })).toBe(2);
  expect(await runCheck(database, 'calls')).toMatchObject({ ok: true, counts: { records: 2 } });
});

async function withExports(work: (root: string, deps: SealDeps) => Promise<void>): Promise<void> {
  const root = await mkdtemp(path.join(tmpdir(), 'sluice-calls-'));
  try {
    const folder = createDiskBlobFolder(path.join(root, 'audit'));
    const keys = createAuditKeys([{ id: '', key: createSecretKey(Buffer.alloc(32, 5)) }], undefined);
    const deps = { db: database.db, folder, keys, name: async () => 'test/log', publishes: false, logger };
    await untilClosed(database.db);
    while ((await sealNext(deps, 'worker')) === 'full');
    await exportLog(deps, {
      out: path.join(root, 'whole'),
      from: null,
      to: null,
      workspaceId: null,
      onProgress: () => {},
    });
    await work(root, deps);
  } finally {
    await rm(root, { recursive: true, force: true });
  }
}

/** What audit-verify prints. */
const verify = async (root: string, target: string, ...args: string[]): Promise<string> =>
  await new Promise((resolve) => {
    const program = path.join(root, 'whole/audit-verify.mjs');
    execFile(process.execPath, [program, target, ...args], (_error, stdout, stderr) => resolve(stdout + stderr));
  });

test('the proof of a call is verified, and a changed byte is refused', async () => {
  const log = createLog();
  record(log, 5, { metadata: { team: 'search' } });
  record(log, 1, { request_id: 'req_wanted', cost: '1.25' });
  await log.flush();
  await seal();
  await withExports(async (root, deps) => {
    const file = path.join(root, 'proof');
    await writeCallProof(deps, { callId: 'req_wanted', out: file });
    const key = ((await readFile(path.join(root, 'whole/key.txt'), 'utf8')).split('\n')[0] ?? '').trim();
    const id = (await ids())[5] ?? '';
    expect(await verify(root, file, '--key', key)).toContain(`OK: call ${id} is record 6 of 6 of the seal.`);
    const byId = path.join(root, 'by-id');
    await writeCallProof(deps, { callId: id, out: byId });
    const proof = await readFile(file, 'utf8');
    expect(await readFile(byId, 'utf8')).toBe(proof);
    for (const [from, to] of [
      ['"cost":"1.25"', '"cost":"1.26"'],
      ['"index":5', '"index":4'],
      ['"records":6', '"records":7'],
    ] as const) {
      const changed = proof.replace(/^extra (.+)$/m, (_line, extra: string) => {
        const text = Buffer.from(extra, 'base64').toString();
        expect(text).toContain(from);
        return `extra ${Buffer.from(text.replace(from, to)).toString('base64')}`;
      });
      await writeFile(file, changed);
      expect(await verify(root, file, '--key', key)).toMatch(/^NOT OK: (?:call log_|event )/);
    }
    await expect(writeCallProof(deps, { callId: 'req_other', out: file })).rejects.toThrow('no record of the call');
    record(log, 1, { request_id: 'req_new' });
    await log.flush();
    await expect(writeCallProof(deps, { callId: 'req_new', out: file })).rejects.toThrow('No seal has the record');
  });
});

test('an export has the sealed calls, and a changed or removed one is refused', async () => {
  const log = createLog();
  record(log, 4);
  record(log, 2, { workspace_id: 'ws_2' });
  await log.flush();
  await seal();
  await database.tamper('delete from request_log_row where sequence = 2');
  await withExports(async (root, deps) => {
    const whole = path.join(root, 'whole');
    const report = await verify(root, whole);
    expect(report).toContain('OK: 5 calls of 2 seals.');
    expect(report).toContain('1 more sealed calls are not in the export.');
    const part = path.join(root, 'part');
    await exportLog(deps, { out: part, from: null, to: null, workspaceId: 'ws_2', onProgress: () => {} });
    expect(await verify(root, part)).toContain('OK: 2 calls of 1 seals.');
    expect(await readFile(path.join(part, 'calls.ndjson'), 'utf8')).not.toContain('ws_1');
    const edits: [string, (lines: string[]) => string[], string][] = [
      ['changed', (lines) => lines.with(2, (lines[2] ?? '').replace('"status":200', '"status":500')), 'lines 1 to 4'],
      ['removed', (lines) => lines.toSpliced(2, 1), '3 records or hashes instead of 4'],
      ['all removed', () => [], 'it has 0 records, manifest.json says 5'],
      ['added', (lines) => [...lines, lines[0] ?? ''], 'no event of the export that seals calls'],
    ];
    for (const [name, edit, problem] of edits) {
      const copy = path.join(root, name);
      await cp(whole, copy, { recursive: true });
      const file = path.join(copy, 'calls.ndjson');
      const lines = (await readFile(file, 'utf8')).trimEnd().split('\n');
      await writeFile(
        file,
        edit(lines)
          .map((line) => `${line}\n`)
          .join(''),
      );
      expect(await verify(root, copy)).toContain(problem);
    }
    await sql`update request_log_row set status = 500 where sequence = 1`.execute(database.db);
    const out = path.join(root, 'refused');
    await expect(
      exportLog(deps, { out, from: null, to: null, workspaceId: null, onProgress: () => {} }),
    ).rejects.toThrow('The request log differs from the seal');
  });
});
