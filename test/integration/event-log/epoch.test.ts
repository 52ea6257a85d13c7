import { rm } from 'node:fs/promises';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { batchModel } from '#libs/batches/batch/batch-model.ts';
import { startEmbeddedPostgres, type EmbeddedPostgres } from '#libs/database/embedded/start-embedded-postgres.ts';
import { migrate } from '#libs/database/migrate.ts';
import { createDatabase, createPool } from '#libs/database/pool.ts';
import { raiseEpochAfterRestore } from '#libs/event-log/epoch.ts';
import { createEventLog } from '#libs/event-log/event-log.ts';
import { closedLagSeconds, logStart, readClosed } from '#libs/event-log/read-events.ts';
import { createLogger } from '#libs/kernel/logging/logger.ts';
import { makeDatabaseFolder } from '#test/database-folder.ts';
import { insertEventSql } from '#test/insert-event.ts';
import { eventually } from '#test/eventually.ts';
import { useTestDatabase, type TestDatabase } from '#test/postgres.ts';
import { batchCreated, chunkRedelivered, commandOn, createBatches } from './streams.ts';

const logger = createLogger({ name: 'test', level: 'silent' });
const database = useTestDatabase();

/** What a subscriber of the whole log gets, in its order. */
const streamVersions = async ({ db }: Pick<TestDatabase, 'db'>): Promise<string[]> =>
  (await readClosed(db, logStart, 1_000)).map(({ streamId, streamVersion }) => `${streamId} ${streamVersion}`);

describe('a log that is dumped and restored into a new cluster', () => {
  let server: EmbeddedPostgres;
  let restored: Pick<TestDatabase, 'db' | 'pool'>;
  let folder: string;

  beforeAll(async () => {
    folder = await makeDatabaseFolder('sluice-restored-');
    server = await startEmbeddedPostgres({ dataDir: folder, logger, durable: false });
    const { connectionString } = server;
    await migrate({ connectionString, logger });
    const pool = createPool({ connectionString, applicationName: 'sluice-test', max: 10 }, logger);
    restored = { pool, db: createDatabase(pool) };
  });
  afterAll(async () => {
    await restored?.db.destroy();
    await server?.stop();
    await rm(folder, { recursive: true, force: true });
  });

  /** All tables of the old cluster with all columns, as pg_dump has them; the identity goes on after the last position. */
  async function dumpAndRestore(): Promise<void> {
    await restored.pool.query('alter table event disable trigger event_is_placed'); // A dump creates triggers last.
    const { rows: tables } = await database.pool.query<{ name: string }>(
      `select relname as name from pg_class where relnamespace = 'public'::regnamespace and relkind in ('r', 'p')
       and not relispartition and relname not like 'kysely%'`,
    );
    for (const { name } of tables) {
      const { rows } = await database.pool.query(
        `select coalesce(jsonb_agg(to_jsonb(t)), '[]')::text as dump from ${name} t`,
      );
      if (name !== 'event') await restored.pool.query(`delete from ${name}`);
      await restored.pool.query(
        `insert into ${name} overriding system value select * from jsonb_populate_recordset(null::${name}, $1::jsonb)`,
        [rows[0].dump],
      );
    }
    await restored.pool.query(
      `select setval(pg_get_serial_sequence('event', 'position'), (select max(position) from event))`,
    );
    await restored.pool.query('alter table event enable trigger event_is_placed');
  }

  test('goes on after its old events once its epoch is raised, by however many processes that start at once', async () => {
    // A cluster that has worked for a while.
    await database.pool.query(
      'do $$ begin for i in 1..20000 loop perform pg_current_xact_id(); commit; end loop; end $$',
    );
    await createBatches(createEventLog(database.db), ['batch_a', 'batch_b']);
    await dumpAndRestore();
    const old = ['batch_a 1', 'batch_a 2', 'batch_b 1', 'batch_b 2'];
    // As it was before there were epochs: the old events are not readable, and count as lag for good.
    expect(await streamVersions(restored)).toEqual([]);
    expect(await closedLagSeconds(restored.db)).toBeGreaterThan(0);

    const raised = await Promise.all(Array.from({ length: 6 }, () => raiseEpochAfterRestore(restored.db)));
    expect(raised.filter((epoch) => epoch !== null)).toEqual([1]);
    expect(await closedLagSeconds(restored.db)).toBe(0);
    expect(await streamVersions(restored)).toEqual(old);

    const eventLog = createEventLog(restored.db);
    await eventLog.transact(commandOn('batch_a'), (unit) => unit.append(batchModel, 'batch_a', [chunkRedelivered(1)]));
    await eventLog.transact(commandOn('batch_c'), (unit) => unit.append(batchModel, 'batch_c', [batchCreated()]));
    const all = [...old, 'batch_a 3', 'batch_c 1'];
    await eventually(
      () => streamVersions(restored),
      (read) => read.length === all.length,
    );
    expect(await streamVersions(restored)).toEqual(all);
    const events = await readClosed(restored.db, logStart, 1_000);
    expect(events.map(({ epoch }) => epoch)).toEqual([0, 0, 0, 0, 1, 1]);
    expect(Number(events.at(-1)?.transactionId)).toBeLessThan(Number(events[0]?.transactionId));
    // A subscriber that had read the old log goes on with the new events.
    expect((await readClosed(restored.db, events[3] ?? logStart, 10)).map((event) => event.streamId)).toEqual([
      'batch_a',
      'batch_c',
    ]);
    expect(await closedLagSeconds(restored.db)).toBe(0);
    expect(await raiseEpochAfterRestore(restored.db)).toBeNull();
  });
});

test('a log that is where it was written keeps its epoch', async () => {
  await createBatches(createEventLog(database.db), ['batch_kept']);
  expect(await raiseEpochAfterRestore(database.db)).toBeNull();
  expect((await readClosed(database.db, logStart, 1_000)).every(({ epoch }) => epoch === 0)).toBe(true);
});

test('an append under way when the epoch is raised is not skipped by readers of the new one', async () => {
  await database.pool.query(insertEventSql({ stream_id: "'batch_ahead'" }));
  await database.tamper(`update event set transaction_id = '9000000000' where stream_id = 'batch_ahead'`);
  const eventLog = createEventLog(database.db);
  let raising: Promise<number | null> | undefined;
  await eventLog.transact(commandOn('batch_late'), async (unit) => {
    await unit.append(batchModel, 'batch_late', [batchCreated()]);
    raising = raiseEpochAfterRestore(database.db);
    await eventually(
      async () =>
        (await database.pool.query(`select 1 from pg_locks where relation = 'event_epoch'::regclass and not granted`))
          .rows,
      (waiting) => waiting.length === 1,
    );
  });
  expect(await raising).toBe(1);
  expect(await streamVersions(database)).toContain('batch_late 1');
});
