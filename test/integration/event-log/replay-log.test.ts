import { randomBytes } from 'node:crypto';
import { sql, type Kysely } from 'kysely';
import pg from 'pg';
import { beforeAll, expect, inject, onTestFinished, test } from 'vitest';
import { replayLog } from '#apps/cli/operate/replay-log.ts';
import { inlineModels } from '#apps/platform/models.ts';
import { activitySubscriber } from '#libs/activity/activity-subscriber.ts';
import { batchModel } from '#libs/batches/batch/batch-model.ts';
import { createDatabase, createPool } from '#libs/database/pool.ts';
import type { Database } from '#libs/database/schema.ts';
import { createEventLog } from '#libs/event-log/event-log.ts';
import type { LogEnd } from '#libs/event-log/copy-log.ts';
import { checkInlineModels } from '#libs/event-log/rebuild.ts';
import { applyNextPage, ensureCheckpoint, listSubscribers } from '#libs/event-log/subscriber.ts';
import { fileModel } from '#libs/files/file-model.ts';
import { createLogger } from '#libs/kernel/logging/logger.ts';
import { resourceModel } from '#libs/records/resource-model.ts';
import { resourceKinds } from '#libs/resources/resource-kinds.ts';
import { useTestDatabase } from '#test/postgres.ts';
import { sqlOn } from '../start/installation.ts';
import { batchCreated, batchValidated, chunkRedelivered, commandOn, fileUploaded, untilClosed } from './streams.ts';

const source = useTestDatabase();
const logger = createLogger({ name: 'test', level: 'silent' });
const resources = resourceModel(resourceKinds);

/** The tables at a moment, and how many events there were. */
type Moment = { events: number; at: Date; tables: Record<string, unknown> };
let before: Moment;
let after: Moment;

beforeAll(async () => {
  const { db } = source;
  const eventLog = createEventLog(db);
  await ensureCheckpoint(db, activitySubscriber);
  const label = { type: 'label.created', data: { name: 'Odd "\\N\t😀', slug: 'odd' } };
  await eventLog.transact(commandOn('label_1'), (unit) => unit.append(resources, 'label_1', [label]));
  for (let index = 0; index < 5; index += 1) {
    const id = `batch_${index}`;
    await eventLog.transact(commandOn(id), (unit) => unit.append(batchModel, id, [batchCreated(), batchValidated(1)]));
  }
  await eventLog.transact(commandOn('file-1'), (unit) => unit.append(fileModel, 'file-1', [fileUploaded()]));
  before = await readMoment(db);
  const long = Array.from({ length: 2_500 }, (_each, index) => chunkRedelivered(index));
  await eventLog.transact(commandOn('batch_1'), (unit) => unit.append(batchModel, 'batch_1', long));
  await eventLog.transact(commandOn('file-1'), (unit) =>
    unit.append(fileModel, 'file-1', [{ type: 'file.deleted', data: {} }]),
  );
  await db.insertInto('event_epoch').values({ epoch: 1, raised_at: new Date() }).execute();
  await eventLog.transact(commandOn('label_1'), (unit) =>
    unit.append(resources, 'label_1', [{ type: 'label.updated', data: { name: 'Renamed' } }]),
  );
  after = await readMoment(db);
});

async function readMoment(db: Kysely<Database>): Promise<Moment> {
  await untilClosed(db);
  while ((await applyNextPage(db, activitySubscriber, {})).events > 0);
  const tables = await readTables(db);
  const { rows } = await sql<{ at: Date }>`select clock_timestamp() as at, pg_sleep(0.003)`.execute(db);
  return { events: (tables['event'] as unknown[]).length, at: rows[0]?.at ?? new Date(), tables };
}

async function readTables(db: Kysely<Database>): Promise<Record<string, unknown>> {
  const tables: Record<string, unknown> = {};
  for (const name of ['event', 'batch', 'file', 'resource', 'resource_version', 'activity', 'stored_bytes'] as const) {
    const { rows } = await sql<{ line: string }>`
      select line from (select t::text as line from ${sql.table(name)} as t) as lines order by line`.execute(db);
    tables[name] = name === 'stored_bytes' ? await readBytes(db) : rows;
  }
  return tables;
}

/** Which of its rows has the bytes depends on the session. */
const readBytes = async (db: Kysely<Database>): Promise<unknown> =>
  (await sql`select workspace_id, sum(bytes) as bytes from stored_bytes group by 1 having sum(bytes) <> 0`.execute(db))
    .rows;

async function createEmptyDatabase() {
  const { adminUrl, templateUrl } = inject('postgres');
  const name = `replayed_${randomBytes(6).toString('hex')}`;
  const url = new URL(templateUrl);
  await sqlOn(adminUrl, `create database ${name} owner ${pg.escapeIdentifier(decodeURIComponent(url.username))}`);
  url.pathname = `/${name}`;
  const pool = createPool({ connectionString: url.href, applicationName: 'test', max: 3 }, logger);
  onTestFinished(async () => {
    await pool.end();
    await sqlOn(adminUrl, `drop database if exists ${name} with (force)`);
  });
  return { url: url.href, pool, db: createDatabase(pool) };
}

const replay = (into: string, until: LogEnd, onProgress: (text: string) => void = () => {}) =>
  replayLog(source.db, { into, until }, onProgress, logger);

test.each([
  ['a time', () => ({ moment: before, until: { at: before.at } })],
  ['a number of events', () => ({ moment: before, until: { events: before.events } })],
  ['the end of the log', () => ({ moment: after, until: null })],
])('all tables of the log are built as they were at %s', async (_name, choose) => {
  const { moment, until } = choose();
  const target = await createEmptyDatabase();
  const progress: string[] = [];
  const report = await replay(target.url, until, (text) => progress.push(text));
  expect(report).toMatchObject({ events: moment.events, problems: [], rows: { batch: 5, file: 1, resource: 1 } });
  expect(progress).toContain(`${moment.events} of ${moment.events} events copied`);
  expect(await readTables(target.db)).toEqual(moment.tables);
  expect((await checkInlineModels(target.pool, inlineModels)).difference).toBeNull();
});

test('the database that was built can be continued, and repeats no effect of its events', async () => {
  const target = await createEmptyDatabase();
  await replay(target.url, { events: before.events });
  await createEventLog(target.db).transact(commandOn('batch_0'), (unit) =>
    unit.append(batchModel, 'batch_0', [chunkRedelivered(1)]),
  );
  const { rows } = await sql<{ position: number; epoch: number }>`
    select position, epoch from event order by position desc limit 2`.execute(target.db);
  expect(rows).toEqual([
    { position: Number(rows[1]?.position) + 1, epoch: 1 },
    { position: expect.any(Number), epoch: 0 },
  ]);
  expect((await checkInlineModels(target.pool, inlineModels)).difference).toBeNull();
  expect(await listSubscribers(target.db)).toMatchObject([
    { name: 'activity', eventsBehind: 1 },
    { name: 'webhooks', eventsBehind: 1 },
  ]);
  // Processes with the blobs of the source refuse this database.
  expect(await target.db.selectFrom('installation').selectAll().execute()).toMatchObject([
    { name: 'blob_store_id', value: expect.stringMatching(/^replay_/) },
  ]);
  const disabled = sql`select from pg_trigger where tgrelid = 'event'::regclass and tgenabled = 'D'`;
  expect((await disabled.execute(target.db)).rows).toEqual([]);
});

test('a database that is not empty is refused, and so is a number that the log does not reach', async () => {
  const { events } = await source.db
    .selectFrom('event')
    .select((of) => of.fn.countAll<number>().as('events'))
    .executeTakeFirstOrThrow();
  await expect(replay(source.connectionString, null)).rejects.toThrow('is not empty');
  const target = await createEmptyDatabase();
  await expect(replay(target.url, { events: events + 1 })).rejects.toThrow(`has only ${events} events`);
  const { rows } = await sql`select from pg_tables where tablename = 'event'`.execute(target.db);
  expect(rows).toEqual([]);
});
