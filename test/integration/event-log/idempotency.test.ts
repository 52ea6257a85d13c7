import { sql } from 'kysely';
import { afterAll, beforeAll, describe, expect, test, vi } from 'vitest';
import { createEventLog, type UnitOfWork } from '#libs/event-log/event-log.ts';
import { fingerprintBody, transactOnce, type CallIdentity } from '#libs/event-log/idempotency.ts';
import { readStream } from '#libs/event-log/read-events.ts';
import { fileModel } from '#libs/files/file-model.ts';
import { createTestDatabase, type TestDatabase } from '#test/postgres.ts';
import { commandOn, fileUploaded } from './streams.ts';

let database: TestDatabase;
beforeAll(async () => {
  database = await createTestDatabase({ lockTimeoutMs: 1_000 });
});
afterAll(async () => {
  await database.drop();
});

let requests = 0;
const identity = (given: Partial<CallIdentity> = {}): CallIdentity => ({
  workspaceId: 'ws_1',
  keyId: 'key_1',
  route: 'POST /v1/files',
  idempotencyKey: null,
  retryCount: 0,
  tryMsMax: 600_000,
  requestId: `req_${(requests += 1)}`,
  fingerprint: fingerprintBody('{"a":1}'),
  ...given,
});

type Work = (unit: UnitOfWork) => Promise<{ status: number; body: { id: string; number: number } }>;

/** Creates one more file for each time that it is really executed. */
function creator(during: () => Promise<void> = async () => {}) {
  const created: string[] = [];
  const work =
    (id: string): Work =>
    async (unit) => {
      await unit.append(fileModel, id, [fileUploaded()]);
      await during();
      created.push(id);
      return { status: 201, body: { id, number: created.length } };
    };
  let calls = 0;
  const call = (given: Partial<CallIdentity> = {}) => {
    const id = `file-${Math.random().toString(36).slice(2)}-${(calls += 1)}`;
    return transactOnce(createEventLog(database.db), identity(given), commandOn(id), work(id));
  };
  return { call, created };
}

const uniqueKey = (): string => `key-${(requests += 1)}`;

describe('with an Idempotency-Key', () => {
  test('the same request again gets the first answer and changes nothing', async () => {
    const { call, created } = creator();
    const idempotencyKey = uniqueKey();
    const first = await call({ idempotencyKey });
    expect(first).toEqual({ status: 201, body: { id: created[0], number: 1 }, replayed: false });
    for (const retryCount of [0, 1]) {
      expect(await call({ idempotencyKey, retryCount })).toEqual({ ...first, replayed: true });
    }
    expect(created).toHaveLength(1);
    expect(await readStream(database.db, created[0] ?? '')).toHaveLength(1);
  });

  test('another body under the same key is a conflict and changes nothing', async () => {
    const { call, created } = creator();
    const idempotencyKey = uniqueKey();
    await call({ idempotencyKey });
    await expect(call({ idempotencyKey, fingerprint: fingerprintBody('{"a":2}') })).rejects.toMatchObject({
      kind: 'conflict',
      code: 'idempotency_key_reused',
      param: 'Idempotency-Key',
    });
    expect(created).toHaveLength(1);
  });

  test('another workspace, key or route has keys of its own', async () => {
    const { call, created } = creator();
    const idempotencyKey = uniqueKey();
    const others = [{}, { workspaceId: 'ws_2' }, { keyId: 'key_2' }, { route: 'POST /v1/batches' }];
    for (const other of others) expect(await call({ idempotencyKey, ...other })).toMatchObject({ replayed: false });
    expect(created).toHaveLength(4);
    for (const other of others) expect(await call({ idempotencyKey, ...other })).toMatchObject({ replayed: true });
    expect(created).toHaveLength(4);
  });

  test('twins that run at the same time are executed once, and all get that answer', async () => {
    const { call, created } = creator(() => new Promise((resolve) => setTimeout(resolve, 50)));
    const idempotencyKey = uniqueKey();
    const answers = await Promise.all(Array.from({ length: 6 }, () => call({ idempotencyKey })));
    expect(created).toHaveLength(1);
    expect(answers.map((answer) => answer.body.id)).toEqual(Array.from({ length: 6 }, () => created[0]));
    expect(answers.filter((answer) => !answer.replayed)).toHaveLength(1);
    const { rows } =
      await sql`select from event where stream_id like 'file-%' and stream_id = any(${answers.map((answer) => answer.body.id)}::text[])`.execute(
        database.db,
      );
    expect(rows).toHaveLength(1);
  });

  test('a twin that waits longer than the lock timeout is told that the first is still running', async () => {
    const gate = Promise.withResolvers<void>();
    const begun = Promise.withResolvers<void>();
    const { call, created } = creator(() => {
      begun.resolve();
      return gate.promise;
    });
    const idempotencyKey = uniqueKey();
    const first = call({ idempotencyKey });
    await begun.promise;
    await expect(call({ idempotencyKey })).rejects.toMatchObject({ kind: 'conflict', code: 'request_in_progress' });
    gate.resolve();
    expect(await first).toMatchObject({ replayed: false });
    expect(await call({ idempotencyKey })).toMatchObject({ replayed: true });
    expect(created).toHaveLength(1);
  });

  test('a call that failed is not remembered: the next one is executed', async () => {
    let failures = 1;
    const { call, created } = creator(async () => {
      failures -= 1;
      if (failures >= 0) throw new Error('the disk is full');
    });
    const idempotencyKey = uniqueKey();
    await expect(call({ idempotencyKey })).rejects.toThrow('the disk is full');
    expect(await call({ idempotencyKey })).toMatchObject({ replayed: false });
    expect(created).toHaveLength(1);
  });
});

describe('without a key', () => {
  const own = (): Partial<CallIdentity> => ({ fingerprint: fingerprintBody(`{"b":${(requests += 1)}}`) });

  test('the same body twice is two calls, unless the client says that it tries again', async () => {
    const { call, created } = creator();
    const same = own();
    await call(same);
    const second = await call(same);
    expect(created).toHaveLength(2);
    // Of several the last one is meant.
    expect(await call({ ...same, retryCount: 1 })).toEqual({ ...second, replayed: true });
    expect(created).toHaveLength(2);
  });

  test('a retry whose first try never came is executed', async () => {
    const { call, created } = creator();
    const same = own();
    expect(await call({ ...same, retryCount: 1 })).toMatchObject({ replayed: false });
    expect(await call({ ...same, retryCount: 2 })).toMatchObject({ replayed: true });
    expect(created).toHaveLength(1);
  });

  test('a retry is not given an answer that an equal or later try of another call was given', async () => {
    const { call, created } = creator();
    const same = own();
    await call(same);
    expect(await call({ ...same, retryCount: 1 })).toMatchObject({ replayed: true });
    // The same again, as it was meant, whose first try was lost on its way.
    expect(await call({ ...same, retryCount: 1 })).toMatchObject({ replayed: false });
    expect(await call({ ...same, retryCount: 1 })).toMatchObject({ replayed: false });
    expect(created).toHaveLength(3);
    expect(await call({ ...same, retryCount: 2 })).toMatchObject({ replayed: true, body: { id: created[2] } });
  });

  test('a retry is given no answer from before its first try can have begun', async () => {
    const { call, created } = creator();
    const same = { ...own(), tryMsMax: 5_000 };
    const age = () =>
      sql`update command_result set recorded_at = clock_timestamp() - interval '66 seconds'
        where fingerprint = ${same.fingerprint}`.execute(database.db);
    await call(same);
    await age();
    expect(await call({ ...same, retryCount: 1 })).toMatchObject({ replayed: false });
    await age();
    expect(await call({ ...same, retryCount: 2 })).toMatchObject({ replayed: true });
    expect(created).toHaveLength(2);
  });

  test('a retry while the first try runs waits for it and gets its answer', async () => {
    const gate = Promise.withResolvers<void>();
    const begun = Promise.withResolvers<void>();
    const { call, created } = creator(() => {
      begun.resolve();
      return gate.promise;
    });
    const same = own();
    const first = call(same);
    await begun.promise;
    const retry = call({ ...same, retryCount: 1 });
    await vi.waitFor(async () => {
      const { rows } = await sql`select from pg_stat_activity
        where datname = current_database() and wait_event_type = 'Lock' and wait_event = 'advisory'`.execute(
        database.db,
      );
      expect(rows).toHaveLength(1);
    });
    gate.resolve();
    const answers = await Promise.all([first, retry]);
    expect(answers.map((answer) => answer.body.id)).toEqual([created[0], created[0]]);
    expect(created).toHaveLength(1);
  });

  test('longer after it than a try and the pause after it take, a retry is a new call', async () => {
    const { call, created } = creator();
    const same = own();
    await call(same);
    const age = (interval: string) =>
      sql`update command_result set recorded_at = clock_timestamp() - ${interval}::interval
        where fingerprint = ${same.fingerprint}`.execute(database.db);
    await age('10 minutes 50 seconds');
    expect(await call({ ...same, retryCount: 1 })).toMatchObject({ replayed: true });
    await age('22 minutes 1 second');
    expect(await call({ ...same, retryCount: 2 })).toMatchObject({ replayed: false });
    expect(created).toHaveLength(2);
  });

  test('a retry finds neither another body nor another workspace, key or route', async () => {
    const { call, created } = creator();
    const same = own();
    await call(same);
    const others = [own(), { workspaceId: 'ws_2' }, { keyId: 'key_2' }, { route: 'POST /v1/batches' }];
    for (const other of others) {
      expect(await call({ ...same, retryCount: 1, ...other })).toMatchObject({ replayed: false });
    }
    expect(created).toHaveLength(5);
  });
});
