import { createSecretKey, hash } from 'node:crypto';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { batchModel } from '#libs/batches/batch/batch-model.ts';
import type { BlobFolder } from '#libs/blobs/blob-folder.ts';
import { createDiskBlobFolder } from '#libs/blobs/disk-blob-folder.ts';
import { startEpoch } from '#libs/event-log/epoch.ts';
import { createEventLog, type EventLog } from '#libs/event-log/event-log.ts';
import { createLogger } from '#libs/kernel/logging/logger.ts';
import { createAuditKeys } from '#libs/seal/audit-keys.ts';
import { checkSeal } from '#libs/seal/check-seal.ts';
import { parseSuccession } from '#libs/seal/entries.ts';
import { followLog, type LogSource } from '#libs/seal/follow-log.ts';
import { createCheckpointPublisher, keepInFolder, publishLagSeconds } from '#libs/seal/publish-checkpoints.ts';
import { createSealer, sealNext, type SealDeps } from '#libs/seal/seal-log.ts';
import { createTreeProofs, parseBundle, tilePath } from '#libs/seal/tiles.ts';
import { openCheckpoint, type OpenCheckpoint } from '#libs/seal/tree-names.ts';
import { eventually } from '#test/eventually.ts';
import { createTestDatabase, type TestDatabase } from '#test/postgres.ts';
import { batchCreated, chunkRedelivered, commandOn, untilClosed } from './streams.ts';

const logger = createLogger({ name: 'test', level: 'silent' });
const keys = createAuditKeys([{ id: '', key: createSecretKey(Buffer.alloc(32, 5)) }], undefined);

let database: TestDatabase;
let eventLog: EventLog;
let root: string;
let folder: BlobFolder;
let deps: SealDeps;

beforeEach(async () => {
  database = await createTestDatabase();
  eventLog = createEventLog(database.db);
  root = await mkdtemp(path.join(tmpdir(), 'sluice-seal-'));
  folder = createDiskBlobFolder(path.join(root, 'audit'));
  deps = { db: database.db, folder, keys, name: async () => 'test/log', publishes: true, logger };
});
afterEach(async () => {
  await database.drop();
  await rm(root, { recursive: true, force: true });
});

/** Appends this many events to a stream of a workspace. */
async function append(workspaceId: string, id: string, count: number): Promise<void> {
  await eventLog.transact({ ...commandOn(id), workspaceId }, async (unit) => {
    const version = (await unit.load(batchModel, id))?.version ?? 0;
    const events = Array.from({ length: count }, (_event, index) =>
      version + index === 0 ? batchCreated() : chunkRedelivered(version + index),
    );
    await unit.append(batchModel, id, events);
  });
  await untilClosed(database.db);
}

const newest = async (): Promise<OpenCheckpoint> =>
  openCheckpoint(String(await folder.read('checkpoint')), (name) => keys(name));

/** All entries that a checkpoint covers. */
async function entriesOf({ tree, size }: OpenCheckpoint): Promise<Buffer[]> {
  const entries: Buffer[] = [];
  for (let index = 0; entries.length < size; index += 1) {
    const width = Math.min(256, size - entries.length);
    const bundle = await folder.read(`${tree}/${tilePath('entries', index, width)}`);
    entries.push(...parseBundle(bundle ?? Buffer.alloc(0)));
  }
  return entries;
}

/** What the event log says should be sealed. */
async function expectedEntries(): Promise<string[]> {
  const { rows } = await database.pool.query<{ workspace_id: string; sha256: Buffer }>(
    'select workspace_id, sha256 from event order by epoch, transaction_id, position',
  );
  const last = new Map<string, { number: number; text: string }>();
  return rows.map(({ workspace_id: id, sha256 }) => {
    const before = last.get(id);
    const number = (before?.number ?? 0) + 1;
    const previous = before === undefined ? 'null' : `"${hash('sha256', before.text)}"`;
    const text = `{"event_sha256":"${sha256.toString('hex')}","number":${number},"previous":${previous},"workspace_id":"${id}"}`;
    last.set(id, { number, text });
    return text;
  });
}

const source: LogSource = async (file, tree) => await folder.read(tree === undefined ? file : `${tree}/${file}`);

/** Everything in the folder, by its path. */
async function sealAll(): Promise<void> {
  while ((await sealNext(deps, 'worker')) === 'full');
}

test('every event is sealed in the order of the log, with its number in its workspace', async () => {
  deps = { ...deps, limit: 100 };
  await append('ws_1', 'batch_1', 3);
  await append('ws_2', 'batch_2', 200);
  await sealAll();
  await append('ws_1', 'batch_1', 130);
  await sealAll();
  const checkpoint = await newest();
  expect(checkpoint).toMatchObject({ origin: 'test/log', tree: 1, size: 333 });
  expect((await entriesOf(checkpoint)).map(String)).toEqual(await expectedEntries());
  const proofs = createTreeProofs((file) => folder.read(`1/${file}`), checkpoint.size);
  expect(await proofs.root()).toEqual(checkpoint.root);
  // The full tile has replaced them.
  expect(await folder.read('1/tile/0/000.p/203')).toBeNull();
  expect(await folder.read('1/checkpoint')).toEqual(await folder.read('checkpoint'));
});

test('a process that is killed anywhere loses nothing, and the next one writes the same files', async () => {
  await append('ws_1', 'batch_1', 300);
  await append('ws_2', 'batch_2', 5);
  let writes = 0;
  let failsAt = 0;
  const broken: BlobFolder = {
    ...folder,
    write: async (file, bytes) => {
      writes += 1;
      if (writes > failsAt) throw new Error('the process is killed');
      await folder.write(file, bytes);
    },
  };
  let ends = 0;
  for (; ends === 0; failsAt += 1) {
    writes = 0;
    ends = await sealNext({ ...deps, folder: broken }, 'worker')
      .then(() => 1)
      .catch(() => 0);
  }
  expect(failsAt).toBeGreaterThan(5);
  await sealAll();
  const checkpoint = await newest();
  expect(checkpoint).toMatchObject({ tree: 1, size: 305 });
  expect((await entriesOf(checkpoint)).map(String)).toEqual(await expectedEntries());
  expect(await createTreeProofs((file) => folder.read(`1/${file}`), 305).root()).toEqual(checkpoint.root);
});

test('one process seals at a time, and another one continues when it has stopped', async () => {
  const sealedSize = async (): Promise<number> =>
    (await folder.read('checkpoint')) === null ? 0 : (await newest()).size;
  const sealers = [1, 2].map(() => createSealer({ ...deps, pollMs: 20 }));
  for (const sealer of sealers) sealer.start();
  await append('ws_1', 'batch_1', 10);
  await eventually(sealedSize, (size) => size === 10);
  expect(await sealNext(deps, 'third')).toBe('busy');
  await sealers[0]?.stop();
  await append('ws_1', 'batch_1', 10);
  await eventually(sealedSize, (size) => size === 20);
  await sealers[1]?.stop();
  expect(await sealNext(deps, 'third')).toBe('sealed');
});

describe('a log that went back', () => {
  const tables = ['seal', 'seal_workspace', 'seal_place', 'subscription_checkpoint'];

  /** Returns a function that restores the log to this moment, as an old backup or a failover without its tail does. */
  async function backUp(): Promise<() => Promise<void>> {
    const { rows } = await database.pool.query<{ last: number }>('select max(position) as last from event');
    for (const table of tables) await database.pool.query(`create table kept_${table} as select * from ${table}`);
    return () =>
      database.tamper(
        [
          `delete from event where position > ${rows[0]?.last ?? 0}`,
          ...tables.flatMap((table) => [`delete from ${table}`, `insert into ${table} select * from kept_${table}`]),
        ].join(';'),
      );
  }

  test('continues in a new epoch and a new tree, which names the last checkpoint of the old one', async () => {
    await append('ws_1', 'batch_1', 5);
    await sealAll();
    const goBack = await backUp();
    const held = await newest();
    await append('ws_1', 'batch_1', 4);
    await sealAll();
    const lost = await newest();
    await goBack();
    await append('ws_1', 'batch_9', 2);
    await sealAll();
    const checkpoint = await newest();
    expect(checkpoint).toMatchObject({ origin: 'test/log/tree/2', tree: 2, size: 3 });
    const [first, ...entries] = await entriesOf(checkpoint);
    expect(parseSuccession(first as Buffer)).toEqual({ previous_checkpoint: lost.note, kept: 5 });
    // The numbers of the workspace continue from the last event that the log still has.
    expect(entries.map(String)).toEqual((await expectedEntries()).slice(5));
    const { rows } = await database.pool.query('select max(epoch) as epoch from event_epoch');
    expect(rows).toEqual([{ epoch: 1 }]);
    for (const before of [held, lost]) {
      const followed = await followLog(source, keys('test/log'), before);
      expect(followed).toMatchObject({ newest: { tree: 2 }, gaps: [{ tree: 1, size: 9, lost: 4 }] });
    }
    await append('ws_1', 'batch_9', 2);
    await sealAll();
    expect(await newest()).toMatchObject({ tree: 2, size: 5 });
    expect((await checkSeal(database.db, folder, () => {})).problems).toEqual([]);
  });

  test('is noticed at the start of a process, before there is a new event', async () => {
    await append('ws_1', 'batch_1', 5);
    const goBack = await backUp();
    await sealAll();
    await goBack();
    const sealer = createSealer({ ...deps, pollMs: 20 });
    sealer.start();
    await eventually(newest, ({ tree }) => tree === 2);
    await sealer.stop();
    expect(parseSuccession((await entriesOf(await newest()))[0] as Buffer)).toMatchObject({ kept: 0 });
  });
});

test('while a key is replaced, checkpoints open with the old and the new one', async () => {
  const newKey = { id: '', key: createSecretKey(Buffer.alloc(32, 6)) };
  const oldKey = { id: '', key: createSecretKey(Buffer.alloc(32, 5)) };
  await append('ws_1', 'batch_1', 2);
  await sealAll();
  const held = await newest();
  deps = { ...deps, keys: createAuditKeys([newKey, oldKey], undefined) };
  await append('ws_1', 'batch_1', 2);
  await sealAll();
  expect(await followLog(source, keys('test/log'), held)).toMatchObject({ newest: { size: 4 } });
  const replaced = createAuditKeys([newKey], undefined)('test/log');
  expect(await followLog(source, replaced, null)).toMatchObject({ newest: { size: 4 } });
});

test('an epoch that an operator starts begins a tree that continues the old one', async () => {
  await append('ws_1', 'batch_1', 5);
  await sealAll();
  const held = await newest();
  await startEpoch(database.db);
  await append('ws_1', 'batch_1', 1);
  await sealAll();
  const followed = await followLog(source, keys('test/log'), held);
  expect(followed).toMatchObject({ newest: { tree: 2, size: 2 }, gaps: [{ tree: 1, size: 5, lost: 0 }] });
});

test('a tree that the blob store lost is followed by another one', async () => {
  await append('ws_1', 'batch_1', 5);
  await sealAll();
  await rm(path.join(root, 'audit'), { recursive: true });
  await append('ws_1', 'batch_1', 1);
  await sealAll();
  const checkpoint = await newest();
  expect(checkpoint).toMatchObject({ tree: 2, size: 2 });
  expect(parseSuccession((await entriesOf(checkpoint))[0] as Buffer)).toMatchObject({ kept: 5 });
});

test('a check of the seal finds nothing in a log that is as it was sealed, also in several trees', async () => {
  const check = () => checkSeal(database.db, folder, () => {});
  expect(await check()).toEqual({ entries: 0, problems: [] });
  await append('ws_1', 'batch_1', 300);
  await sealAll();
  await startEpoch(database.db);
  await append('ws_2', 'batch_2', 3);
  await sealAll();
  await append('ws_2', 'batch_2', 3);
  expect(await check()).toEqual({ entries: 304, problems: [] });
});

describe('published checkpoints', () => {
  let kept: BlobFolder;
  beforeEach(() => {
    kept = createDiskBlobFolder(path.join(root, 'kept'));
  });
  const readKept = async (): Promise<OpenCheckpoint | null> => {
    const note = await kept.read('checkpoint');
    return note === null ? null : openCheckpoint(note.toString(), keys);
  };

  test('are replaced by those that continue them', async () => {
    const publisher = createCheckpointPublisher({
      ...deps,
      target: keepInFolder(kept, folder, keys),
      pollMs: 20,
    });
    publisher.start();
    for (const size of [5, 300]) {
      await append('ws_1', 'batch_1', size === 5 ? 5 : 295);
      await sealAll();
      await eventually(readKept, (checkpoint) => checkpoint?.size === size);
    }
    await eventually(
      () => publishLagSeconds(database.db),
      (lag) => lag === 0,
    );
    await publisher.stop();
  });

  test('are kept if the log does not continue them, and the lag shows it', async () => {
    const target = keepInFolder(kept, folder, keys);
    await append('ws_1', 'batch_1', 5);
    await sealAll();
    const before = await newest();
    await kept.write('checkpoint', Buffer.from(before.note));
    await append('ws_1', 'batch_1', 5);
    await sealAll();
    const smaller = { ...(await newest()), size: 4 };
    await expect(target(smaller, AbortSignal.timeout(10_000))).rejects.toThrow('is not part of the log');
    expect((await readKept())?.size).toBe(5);
    const failing = createCheckpointPublisher({
      ...deps,
      target: () => Promise.reject(new Error('unavailable')),
      pollMs: 20,
    });
    failing.start();
    await eventually(
      () => failing.error(),
      (error) => error !== undefined,
    );
    await append('ws_1', 'batch_1', 5);
    await sealAll();
    expect(await newest()).toMatchObject({ size: 15 });
    expect(await publishLagSeconds(database.db)).toBeGreaterThan(0);
    await failing.stop();
  });
});
