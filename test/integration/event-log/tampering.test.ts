import { execFile } from 'node:child_process';
import { createSecretKey } from 'node:crypto';
import { cp, mkdtemp, readdir, readFile, rm, unlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { exportLog } from '#apps/cli/audit/export-log.ts';
import { describeFinding } from '#apps/cli/checks/check.ts';
import { activitySubscriber } from '#libs/activity/activity-subscriber.ts';
import type { BatchEvent } from '#libs/batches/batch/batch.ts';
import { batchModel } from '#libs/batches/batch/batch-model.ts';
import { createDiskBlobFolder } from '#libs/blobs/disk-blob-folder.ts';
import { createEventLog, type EventLog } from '#libs/event-log/event-log.ts';
import { logStart, readClosed } from '#libs/event-log/read-events.ts';
import { createLogger } from '#libs/kernel/logging/logger.ts';
import { createAuditKeys } from '#libs/seal/audit-keys.ts';
import { checkSeal } from '#libs/seal/check-seal.ts';
import { followLog, type LogSource } from '#libs/seal/follow-log.ts';
import { sealNext, type SealDeps } from '#libs/seal/seal-log.ts';
import { openCheckpoint, type OpenCheckpoint } from '#libs/seal/tree-names.ts';
import { runCheck } from '#test/run-check.ts';
import { createTestDatabase, type TestDatabase } from '#test/postgres.ts';
import { batchCreated, batchValidated, chunkRedelivered, commandOn, untilClosed } from './streams.ts';

// Each case changes a sealed log as an intruder with all rights could, and states which check finds the first changed place.
// Changes of an export are in audit-export.test.ts, and those of results in ../batches/check-stored.test.ts. The cases of
// sealed calls (a changed and a removed call record) belong here: add them to `changes` with the check that finds them.

const keys = createAuditKeys([{ id: '', key: createSecretKey(Buffer.alloc(32, 5)) }], undefined);
const logger = createLogger({ name: 'test', level: 'silent' });

let database: TestDatabase;
let eventLog: EventLog;
let root: string;
let deps: SealDeps;

/** Three streams with four events each, in three transactions per stream, with their records, in the audit log and sealed. */
async function createSealedLog(): Promise<void> {
  database = await createTestDatabase();
  eventLog = createEventLog(database.db);
  root = await mkdtemp(path.join(tmpdir(), 'sluice-tampering-'));
  const folder = createDiskBlobFolder(path.join(root, 'audit'));
  deps = { db: database.db, folder, keys, name: async () => 'test/log', publishes: false, logger };
  for (const id of ['batch_a', 'batch_b', 'batch_c']) {
    await append(id, [batchCreated(), batchValidated(3)]);
    await append(id, [chunkRedelivered(1)]);
    await append(id, [chunkRedelivered(2)]);
  }
  await sealAll();
  const events = await readClosed(database.db, logStart, 100);
  await database.db.transaction().execute((tx) => activitySubscriber.apply(tx, events));
}

async function dropLog(): Promise<void> {
  await database.drop();
  await rm(root, { recursive: true, force: true });
}

const append = async (id: string, events: BatchEvent[]) =>
  await eventLog.transact(commandOn(id), (unit) => unit.append(batchModel, id, events));

async function sealAll(): Promise<void> {
  await untilClosed(database.db);
  while ((await sealNext(deps, 'worker')) === 'full');
}

const newest = async (): Promise<OpenCheckpoint> => openCheckpoint(String(await deps.folder.read('checkpoint')), keys);
const source: LogSource = async (file, tree) => await deps.folder.read(tree === undefined ? file : `${tree}/${file}`);

/** The first finding of `sluice check digests` and `sluice check seal`, and the reason why an export is refused. */
type Findings = { digests: unknown; seal: unknown; export: unknown };
const unnoticed: Findings = { digests: null, seal: null, export: null };

async function findAll(): Promise<Findings> {
  const first = (findings: Parameters<typeof describeFinding>[0][]): string | null =>
    findings[0] === undefined ? null : describeFinding(findings[0]);
  const { findings } = await runCheck(database, 'digests');
  return { digests: first(findings), seal: await checkTheSeal(), export: await refusedExport() };
}

async function checkTheSeal(): Promise<string | null> {
  const { problems } = await checkSeal(database.db, deps.folder, () => {});
  return problems[0] === undefined ? null : `${problems[0].subject}: ${problems[0].message}`;
}

async function writeExport(name: string): Promise<string> {
  const out = path.join(root, name);
  await exportLog(deps, { out, from: null, to: null, workspaceId: null, onProgress: () => {}, sealMsMax: 0 });
  return out;
}

/** What the program prints that is in an export. */
async function verify(folder: string, held?: OpenCheckpoint): Promise<string> {
  const earlier = path.join(root, 'earlier');
  if (held !== undefined) await writeFile(earlier, held.note);
  const args = [
    path.join(folder, 'audit-verify.mjs'),
    folder,
    ...(held === undefined ? [] : ['--checkpoint', earlier]),
  ];
  return await new Promise((resolve) => {
    execFile(process.execPath, args, (_error, stdout, stderr) => resolve(stdout + stderr));
  });
}

async function refusedExport(): Promise<string | null> {
  try {
    await writeExport('export');
    return null;
  } catch (error) {
    return (error as Error).message;
  } finally {
    await rm(path.join(root, 'export'), { recursive: true, force: true });
  }
}

const containing = (text: string): unknown => expect.stringContaining(text);
const b2 = "where stream_id = 'batch_b' and stream_version = 2";
const changed = { digests: containing('the event was changed after it was recorded (batch_b version 2, position 6)') };
const moved = { digests: containing('the event was moved in the log') };
const exported = (entry: number, what = 'the log has another event there') => ({
  export: containing(`differs from its seal at entry ${entry} of tree 1: ${what}`),
});
const sealed = (entry: number, position: number) => ({
  seal: `entry ${entry} of tree 1: the log has another event at ${position}`,
});
const missing = (entry: number) => ({
  seal: `entry ${entry} of tree 1: the event of this entry is missing`,
  ...exported(entry, 'the log has no event for it'),
});

describe('a changed column of an event', () => {
  beforeEach(createSealedLog);
  afterEach(dropLog);

  const withoutPlace = { ...moved, ...sealed(5, 7), ...exported(5) };

  /** For each column another value, what finds it, and what finds a null instead if that differs. */
  const columns: Record<string, [value: string, found: Partial<Findings>, foundNull?: Partial<Findings>]> = {
    position: ['100', moved],
    epoch: ['1', { ...moved, ...sealed(5, 7), ...exported(5) }, withoutPlace],
    transaction_id: [`'1'`, { ...moved, ...sealed(0, 6), ...exported(0) }, withoutPlace],
    event_id: ['gen_random_uuid()', { ...changed, ...exported(5) }],
    workspace_id: [`'ws_2'`, { ...changed, ...sealed(5, 6), ...exported(5) }],
    stream_id: [
      `'batch_z'`,
      { digests: containing('was changed after it was recorded (batch_z version 2, position 6)'), ...exported(5) },
      { digests: containing('was changed after it was recorded ( version 2, position 6)'), ...exported(5) },
    ],
    stream_version: [
      '40',
      { digests: containing('was changed after it was recorded (batch_b version 40, position 6)'), ...exported(5) },
      { digests: containing('was changed after it was recorded (batch_b version , position 6)'), ...exported(5) },
    ],
    type: [`'batch.failed'`, { ...changed, ...exported(5) }],
    schema_version: ['2', { ...changed, ...exported(5) }],
    data: [`(data::text || ' ')::json`, { ...changed, ...exported(5) }],
    metadata: [`'{"actor":{"id":"another","type":"system"}}'`, { ...changed, ...exported(5) }],
    recorded_at: [`recorded_at - interval '1 millisecond'`, { ...changed, ...exported(5) }],
    data_salt: ['metadata_salt', { ...changed, ...exported(5) }],
    metadata_salt: ['data_salt', { ...changed, ...exported(5) }],
    data_sha256: ['metadata_salt', { ...changed, ...exported(5) }, moved],
    metadata_sha256: ['data_salt', { ...changed, ...exported(5) }, moved],
    sha256: [`sha256('{}')`, { ...changed, ...sealed(5, 6) }],
    bytes: ['1', changed],
  };
  const cases = Object.entries(columns).flatMap(([column, [value, found, foundNull = found]]) => [
    { column, value, found },
    { column, value: 'null', found: foundNull },
  ]);

  test.each(cases)('is found: $column becomes $value', async ({ column, value, found }) => {
    const nullable = ['data_salt', 'data_sha256', 'metadata_salt', 'metadata_sha256'].includes(column);
    await database.tamper(`
      alter table event drop constraint event_check, drop constraint event_check1, drop constraint event_pkey;
      ${nullable ? '' : `alter table event alter ${column} drop not null;`}
      update event set ${column} = ${value} ${b2}`);
    expect(await findAll()).toEqual({ ...unnoticed, ...found });
  });

  test('is a case for each column', async () => {
    const { rows } = await database.pool.query<{ column: string }>(
      `select attname as column from pg_attribute where attrelid = 'event'::regclass and attnum > 0`,
    );
    expect(rows.map(({ column }) => column).toSorted()).toEqual(Object.keys(columns).toSorted());
  });
});

/** Inserts a copy of an event with other columns, as its transaction writes it unless they say otherwise, and with a right hash. */
const forge = (position: number, columns: string): string => `
  create temp table forged as select * from event where position = ${position};
  update forged set event_id = gen_random_uuid(), position = nextval('event_position'),
    transaction_id = pg_current_xact_id(), recorded_at = date_trunc('milliseconds', clock_timestamp());
  update forged set ${columns};
  insert into event select * from forged;
  ${rehash('where event_id = (select event_id from forged)')}`;

const rehash = (where: string): string =>
  `update event set sha256 = sha256(convert_to(event_envelope(event), 'UTF8')),
    bytes = octet_length(data::text) + octet_length(metadata::text) ${where};`;

const swap = (columns: readonly string[], [one, other]: readonly [number, number]): string => `
  alter table event drop constraint event_stream_id_stream_version_key, drop constraint event_pkey;
  update event set ${columns.map((column) => `${column} = other.${column}`).join(', ')} from event as other
  where (event.position, other.position) in ((${one}, ${other}), (${other}, ${one}))`;

/** A change of the log by `sql`, and which checks find it. */
type Change = { what: string; sql: string; found: Partial<Findings> };

const changes: readonly Change[] = [
  { what: 'none', sql: 'select', found: {} },
  {
    what: 'an event is written again without a change',
    sql: `update event set type = type ${b2}`,
    found: { digests: containing('the event was moved in the log, or the log was restored without `sluice restore`') },
  },
  {
    what: 'data is replaced together with its hash',
    sql: `update event set data = '{"chunk_count":1,"line_count":4,"model":"x"}' ${b2}; ${rehash(b2)}`,
    found: { ...moved, ...sealed(5, 6), ...exported(5) },
  },
  {
    what: 'the last event is replaced by another one of its stream',
    sql: `${forge(12, "position = 13, stream_version = 4, data = '{}', stream_id = 'x'")}
      delete from event where position = 12; update event set stream_id = 'batch_c' where stream_id = 'x';
      ${rehash('where position = 13')}`,
    found: { digests: containing('the audit log has 1 events that do not exist'), ...sealed(11, 13), ...exported(11) },
  },
  {
    what: 'texts are erased without a record of it',
    sql: `update event set data = '{"chunk_count":1,"line_count":3,"model":"[erased]"}', data_salt = null,
      data_sha256 = salted_sha256(data_salt, data) ${b2};
      update event set bytes = octet_length(data::text) + octet_length(metadata::text) ${b2}`,
    found: { digests: containing('more of the event was erased than recorded (batch_b version 2, position 6)') },
  },
  {
    what: 'an event in the middle of a stream is deleted',
    sql: `delete from event ${b2}`,
    found: {
      digests: expect.stringMatching(/^batch_b: 1 event is missing before event .* \(batch_b version 3, position 7\)$/),
      ...sealed(5, 7),
      ...exported(5),
    },
  },
  {
    what: 'events in the middle of the log are deleted with their stream, its record and the audit log',
    sql: `delete from event where stream_id = 'batch_b'; delete from batch where id = 'batch_b';
      delete from activity where resource_id = 'batch_b'`,
    found: { ...sealed(4, 9), ...exported(4) },
  },
  {
    what: 'a stream is deleted with its record',
    sql: `delete from event where stream_id = 'batch_b'; delete from batch where id = 'batch_b'`,
    found: { digests: containing('batch_b: the audit log has 4 events'), ...sealed(4, 9), ...exported(4) },
  },
  {
    what: 'a stream is deleted',
    sql: `delete from event where stream_id = 'batch_b'`,
    found: {
      digests: 'batch_b: 4 events are missing at the end, according to the table batch',
      ...sealed(4, 9),
      ...exported(4),
    },
  },
  {
    what: 'the end of the log is deleted',
    sql: 'delete from event where position > 10',
    found: { digests: 'batch_c: 2 events are missing at the end, according to the table batch', ...missing(10) },
  },
  {
    what: 'the end of the log is deleted, and record and audit log are adjusted',
    sql: `delete from event where position > 10; update batch set version = 2 where id = 'batch_c';
      delete from activity where id not in (select event_id from event)`,
    found: missing(10),
  },
  {
    what: 'two versions of a stream are swapped',
    sql: swap(['stream_version'], [7, 8]),
    found: { digests: containing('(batch_b version 4, position 7)'), ...exported(6) },
  },
  {
    what: 'the data of two events is swapped',
    sql: swap(['data'], [7, 8]),
    found: { digests: containing('(batch_b version 3, position 7)'), ...exported(6) },
  },
  {
    what: 'the positions of two events of a stream are swapped',
    sql: swap(['position', 'transaction_id'], [7, 8]),
    found: { digests: containing('(batch_b version 4, position 7)'), ...sealed(6, 7), ...exported(6) },
  },
  {
    what: 'the positions of events of two streams are swapped',
    sql: swap(['position', 'transaction_id'], [8, 9]),
    found: { digests: containing('(batch_c version 1, position 8)'), ...sealed(7, 8), ...exported(7) },
  },
  {
    what: 'an event is inserted at an earlier place in the log',
    sql: forge(
      9,
      `stream_id = 'batch_x', position = 0, transaction_id = (select min(transaction_id) from event),
      recorded_at = (select min(recorded_at) from event)`,
    ),
    found: { ...moved, ...sealed(0, 0), ...exported(0) },
  },
  {
    what: 'an event with an earlier time is inserted at the end of a stream',
    sql: `${forge(12, "stream_version = 5, recorded_at = recorded_at - interval '7 days'")}
      update batch set version = 5 where id = 'batch_c'`,
    found: {
      digests: expect.stringMatching(
        /the event has an earlier time than the previous one of its stream \(batch_c version 5/,
      ),
    },
  },
];

describe('a changed log', () => {
  beforeEach(createSealedLog);
  afterEach(dropLog);

  test.each(changes)('is found: $what', async ({ sql, found }) => {
    await database.tamper(sql);
    expect(await findAll()).toEqual({ ...unnoticed, ...found });
  });

  test('names the first of several changed events first', async () => {
    await database.tamper(`update event set data = '{}', sha256 = sha256('x') where stream_version = 3`);
    expect(await findAll()).toEqual({
      digests: containing('changed after it was recorded (batch_a version 3, position 3)'),
      ...sealed(2, 3),
      ...exported(2),
    });
    expect((await runCheck(database, 'digests')).counts).toMatchObject({ changed_events: 3 });
  });

  test('is found in an export by a time before that of the previous event', async () => {
    await database.tamper(forge(12, "stream_version = 5, recorded_at = recorded_at - interval '7 days'"));
    await sealAll();
    expect(await verify(await writeExport('dated'))).toMatch(
      /NOT OK: events.ndjson line 13, event .*: its time .* is before .*, that of the previous event of batch_c/,
    );
  });

  test('is found by the missing record if it has one more stream', async () => {
    await database.tamper(forge(9, "stream_id = 'batch_x', recorded_at = recorded_at - interval '7 days'"));
    expect(await findAll()).toEqual(unnoticed);
    const { findings } = await runCheck(database, 'records');
    expect(findings).toMatchObject([{ subject: 'batch batch_x', message: containing('the row is') }]);
  });

  // What no check can find. docs/audit.md says so.
  test('events that were false before they were sealed have a place after the checkpoints that others already have', async () => {
    const held = await newest();
    await database.tamper(`
      ${forge(9, "stream_id = 'batch_x', recorded_at = recorded_at - interval '7 days'")}
      create temp table row as select * from batch where id = 'batch_c';
      update row set id = 'batch_x', version = 1;
      insert into batch select * from row`);
    await sealAll();
    expect(await findAll()).toEqual(unnoticed);
    expect(await followLog(source, keys('test/log'), held)).toMatchObject({ newest: { size: 13 }, gaps: [] });
    const lines = (await readFile(path.join(await writeExport('after'), 'events.ndjson'), 'utf8')).trim().split('\n');
    expect(JSON.parse(lines.at(-1) ?? '')).toMatchObject({ index: held.size, event: { stream_id: 'batch_x' } });
  });
});

describe('a log that went back', () => {
  beforeEach(createSealedLog);
  afterEach(dropLog);

  const tables = ['event', 'batch', 'activity', 'seal', 'seal_workspace', 'subscription_checkpoint'];

  /** Returns a function that restores this moment, as an old backup or a failover to a replica without the end does. */
  async function backUp(): Promise<() => Promise<void>> {
    await database.tamper(tables.map((table) => `create table kept_${table} as table ${table}`).join(';'));
    return () =>
      database.tamper(
        // With the transactions of the backup's rows, which a real one keeps in the files.
        tables.map((table) => `delete from ${table}; insert into ${table} select * from kept_${table}`).join(';'),
      );
  }

  test('is found in the sealed entries, and admitted by the next tree', async () => {
    const goBack = await backUp();
    await append('batch_d', [batchCreated(), batchValidated(3)]);
    await sealAll();
    const held = await newest();
    await goBack();
    expect([await checkTheSeal(), await refusedExport()]).toEqual(Object.values(missing(12)));
    await append('batch_e', [batchCreated()]);
    await sealAll();
    expect(await checkTheSeal()).toBeNull();
    const followed = await followLog(source, keys('test/log'), held);
    expect(followed).toMatchObject({ newest: { tree: 2, size: 2 }, gaps: [{ tree: 1, size: 14, lost: 2 }] });
  });

  test('together with its seal is found by anyone who has a later checkpoint', async () => {
    const goBack = await backUp();
    await cp(path.join(root, 'audit'), path.join(root, 'kept'), { recursive: true });
    await append('batch_d', [batchCreated(), batchValidated(3)]);
    await sealAll();
    const held = await newest();
    await goBack();
    await rm(path.join(root, 'audit'), { recursive: true });
    await cp(path.join(root, 'kept'), path.join(root, 'audit'), { recursive: true });
    expect([await checkTheSeal(), await refusedExport()]).toEqual([null, null]);
    const refused = 'does not continue the checkpoint of size 14 of tree 1.';
    await expect(followLog(source, keys('test/log'), held)).rejects.toThrow(`The log at size 12 of tree 1 ${refused}`);
    expect(await verify(await writeExport('older'), held)).toContain(
      'NOT OK: tree 1: it has 12 entries, the earlier checkpoint 14',
    );
    // And when it has grown again: a log with a fork.
    await append('batch_e', [batchCreated(), batchValidated(3), chunkRedelivered(1)]);
    await sealAll();
    expect([await checkTheSeal(), await refusedExport()]).toEqual([null, null]);
    await expect(followLog(source, keys('test/log'), held)).rejects.toThrow(`The log at size 15 of tree 1 ${refused}`);
    expect(await verify(await writeExport('forked'), held)).toContain(
      'NOT OK: the first 14 entries: they do not have the root of the earlier checkpoint',
    );
  });
});

describe('a changed file of the seal', () => {
  beforeAll(async () => {
    await createSealedLog();
    await append('batch_d', [batchCreated(), ...Array.from({ length: 299 }, (_event, at) => chunkRedelivered(at))]);
    await sealAll();
  });
  afterAll(dropLog);

  const found = async (): Promise<string | null> => (await checkTheSeal()) ?? (await refusedExport());

  test('is found, whichever byte it is, and names the file or the entry', async () => {
    const names = (await readdir(path.join(root, 'audit'), { recursive: true, withFileTypes: true }))
      .filter((entry) => entry.isFile())
      .map((entry) => path.relative(path.join(root, 'audit'), path.join(entry.parentPath, entry.name)));
    // The newest checkpoint is a copy.
    const files = names.filter((name) => name !== '1/checkpoint');
    expect(files.toSorted()).toEqual([
      '1/tile/0/000',
      '1/tile/0/001.p/56',
      '1/tile/1/000.p/1',
      '1/tile/entries/000',
      '1/tile/entries/001.p/56',
      'checkpoint',
    ]);
    expect(await found()).toBeNull();
    for (const name of files) {
      const file = path.join(root, 'audit', name);
      const bytes = await readFile(file);
      const step = Math.ceil(bytes.length / 8);
      for (let at = 0; at < bytes.length; at += step) {
        const other = Buffer.from(bytes);
        other[at] = (other[at] ?? 0) ^ 1;
        await writeFile(file, other);
        expect(await found(), `byte ${at} of ${name}`).toMatch(expectedProblem(name, at));
      }
      await writeFile(file, bytes.subarray(0, -1));
      expect({ name, found: await found() }).toEqual({ name, found: expect.any(String) });
      await unlink(file);
      expect({ name, found: await found() }).toEqual({ name, found: containing('is missing') });
      await writeFile(file, bytes);
    }
    expect(await found()).toBeNull();
  });

  /** What a finding about a changed byte looks like. */
  function expectedProblem(name: string, at: number): RegExp {
    if (name === 'checkpoint') return /./;
    if (name.includes('entries')) return /^(?:entry \d+ of )?tree 1: /;
    return new RegExp(`^tree 1: ${name.slice(2)}: its hash ${Math.floor(at / 32)} is not that of the entries$`);
  }
});
