import { spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';
import { afterEach, beforeEach, describe, expect, onTestFinished, test } from 'vitest';
import { batchModel } from '#libs/batches/batch/batch-model.ts';
import { createEventLog, type EventLog } from '#libs/event-log/event-log.ts';
import type { PositionedEvent } from '#libs/event-log/read-events.ts';
import { createSubscriberRunner } from '#libs/event-log/run-subscribers.ts';
import {
  applyNextPage,
  ensureCheckpoint,
  listSubscribers,
  rebuildSubscriber,
  retryNow,
  type Subscriber,
} from '#libs/event-log/subscriber.ts';
import { createLogger } from '#libs/kernel/logging/logger.ts';
import { deliverySubscriber } from '#libs/resources/webhooks/webhook-deliveries.ts';
import { sleep } from '#libs/kernel/sleep.ts';
import { eventually } from '#test/eventually.ts';
import { createTestDatabase, type TestDatabase } from '#test/postgres.ts';
import { countingSubscriber, createCounted } from './counting-subscriber.ts';
import { batchCreated, chunkRedelivered, commandOn } from './streams.ts';

const logger = createLogger({ name: 'test', level: 'silent' });
let database: TestDatabase;
let eventLog: EventLog;

beforeEach(async () => {
  database = await createTestDatabase();
  await database.pool.query(createCounted);
  eventLog = createEventLog(database.db);
});
afterEach(async () => {
  await database.drop();
});

/** Appends `events` events to a stream, some in one transaction. */
async function fill(id: string, events: number): Promise<void> {
  for (let version = 0; version < events;) {
    const next = Array.from({ length: Math.min(events - version, 1 + (version % 3)) }, (_value, index) =>
      version + index === 0 ? batchCreated() : chunkRedelivered(version + index),
    );
    await eventLog.transact(commandOn(id), (unit) => unit.append(batchModel, id, next));
    version += next.length;
  }
}

const counted = async () =>
  (await database.pool.query('select stream_id, events, sum, versions from counted order by stream_id')).rows;
const expectedOf = (streams: Record<string, number>) =>
  Object.entries(streams).map(([stream_id, events]) => ({
    stream_id,
    events,
    sum: (events * (events + 1)) / 2,
    versions: Array.from({ length: events }, (_value, index) => index + 1),
  }));

const byStream = (one: { stream_id: string }, other: { stream_id: string }): number =>
  one.stream_id.localeCompare(other.stream_id);

function startRunner(subscriber: Subscriber, pollMs = 5) {
  const runner = createSubscriberRunner({ db: database.db, subscribers: [subscriber], upcasts: {}, logger, pollMs });
  onTestFinished(() => runner.stop?.());
  void runner.start?.();
  return runner;
}

const stateOf = async (name: string) => (await listSubscribers(database.db)).find((state) => state.name === name);
const caughtUp = (name: string) =>
  eventually(
    () => stateOf(name),
    (state) => state?.eventsBehind === 0,
    { timeoutMs: 30_000 },
  );

describe('a subscriber', () => {
  test('applies each event once, in the order of the log, also of those that come while it runs', async () => {
    await fill('batch_before', 700);
    startRunner(countingSubscriber);
    await Promise.all([fill('batch_x', 60), fill('batch_y', 60), fill('batch_before2', 40)]);
    await caughtUp('counting');
    expect(await counted()).toEqual(expectedOf({ batch_before: 700, batch_before2: 40, batch_x: 60, batch_y: 60 }));
  });

  test('in several processes is applied by one at a time', async () => {
    await ensureCheckpoint(database.db, countingSubscriber);
    await fill('batch_1', 3);
    const reached = Promise.withResolvers<void>();
    const goOn = Promise.withResolvers<void>();
    const slow: Subscriber = {
      ...countingSubscriber,
      async apply(tx, events) {
        reached.resolve();
        await goOn.promise;
        await countingSubscriber.apply(tx, events);
      },
    };
    await eventually(
      () => database.pool.query('select 1 from event where transaction_id < pg_snapshot_xmin(pg_current_snapshot())'),
      ({ rows }) => rows.length === 3,
    );
    const first = applyNextPage(database.db, slow, {});
    await reached.promise;
    expect(await applyNextPage(database.db, countingSubscriber, {})).toMatchObject({ events: 0, state: 'busy' });
    goOn.resolve();
    expect(await first).toMatchObject({ events: 3, state: 'applied' });
    expect(await counted()).toEqual(expectedOf({ batch_1: 3 }));
  });

  test('is woken before its next poll', async () => {
    const runner = startRunner(countingSubscriber, 3_600_000);
    await eventually(
      () => stateOf('counting'),
      (state) => state !== undefined,
    );
    await fill('batch_1', 1);
    await eventually(
      async () => {
        runner.wake();
        return await counted();
      },
      (rows) => rows.length === 1,
    );
  });

  test('of some types gets only these, in their order, and its checkpoint moves past the others', async () => {
    const many = Array.from({ length: 10_500 }, (_value, index) => chunkRedelivered(index));
    await eventLog.transact(commandOn('batch_before'), (unit) =>
      unit.append(batchModel, 'batch_before', [batchCreated(), ...many]),
    );
    await fill('batch_1', 1);
    await fill('batch_2', 30);
    const given: string[] = [];
    const subscriber: Subscriber = {
      ...countingSubscriber,
      types: ['batch.created'],
      async apply(tx, events) {
        given.push(...events.map(({ type, streamId }) => `${type} ${streamId}`));
        await countingSubscriber.apply(tx, events);
      },
    };
    const runner = startRunner(subscriber, 3_600_000);
    await eventually(
      async () => {
        runner.wake();
        return await stateOf('counting');
      },
      (state) => state?.eventsBehind === 0,
    );
    expect(given).toEqual(['batch_before', 'batch_1', 'batch_2'].map((id) => `batch.created ${id}`));
    expect(await counted()).toEqual(expectedOf({ batch_before: 1, batch_1: 1, batch_2: 1 }).toSorted(byStream));
  });

  test('reads no more in a page than the bound on bytes, and at least one event', async () => {
    await ensureCheckpoint(database.db, countingSubscriber);
    const big = batchCreated({ gateway_options: { text: 'x'.repeat(3_000_000) } });
    for (const id of ['batch_1', 'batch_2', 'batch_3']) {
      await eventLog.transact(commandOn(id), (unit) => unit.append(batchModel, id, [big]));
    }
    const pages: number[] = [];
    await eventually(
      async () => {
        const { events } = await applyNextPage(database.db, countingSubscriber, {});
        if (events > 0) pages.push(events);
        return pages.reduce((sum, events) => sum + events, 0);
      },
      (events) => events === 3,
    );
    expect(Math.max(...pages)).toBeLessThanOrEqual(2);
  });
});

test('the index for the subscriber of webhooks has exactly its types', async () => {
  const { rows } = await database.pool.query<{ predicate: string }>(
    `select pg_get_expr(indpred, indrelid) as predicate from pg_index where indexrelid = 'event_of_webhooks'::regclass`,
  );
  const types = [...(rows[0]?.predicate ?? '').matchAll(/'([^']+)'/g)].map(([, type]) => type);
  expect(new Set(types)).toEqual(new Set(deliverySubscriber.types));
});

describe('an event that cannot be applied', () => {
  const failing = (isBad: (event: PositionedEvent) => boolean): Subscriber => ({
    ...countingSubscriber,
    async apply(tx, events) {
      if (events.some(isBad)) throw new Error('it is too odd');
      await countingSubscriber.apply(tx, events);
    },
  });

  test('holds up the events after it and none before it, is shown, and is tried again', async () => {
    await fill('batch_1', 40);
    let isMended = false;
    startRunner(failing(({ streamVersion }) => streamVersion === 23 && !isMended));
    const stuck = await eventually(
      () => stateOf('counting'),
      (state) => (state?.failures ?? 0) > 0,
    );
    expect(stuck).toMatchObject({
      eventsBehind: 18,
      lastError: expect.stringMatching(/^event [0-9a-f-]{36} \(batch\.chunk_redelivered\): it is too odd$/),
    });
    expect(await counted()).toEqual(expectedOf({ batch_1: 22 }));
    isMended = true;
    // Without waiting for its turn.
    expect(await retryNow(database.db, 'counting')).toBe(true);
    await caughtUp('counting');
    expect(await counted()).toEqual(expectedOf({ batch_1: 40 }));
    expect(await stateOf('counting')).toMatchObject({ failures: 0, lastError: null, retryAt: null });
  });

  test('is not tried by any process before its delay is over', async () => {
    await fill('batch_1', 1);
    let tries = 0;
    const subscriber = failing(() => {
      tries += 1;
      return true;
    });
    const runner = startRunner(subscriber);
    await eventually(
      () => stateOf('counting'),
      (state) => (state?.failures ?? 0) > 0,
    );
    await database.pool.query("update subscription_checkpoint set retry_at = clock_timestamp() + interval '1 hour'");
    await sleep(20);
    await runner.stop?.();
    const before = tries;
    expect(await applyNextPage(database.db, subscriber, {})).toMatchObject({ events: 0, state: 'waiting' });
    expect(tries).toBe(before);
  });
});

describe('processes that are killed', () => {
  const script = fileURLToPath(new URL('./subscriber-process.ts', import.meta.url));

  async function startProcess(): Promise<ChildProcess> {
    const child = spawn(process.execPath, [script, database.connectionString], {
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    onTestFinished(() => void child.kill('SIGKILL'));
    await once(child.stdout as NodeJS.ReadableStream, 'data');
    return child;
  }

  test('at any moment lose no event and apply none twice', async () => {
    const streams = { batch_1: 400, batch_2: 400, batch_3: 400 };
    const filling = Promise.all(Object.entries(streams).map(([id, events]) => fill(id, events)));
    // Another one is always there, so that the lease has to change hands.
    let survivor = await startProcess();
    for (let round = 0; round < 6; round += 1) {
      const victim = survivor;
      survivor = await startProcess();
      await sleep(7 * round);
      victim.kill('SIGKILL');
      await once(victim, 'exit');
    }
    await filling;
    await caughtUp('counting');
    expect(await counted()).toEqual(expectedOf(streams));
  });
});

test('a subscriber that is rebuilt has the old rows until it has all new ones', async () => {
  await fill('batch_1', 9);
  await fill('batch_2', 4);
  startRunner(countingSubscriber);
  await caughtUp('counting');
  await database.pool.query("update counted set events = 77 where stream_id = 'batch_1'");
  await database.pool.query("insert into counted values ('batch_invented', 1, 1, '{1}')");
  const damaged = await counted();
  const seen: unknown[] = [];
  const watched: Subscriber = {
    ...countingSubscriber,
    async apply(tx, events) {
      await countingSubscriber.apply(tx, events);
      seen.push(await counted());
    },
  };
  const heard: number[] = [];
  const applied = await rebuildSubscriber(database.db, watched, {}, (events) => heard.push(events));
  expect(applied).toBe(13);
  expect(heard.at(-1)).toBe(13);
  expect(seen).toContainEqual(damaged);
  expect(new Set(seen.map((rows) => JSON.stringify(rows))).size).toBe(1);
  expect(await counted()).toEqual(expectedOf({ batch_1: 9, batch_2: 4 }));
  // The worker continues after the last event that the rebuild applied.
  await fill('batch_3', 3);
  await caughtUp('counting');
  expect(await counted()).toEqual(expectedOf({ batch_1: 9, batch_2: 4, batch_3: 3 }));
});

test('a rebuild next to a busy log applies each event once', async () => {
  startRunner(countingSubscriber);
  await fill('batch_1', 50);
  const filling = fill('batch_2', 200);
  await rebuildSubscriber(database.db, countingSubscriber, {}, () => {});
  await filling;
  await caughtUp('counting');
  expect(await counted()).toEqual(expectedOf({ batch_1: 50, batch_2: 200 }));
});
