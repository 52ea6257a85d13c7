import { sql } from 'kysely';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { batchModel } from '#libs/batches/batch/batch-model.ts';
import { createDatabase, createPool } from '#libs/database/pool.ts';
import type { Database } from '#libs/database/schema.ts';
import { createEventLog, type EventLog, type UnitOfWork } from '#libs/event-log/event-log.ts';
import { transactOnce, type CallIdentity } from '#libs/event-log/idempotency.ts';
import { readStream } from '#libs/event-log/read-events.ts';
import { createTestLogger } from '#libs/http/http-test-kit.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { Kysely } from 'kysely';
import { useTestDatabase } from '#test/postgres.ts';
import { startLossyProxy, type LossyProxy } from './lossy-proxy.ts';
import { batchCreated, chunkRedelivered, commandOn, createBatches } from './streams.ts';

const database = useTestDatabase();
let proxy: LossyProxy;
let db: Kysely<Database>;
let eventLog: EventLog;

beforeEach(async () => {
  proxy = await startLossyProxy(database.connectionString);
  const { logger } = createTestLogger();
  db = createDatabase(
    createPool({ connectionString: proxy.connectionString, applicationName: 'lossy', max: 3 }, logger),
  );
  eventLog = createEventLog(db);
});
afterEach(async () => {
  await db.destroy();
  await proxy.close();
});

const versions = async (id: string): Promise<number[]> =>
  (await readStream(database.db, id)).map((event) => event.streamVersion);

describe('a COMMIT whose reply is lost', () => {
  test('is recognised: the events are there once and the caller gets the result', async () => {
    await createBatches(eventLog, ['batch_reply']);
    proxy.loseNext('reply');
    let runs = 0;
    const result = await eventLog.transact(commandOn('batch_reply'), async (unit) => {
      runs += 1;
      const row = await unit.append(batchModel, 'batch_reply', [chunkRedelivered(1), chunkRedelivered(2)]);
      return { version: row.version, runs };
    });
    expect(result).toEqual({ version: 4, runs: 1 });
    expect(proxy.lost()).toBe(1);
    expect(runs).toBe(1);
    expect(await versions('batch_reply')).toEqual([1, 2, 3, 4]);
  });

  test('of a command over two streams too', async () => {
    await createBatches(eventLog, ['batch_a', 'batch_b']);
    proxy.loseNext('reply');
    await eventLog.transact(commandOn('batch_b', 'batch_a'), async (unit) => {
      await unit.append(batchModel, 'batch_b', [chunkRedelivered(1)]);
      await unit.append(batchModel, 'batch_a', [chunkRedelivered(1)]);
    });
    expect(await versions('batch_a')).toEqual([1, 2, 3]);
    expect(await versions('batch_b')).toEqual([1, 2, 3]);
  });

  test('of a call with an Idempotency-Key too, whose repeat then gets the same answer', async () => {
    const identity: CallIdentity = {
      workspaceId: 'ws_1',
      keyId: 'key_1',
      route: 'POST /v1/batches',
      idempotencyKey: 'once',
      retryCount: 0,
      tryMsMax: 600_000,
      requestId: 'req_1',
      fingerprint: 'same',
    };
    const create = (id: string) =>
      transactOnce(eventLog, identity, commandOn(id), async (unit) => {
        await unit.append(batchModel, id, [batchCreated()]);
        return { status: 200, body: { id } };
      });
    proxy.loseNext('reply');
    expect(await create('batch_once')).toEqual({ status: 200, body: { id: 'batch_once' }, replayed: false });
    expect(proxy.lost()).toBe(1);
    expect(await create('batch_twice')).toEqual({ status: 200, body: { id: 'batch_once' }, replayed: true });
    expect(await versions('batch_once')).toEqual([1]);
    expect(await versions('batch_twice')).toEqual([]);
  });

  test('of a retry without a key too, which is given the answer of its first try', async () => {
    const create = (id: string, retryCount: number) => {
      const identity: CallIdentity = {
        workspaceId: 'ws_1',
        keyId: 'key_1',
        route: 'POST /v1/batches',
        idempotencyKey: null,
        retryCount,
        tryMsMax: 600_000,
        requestId: `req_${id}`,
        fingerprint: 'without a key',
      };
      return transactOnce(eventLog, identity, commandOn(id), async (unit) => {
        await unit.append(batchModel, id, [batchCreated()]);
        return { status: 200, body: { id } };
      });
    };
    await create('batch_first', 0);
    proxy.loseNext('reply');
    expect(await create('batch_retry', 1)).toEqual({ status: 200, body: { id: 'batch_first' }, replayed: true });
    expect(proxy.lost()).toBe(1);
    expect(await versions('batch_retry')).toEqual([]);
  });

  test('again and again, while others write to the same stream, loses and doubles nothing', async () => {
    await createBatches(eventLog, ['batch_storm']);
    const writers = Array.from({ length: 3 }, async (_, writer) => {
      for (let turn = 0; turn < 8; turn += 1) {
        if (turn % 3 === writer % 3) proxy.loseNext(turn % 2 === 0 ? 'reply' : 'commit');
        await eventLog.transact(commandOn('batch_storm'), (unit) =>
          unit.append(batchModel, 'batch_storm', [chunkRedelivered(writer * 100 + turn)]),
        );
      }
    });
    await Promise.all(writers);
    expect(proxy.lost()).toBeGreaterThan(0);
    const events = await readStream(database.db, 'batch_storm');
    const marks = events.slice(2).map((event) => (event.data as { unsettled: number }).unsettled);
    const expected = [0, 1, 2].flatMap((writer) => Array.from({ length: 8 }, (_, turn) => writer * 100 + turn));
    expect(marks.toSorted((a, b) => a - b)).toEqual(expected);
    expect(events.map((event) => event.streamVersion)).toEqual(Array.from({ length: 26 }, (_, index) => index + 1));
  });
});

test('a COMMIT that never arrived is done again', async () => {
  await createBatches(eventLog, ['batch_commit']);
  proxy.loseNext('commit');
  let runs = 0;
  await eventLog.transact(commandOn('batch_commit'), (unit) => {
    runs += 1;
    return unit.append(batchModel, 'batch_commit', [chunkRedelivered(1)]);
  });
  expect(runs).toBe(2);
  expect(await versions('batch_commit')).toEqual([1, 2, 3]);
});

describe('an error inside the transaction', () => {
  const ending: [string, (unit: UnitOfWork) => Promise<unknown>][] = [
    [
      'that ends the session',
      async ({ tx }) => {
        const { rows } = await sql<{ pid: number }>`select pg_backend_pid() as pid`.execute(tx);
        await sql`select pg_terminate_backend(${rows[0]?.pid})`.execute(database.db);
      },
    ],
    ['of a deadlock', ({ tx }) => sql`do $$ begin raise exception 'x' using errcode = '40P01'; end $$`.execute(tx)],
    [
      'of a serialization failure',
      ({ tx }) => sql`do $$ begin raise exception 'x' using errcode = '40001'; end $$`.execute(tx),
    ],
  ];

  test.each(ending)('%s makes the whole command run again', async (name, end) => {
    const id = `batch ${name}`;
    await createBatches(eventLog, [id]);
    let runs = 0;
    const version = await eventLog.transact(commandOn(id), async (unit) => {
      runs += 1;
      const first = await unit.append(batchModel, id, [chunkRedelivered(runs)]);
      if (runs === 1) await end(unit);
      return (await unit.append(batchModel, id, [chunkRedelivered(runs)])).version === first.version + 1 && runs;
    });
    expect(version).toBe(2);
    const events = await readStream(database.db, id);
    expect(events.slice(2).map((event) => event.data)).toEqual([chunkRedelivered(2).data, chunkRedelivered(2).data]);
    expect(events.map((event) => event.streamVersion)).toEqual([1, 2, 3, 4]);
  });

  test.each([
    ['a refusal', new GatewayError('conflict', null, 'no'), 'no'],
    ['a bug', new TypeError('undefined is not a function'), 'undefined is not a function'],
  ])('that is %s is thrown at once, and nothing is written', async (name, error, message) => {
    const id = `batch ${name}`;
    await createBatches(eventLog, [id]);
    let runs = 0;
    const failing = eventLog.transact(commandOn(id), async (unit) => {
      runs += 1;
      await unit.append(batchModel, id, [chunkRedelivered(1)]);
      throw error;
    });
    await expect(failing).rejects.toThrow(message);
    expect(runs).toBe(1);
    expect(await versions(id)).toEqual([1, 2]);
  });

  test('that the data itself causes is thrown at once', async () => {
    let runs = 0;
    const failing = eventLog.transact(commandOn('batch_nul'), (unit) => {
      runs += 1;
      return unit.append(batchModel, 'batch_nul', [batchCreated({ headers: { trace_id: '\0' } })]);
    });
    await expect(failing).rejects.toThrow('a text with U+0000 cannot be stored');
    expect(runs).toBe(1);
  });
});

describe('a unit of work', () => {
  test('refuses a stream that the command does not lock', async () => {
    const wrong = eventLog.transact(commandOn('batch_x'), (unit) =>
      unit.append(batchModel, 'batch_y', [batchCreated()]),
    );
    await expect(wrong).rejects.toThrow('stream batch_y is not locked by this command');
  });

  test('without events returns the row as it is, and refuses a stream that was never begun', async () => {
    await createBatches(eventLog, ['batch_same']);
    const row = await eventLog.transact(commandOn('batch_same'), (unit) => unit.append(batchModel, 'batch_same', []));
    expect(row).toMatchObject({ version: 2, status: 'in_progress' });
    const absent = eventLog.transact(commandOn('batch_no'), (unit) => unit.append(batchModel, 'batch_no', []));
    await expect(absent).rejects.toThrow('stream batch_no does not exist');
  });

  test('gives no event a time before that of the one before it, whatever the clock of the server does', async () => {
    await createBatches(eventLog, ['batch_clock']);
    await database.tamper(`
      update event set recorded_at = '2040-01-01T00:00:00Z' where stream_id = 'batch_clock';
      update batch set updated_at = '2040-01-01T00:00:00Z' where id = 'batch_clock'`);
    const row = await eventLog.transact(commandOn('batch_clock'), (unit) =>
      unit.append(batchModel, 'batch_clock', [chunkRedelivered(1)]),
    );
    expect(row.updated_at.toISOString()).toBe('2040-01-01T00:00:00.000Z');
    const events = await readStream(database.db, 'batch_clock');
    expect(events.at(-1)?.recordedAt.toISOString()).toBe('2040-01-01T00:00:00.000Z');
  });
});
