import { sql } from 'kysely';
import { afterEach, expect, test } from 'vitest';
import { z } from 'zod';
import { createLogger } from '#libs/kernel/logging/logger.ts';
import { reservedPriority, snoozedPriority } from '#libs/queue/group-worker.ts';
import { createJobQueue, type JobQueue } from '#libs/queue/job-queue.ts';
import type { ClaimedJob, QueueDefinition } from '#libs/queue/queue-definition.ts';
import { eventually } from '#test/eventually.ts';
import { useTestDatabase } from '#test/postgres.ts';

const database = useTestDatabase();
const logger = createLogger({ name: 'test', level: 'silent' });
type Payload = { name: string };

let queue: JobQueue | undefined;
let held: Held[] = [];
afterEach(async () => {
  for (const { finish } of held) finish();
  held = [];
  await queue?.stop?.();
});

type Held = { job: ClaimedJob<Payload>; name: string; finish: () => void; fail: (error: Error) => void };

/** A queue whose handler holds every job until the test finishes it. */
async function setUp(name: string, limits: { concurrency: number; concurrencyOfGroup: number }) {
  const definition: QueueDefinition<Payload> = {
    name,
    payload: z.object({ name: z.string() }),
    options: { retryLimit: 100, retryDelay: 0, heartbeatSeconds: 10, notify: true },
  };
  const { connectionString } = database;
  const own = (queue = createJobQueue({
    connectionString,
    role: 'worker',
    queues: [definition],
    logger,
    poolSizeMax: 2,
  }));
  await own.start?.();
  const worker = own.workInGroups(definition, limits, async (job) => {
    const { promise, resolve, reject } = Promise.withResolvers<void>();
    held.push({ job, name: job.payload.name, finish: resolve, fail: reject });
    await promise;
    await own.complete(database.db, definition, job);
  });
  const enqueue = async (group: string | null, names: string[], priority = 0): Promise<void> => {
    for (const each of names) {
      await own.enqueue(database.db, definition, { name: each }, { priority, ...(group === null ? {} : { group }) });
    }
    worker.wake();
  };
  const add = (group: string | null, ...names: string[]): Promise<void> => enqueue(group, names);
  /** Snoozed jobs. */
  const addBack = (group: string, ...names: string[]): Promise<void> => enqueue(group, names, snoozedPriority);
  const addReserved = (group: string, ...names: string[]): Promise<void> => enqueue(group, names, reservedPriority);
  /** Waits until these jobs are held and no other one is claimed for a while. */
  const expectHeld = async (...names: string[]): Promise<void> => {
    await eventually(
      () => Promise.resolve(held.map((one) => one.name).toSorted()),
      (now) => now.join() === names.toSorted().join(),
    );
  };
  const finish = (...names: string[]): void => {
    for (const one of held.filter((each) => names.includes(each.name))) one.finish();
    held = held.filter((each) => !names.includes(each.name));
  };
  return { own, definition, worker, add, addBack, addReserved, expectHeld, finish };
}

async function statesOf(name: string): Promise<Record<string, number>> {
  const { rows } = await sql<{ state: string; jobs: number }>`
    select state::text, count(*)::int as jobs from pgboss.job where name = ${name} group by 1`.execute(database.db);
  return Object.fromEntries(rows.map(({ state, jobs }) => [state, jobs]));
}

test('one group runs a limited number of jobs at once, and another group does not wait for it', async () => {
  const { add, expectHeld, finish } = await setUp('grouped', { concurrency: 8, concurrencyOfGroup: 2 });
  await add('a', 'a1', 'a2', 'a3', 'a4');
  await expectHeld('a1', 'a2');
  await add('b', 'b1');
  await expectHeld('a1', 'a2', 'b1');
  finish('a1');
  await expectHeld('a2', 'a3', 'b1');
  finish('a2', 'a3', 'b1');
  await expectHeld('a4');
  finish('a4');
  await eventually(
    () => statesOf('grouped'),
    (states) => states['completed'] === 5,
  );
});

test('snoozed jobs come after the others, except for every fourth claim', async () => {
  const { add, addBack, expectHeld, finish } = await setUp('back', { concurrency: 1, concurrencyOfGroup: 1 });
  await add(null, 'now');
  await expectHeld('now');
  await addBack('b', 'back1', 'back2');
  await add('b', 'b1', 'b2', 'b3', 'b4');
  for (const [last, next] of [
    ['now', 'b1'],
    ['b1', 'b2'],
    ['b2', 'back1'],
    ['back1', 'b3'],
    ['b3', 'b4'],
    ['b4', 'back2'],
  ] as const) {
    finish(last);
    await expectHeld(next);
  }
});

test('snoozed jobs leave half of the slots to others', async () => {
  const { add, addBack, expectHeld, finish, worker } = await setUp('kept', { concurrency: 6, concurrencyOfGroup: 2 });
  await addBack('a', 'a1', 'a2', 'a3');
  await expectHeld('a1', 'a2');
  expect(worker.isCrowded()).toBe(false);
  await addBack('b', 'b1', 'b2');
  await expectHeld('a1', 'a2', 'b1');
  expect(worker.isCrowded()).toBe(true);
  await add('c', 'c1', 'c2', 'c3');
  await add('d', 'd1', 'd2');
  await expectHeld('a1', 'a2', 'b1', 'c1', 'c2', 'd1');
  finish('a1', 'c1', 'c2', 'd1');
  await expectHeld('a2', 'b1', 'a3', 'c3', 'd2');
});

test('reserved jobs come first, and get a slot when all others have filled what they can get', async () => {
  const { addReserved, add, expectHeld, finish } = await setUp('reserved', { concurrency: 1, concurrencyOfGroup: 1 });
  const groups = ['a', 'b', 'c', 'd', 'e', 'f'];
  for (const group of groups) await add(group, `${group}1`);
  await expectHeld('a1', 'b1', 'c1', 'd1');
  await addReserved('x', 'x1');
  await expectHeld('a1', 'b1', 'c1', 'd1', 'x1');
  for (const group of ['y1', 'y2', 'y3', 'y4']) await addReserved(group, group);
  await expectHeld('a1', 'b1', 'c1', 'd1', 'x1', 'y1', 'y2', 'y3');
  finish('a1');
  await expectHeld('b1', 'c1', 'd1', 'x1', 'y1', 'y2', 'y3', 'y4');
});

test('all groups together run a limited number of jobs, and the last slots are for groups without one', async () => {
  const { add, expectHeld, finish, worker } = await setUp('full', { concurrency: 4, concurrencyOfGroup: 3 });
  await add('a', 'a1', 'a2');
  await expectHeld('a1', 'a2');
  expect(worker.isCrowded()).toBe(false);
  await add('a', 'a3', 'a4');
  await expectHeld('a1', 'a2', 'a3');
  // a4 gets no slot, although some are free.
  expect(worker.isCrowded()).toBe(true);
  await add('b', 'b1', 'b2');
  await expectHeld('a1', 'a2', 'a3', 'b1');
  expect(worker.isCrowded()).toBe(true);
  await add('c', 'c1');
  finish('a1');
  // A slot is free again, but not for a and b, which have jobs here.
  await expectHeld('a2', 'a3', 'b1', 'c1');
  finish('a2', 'a3', 'b1', 'c1');
  await expectHeld('a4', 'b2');
});

test('when all slots are taken, groups without a job may still start their first one', async () => {
  const { add, addBack, expectHeld, finish } = await setUp('first', { concurrency: 2, concurrencyOfGroup: 2 });
  await add('a', 'a1', 'a2', 'a3');
  await expectHeld('a1', 'a2');
  const others = ['b', 'c', 'd', 'e', 'f', 'g'];
  for (const group of others) await add(group, `${group}1`, `${group}2`);
  const first = others.map((group) => `${group}1`);
  await expectHeld('a1', 'a2', ...first);
  await addBack('i', 'i1');
  await add('h', 'h1');
  finish('a1');
  await expectHeld('a2', ...first, 'h1');
  expect(await statesOf('first')).toEqual({ active: 8, completed: 1, created: 8 });
});

test('a job whose handler throws is claimed again, and a handler never gets a payload of another shape', async () => {
  const { add, expectHeld, definition, own, worker } = await setUp('failing', {
    concurrency: 2,
    concurrencyOfGroup: 2,
  });
  await add('a', 'a1');
  await expectHeld('a1');
  held[0]?.fail(new Error('a bug of ours'));
  await eventually(
    () => Promise.resolve(held.map(({ job }) => job.retryCount)),
    (counts) => counts.join() === '0,1',
  );
  const odd = { wrong: true } as unknown as Payload;
  await own.enqueue(database.db, { ...definition, options: {} }, odd, { group: 'b' });
  worker.wake();
  await eventually(
    () => statesOf('failing'),
    (states) => (states['retry'] ?? 0) + (states['active'] ?? 0) === 2,
  );
  expect(held).toHaveLength(2);
});

test('a handler is told when its claim was lost', async () => {
  const { add, expectHeld, own, definition } = await setUp('lost', { concurrency: 1, concurrencyOfGroup: 1 });
  await add('a', 'a1');
  await expectHeld('a1');
  const [first] = held;
  expect(await own.handBack(definition, first?.job as ClaimedJob<Payload>, 'job heartbeat timeout')).toBe(true);
  await eventually(() => Promise.resolve(first?.job.signal.aborted), Boolean, { timeoutMs: 15_000 });
  first?.finish();
  // And its return completed nothing: the job is claimed again.
  await eventually(
    () => Promise.resolve(held.map(({ job }) => job.retryCount)),
    (counts) => counts.join() === '0,1',
  );
});

test('a claim is kept for longer than one heartbeat timeout', async () => {
  const { add, expectHeld, own, definition } = await setUp('long', { concurrency: 2, concurrencyOfGroup: 2 });
  await add('a', 'a1');
  await expectHeld('a1');
  const { rows } = await sql<{ heartbeat_on: Date }>`
    select heartbeat_on from pgboss.job where name = 'long'`.execute(database.db);
  await eventually(
    async () => {
      const later = await sql<{ moved: boolean }>`
        select heartbeat_on > ${rows[0]?.heartbeat_on} as moved from pgboss.job where name = 'long'`.execute(
        database.db,
      );
      return later.rows[0]?.moved;
    },
    Boolean,
    { timeoutMs: 15_000 },
  );
  expect(held[0]?.job.signal.aborted).toBe(false);
  expect(await own.holds(database.db, definition, held[0]?.job as ClaimedJob<Payload>)).toBe(true);
});

test('heartbeats do not wait for a transaction that completes several jobs, so neither ends in a deadlock', async () => {
  const { add, expectHeld, own, definition } = await setUp('together', { concurrency: 3, concurrencyOfGroup: 3 });
  await add('a', 'a1', 'a2', 'a3');
  await expectHeld('a1', 'a2', 'a3');
  const [first, second, third] = held.map(({ job }) => job).toSorted((a, b) => (a.id < b.id ? -1 : 1));
  await database.db.transaction().execute(async (tx) => {
    expect(await own.complete(tx, definition, second as ClaimedJob<Payload>)).toBe(true);
    await eventually(
      async () => {
        const { rows } = await sql<{ over: boolean }>`
          select (select count(*) from pgboss.job where name = 'together' and heartbeat_on > started_on) = 2
            or exists (
              select from pg_locks join pg_database on pg_database.oid = pg_locks.database
              where datname = current_database() and not granted) as over`.execute(database.db);
        return rows[0]?.over;
      },
      Boolean,
      { timeoutMs: 15_000 },
    );
    for (const job of [first, third]) expect(await own.complete(tx, definition, job as ClaimedJob<Payload>)).toBe(true);
  });
  expect(held.map(({ job }) => job.signal.aborted)).toEqual([false, false, false]);
  expect(await statesOf('together')).toEqual({ completed: 3 });
});

test('a queue that stops claims no more jobs, and waits for the running ones', async () => {
  const { add, expectHeld, own, finish } = await setUp('stopping', { concurrency: 1, concurrencyOfGroup: 1 });
  await add('a', 'a1', 'a2');
  await expectHeld('a1');
  let isStopped = false;
  const stopped = Promise.resolve(own.stop?.()).then(() => (isStopped = true));
  await new Promise((resolve) => void setImmediate(resolve));
  expect(isStopped).toBe(false);
  finish('a1');
  await stopped;
  expect(await statesOf('stopping')).toEqual({ completed: 1, created: 1 });
});

test('a job that frees its slot goes on beside the next ones of its group, up to a number of them', async () => {
  const { add, expectHeld, finish } = await setUp('tails', { concurrency: 2, concurrencyOfGroup: 1 });
  const names = Array.from({ length: 12 }, (_each, index) => `t${String(index).padStart(2, '0')}`);
  await add('a', ...names);
  const free = (): boolean | undefined => held.at(-1)?.job.freeSlot?.();
  for (let tails = 1; tails <= 8; tails += 1) {
    await expectHeld(...names.slice(0, tails));
    expect([free(), free()]).toEqual([true, false]);
  }
  await expectHeld(...names.slice(0, 9));
  expect(free()).toBe(false);
  finish('t00');
  expect(
    await eventually(
      () => Promise.resolve(free()),
      (isFree) => isFree === true,
    ),
  ).toBe(true);
  await expectHeld(...names.slice(1, 10));
});
