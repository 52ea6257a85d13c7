import { randomBytes } from 'node:crypto';
import { mkdir, mkdtemp, readdir, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import pg from 'pg';
import { expect, onTestFinished, test } from 'vitest';
import { batchModel } from '#libs/batches/batch/batch-model.ts';
import { migrate } from '#libs/database/migrate.ts';
import { createEventLog } from '#libs/event-log/event-log.ts';
import { createLogger } from '#libs/kernel/logging/logger.ts';
import { checkMasterKeys, parseMasterKeys } from '#libs/secrets/master-key.ts';
import { insertEventSql } from '#test/insert-event.ts';
import { eventually } from '#test/eventually.ts';
import { createTestDatabase } from '#test/postgres.ts';
import { batchCreated, commandOn } from '../event-log/streams.ts';
import { run, type Output } from './installation.ts';

const newKey = (): string => randomBytes(32).toString('base64');

/** A restored database with one event, and a data directory without anything. */
async function prepare() {
  // Not by a name of Sluice's own, whose sessions the command refuses.
  const database = await createTestDatabase({ applicationName: 'a test' });
  onTestFinished(() => database.drop());
  const eventLog = createEventLog(database.db);
  await eventLog.transact(commandOn('batch_a'), (unit) => unit.append(batchModel, 'batch_a', [batchCreated()]));
  const folder = await mkdtemp(path.join(tmpdir(), 'sluice-restore-'));
  onTestFinished(() => rm(folder, { recursive: true, force: true }));
  const environment = { SLUICE_DATA_DIR: folder, SLUICE_MASTER_KEY: newKey() };
  const restore = (...args: string[]): Promise<Output> => {
    const url = database.connectionString;
    return run(process.execPath, ['apps/cli/main.ts', 'restore', ...args], { DATABASE_URL: url, ...environment });
  };
  return { database, folder, restore };
}

test('nothing is changed without the dump, without blobs, or with the blobs of another database', async () => {
  const { database, folder, restore } = await prepare();
  await database.pool.query(`insert into installation values ('blob_store_id', 'store_of_this_database')`);
  const noBlobs = await restore();
  expect(noBlobs).toMatchObject({ code: 1, stdout: '' });
  expect(noBlobs.stderr).toContain(`There are no blobs in ${path.join(folder, 'blobs')}.`);
  await mkdir(path.join(folder, 'blobs'));
  const foreign = await restore();
  expect(foreign).toMatchObject({ code: 1, stdout: '' });
  expect(foreign.stderr).toContain(
    '(an empty store) do not belong to this database, which uses store_of_this_database',
  );
  expect(await readdir(path.join(folder, 'blobs'))).toEqual([]);
  const { rows } = await database.pool.query('select max(epoch) as epoch from event_epoch');
  expect(rows).toEqual([{ epoch: 0 }]);

  await database.pool.query('drop schema public cascade; create schema public');
  const empty = await restore();
  expect(empty).toMatchObject({ code: 1, stdout: '' });
  expect(empty.stderr).toContain('The database is empty. Restore its dump first');
});

test('keys that do not fit, events that were changed and rows without their event need attention, lost blobs are given up', async () => {
  const { database, folder, restore } = await prepare();
  const { db, pool } = database;
  await checkMasterKeys(db, parseMasterKeys(newKey()));
  await pool.query(`insert into installation values ('blob_store_id', 'store_that_is_lost')`);
  await pool.query('alter table event disable trigger user; grant update on event to current_user');
  const { rows } = await pool.query(`update event set data = (data::text || ' ')::json returning event_id as id`);
  await pool.query('alter table event enable trigger user');
  await pool.query(`update batch set endpoint = '/v1/embeddings'`);
  await mkdir(path.join(folder, 'blobs'));
  const adopted = await restore('--adopt-blobs', '--json');
  expect([adopted.code, adopted.stderr]).toEqual([1, '']);
  const report = JSON.parse(adopted.stdout);
  expect(report).toMatchObject({
    ok: false,
    epoch: { epoch: 1, is_new: true },
    master_key_problem: expect.stringContaining('SLUICE_MASTER_KEY is not the key that this database was set up with'),
    checks: [
      { check: 'records', ok: false, findings: [{ subject: 'batch batch_a' }] },
      { check: 'digests', ok: false, counts: { events: 1, changed_events: 1 }, findings: [{ subject: rows[0].id }] },
    ],
  });
  expect(report.problems).toEqual([
    report.master_key_problem,
    expect.stringContaining('The check records failed. To repeat it: sluice check records\nbatch batch_a: '),
    expect.stringContaining(rows[0].id),
  ]);
  const unknown = insertEventSql({ stream_id: "'x_1'", type: "'x.happened'" });
  await pool.query(unknown);
  const repeated = await restore('--json');
  expect(repeated).not.toMatchObject({ stdout: '' });
  const unfolded = JSON.parse(repeated.stdout);
  expect(unfolded.epoch).toEqual({ epoch: 2, is_new: true });
  expect(unfolded.problems[1]).toMatch(
    /\nthe check did not finish: event \d+ has type x\.happened, which no model folds$/,
  );
  const { rows: store } = await pool.query(`select value from installation where name = 'blob_store_id'`);
  expect(store[0].value).not.toBe('store_that_is_lost');
});

test('while a restore works, what starts waits for it, and what was there before is named', async () => {
  const { database, folder, restore } = await prepare();
  const { connectionString, pool } = database;
  await mkdir(path.join(folder, 'blobs'));
  const connect = async (name: string): Promise<pg.Client> => {
    const client = new pg.Client({ connectionString, application_name: name });
    await client.connect();
    onTestFinished(() => client.end());
    return client;
  };
  // The restore compares this table, so it waits in the middle of its work until the test lets it go on.
  const holder = await connect('a test');
  await holder.query('begin; lock table batch in access exclusive mode');
  const restoring = restore();
  await eventually(
    () => pool.query('select from event_epoch where epoch = 1'),
    ({ rowCount }) => rowCount === 1,
  );
  await connect('sluice-worker');
  const starting = migrate({ connectionString, logger: createLogger({ name: 'test', level: 'silent' }) });
  await eventually(
    () =>
      pool.query(`
        select from pg_locks join pg_database on pg_database.oid = pg_locks.database
        where datname = current_database() and locktype = 'advisory' and not granted`),
    ({ rowCount }) => rowCount === 1,
  );
  await holder.query('commit');
  const { code, stdout } = await restoring;
  await starting;
  expect(code).toBe(1);
  expect(stdout).toMatch(
    /These processes were connected during the restore\. .*\n +sluice-worker from 127\.0\.0\.1, since/,
  );
});
