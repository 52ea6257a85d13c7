import { sql } from 'kysely';
import { expect, test, type TestContext } from 'vitest';
import { z } from 'zod';
import { createDatabaseWait } from '#libs/database/wait-for-database.ts';
import { createTestLogger } from '#libs/http/http-test-kit.ts';
import type { EndedJob, OnJobEnded } from '#libs/queue/ended-job.ts';
import { createJobQueue, type JobQueue } from '#libs/queue/job-queue.ts';
import type { ClaimedJob, QueueDefinition } from '#libs/queue/queue-definition.ts';
import { sleep } from '#libs/kernel/sleep.ts';
import { eventually } from '#test/eventually.ts';
import { useTestDatabase } from '#test/postgres.ts';
import { startTcpProxy } from '../database/tcp-proxy.ts';

// These tests mostly wait, so they run side by side, each with a queue of its own.
const database = useTestDatabase();
const { logger, lines } = createTestLogger();
const queueOf = (name: string): QueueDefinition<{ n: number }> => ({
  name,
  payload: z.object({ n: z.number() }),
  options: { retryLimit: 100, retryDelay: 0, heartbeatSeconds: 10, notify: true },
});

async function startQueue(
  { onTestFinished }: TestContext,
  queues: readonly QueueDefinition<{ n: number }>[],
  onJobEnded?: OnJobEnded,
): Promise<JobQueue> {
  const { connectionString } = database;
  const queue = createJobQueue({ connectionString, role: 'worker', queues, logger, poolSizeMax: 2, onJobEnded });
  onTestFinished(async () => await queue.stop?.());
  await queue.start?.();
  return queue;
}

const away = (): Error => Object.assign(new Error('connect ECONNREFUSED'), { code: 'ECONNREFUSED' });

async function jobState(name: string): Promise<{ state: string; retry_count: number }[]> {
  const { rows } = await sql<{ state: string; retry_count: number }>`
    select state::text, retry_count from pgboss.job where name = ${name}`.execute(database.db);
  return rows;
}

/** Runs one job with a handler that fails twice. Resolves with the claims it ran under. */
async function claimsOf(
  context: TestContext,
  { name, failure, retryOutages }: { name: string; failure: Error; retryOutages: boolean },
): Promise<number[]> {
  const definition = queueOf(name);
  const queue = await startQueue(context, [definition]);
  const claims: number[] = [];
  const succeeded = Promise.withResolvers<void>();
  await queue.work(definition, { concurrency: 1, retryOutages }, (job) => {
    claims.push(job.retryCount);
    if (claims.length <= 2) return Promise.reject(failure);
    succeeded.resolve();
    return Promise.resolve();
  });
  await queue.enqueue(database.db, definition, { n: 1 });
  await succeeded.promise;
  return claims;
}

test.concurrent('a job that retries outages runs again under the same claim when the database is unavailable', async (context) => {
  expect(await claimsOf(context, { name: 'outlasting', failure: away(), retryOutages: true })).toEqual([0, 0, 0]);
});

test.concurrent('a job that fails for another reason, or does not retry outages, is claimed again', async (context) => {
  expect(await claimsOf(context, { name: 'failing', failure: new Error('a bug of ours'), retryOutages: true })).toEqual(
    [0, 1, 2],
  );
  expect(await claimsOf(context, { name: 'plain', failure: away(), retryOutages: false })).toEqual([0, 1, 2]);
  expect(lines.filter(({ msg, queue }) => msg === 'job failed' && queue === 'failing')).toMatchObject([
    { n: 1, retries: 0, err: { message: 'a bug of ours' } },
    { n: 1, retries: 1, err: { message: 'a bug of ours' } },
  ]);
});

test.concurrent('each claim that ends is reported, with how long its job could have started before and what became of it', async (context) => {
  const plain = queueOf('reported');
  const ended: EndedJob[] = [];
  const queue = await startQueue(context, [plain], (job) => ended.push(job));
  const handler = async (job: ClaimedJob<{ n: number }>): Promise<void> => {
    if (job.retryCount === 0 && job.payload.n === 1) throw new TypeError('a bug of ours');
    if (job.payload.n === 2) job.note?.('put off');
  };
  // Each job could have started an hour ago.
  const startAfter = new Date(Date.now() - 3_600_000);
  for (const n of [1, 2]) await queue.enqueue(database.db, plain, { n }, { startAfter });
  await queue.work(plain, { concurrency: 1, claimedAtOnce: 1 }, handler);
  await eventually(
    () => ended.length,
    (count) => count === 3,
  );
  expect(ended.map(({ payload, retryCount, outcome }) => [payload, retryCount, outcome])).toEqual(
    expect.arrayContaining([
      [{ n: 1 }, 0, 'failed'],
      [{ n: 1 }, 1, 'completed'],
      [{ n: 2 }, 0, 'put off'],
    ]),
  );
  const first = ended.find(({ retryCount, outcome }) => retryCount === 0 && outcome === 'failed');
  expect(first?.error).toBeInstanceOf(TypeError);
  expect(first?.waitedMs).toBeGreaterThanOrEqual(3_600_000);
  expect(ended.every(({ startedAtMs, endedAtMs }) => endedAtMs >= startedAtMs)).toBe(true);
});

test.concurrent('a claim is held until its handler fails, and a lost one has no effect', async (context) => {
  const definition = queueOf('fenced');
  const queue = await startQueue(context, [definition]);
  const first = Promise.withResolvers<ClaimedJob<{ n: number }>>();
  const second = Promise.withResolvers<ClaimedJob<{ n: number }>>();
  const [fail, finish] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()];
  await queue.work(definition, { concurrency: 2 }, async (job) => {
    (job.retryCount === 0 ? first : second).resolve(job);
    await (job.retryCount === 0 ? fail : finish).promise;
  });
  await queue.enqueue(database.db, definition, { n: 1 });
  const lost = await first.promise;
  expect(await queue.holds(database.db, definition, lost)).toBe(true);
  fail.reject(new Error('the worker is stopping'));
  const held = await second.promise;
  expect(await queue.holds(database.db, definition, lost)).toBe(false);
  expect(await queue.complete(database.db, definition, lost)).toBe(false);
  expect(await queue.holds(database.db, definition, held)).toBe(true);
  expect(await queue.complete(database.db, definition, held)).toBe(true);
  finish.resolve();
  expect(await jobState('fenced')).toEqual([{ state: 'completed', retry_count: 1 }]);
});

test.concurrent('a job is enqueued once while one with its key is open, and again in the transaction that completes it', async (context) => {
  const definition: QueueDefinition<{ n: number }> = {
    ...queueOf('keyed'),
    key: ({ n }) => String(n),
    options: { ...queueOf('keyed').options, policy: 'exclusive' },
  };
  const queue = await startQueue(context, [definition]);
  const { db } = database;
  await queue.enqueue(db, definition, { n: 1 });
  expect(await queue.enqueueMany(db, definition, [{ n: 1 }, { n: 2 }])).toEqual([{ n: 2 }]);
  const claims: string[] = [];
  const first = Promise.withResolvers<void>();
  await queue.work(definition, { concurrency: 1 }, async (job) => {
    claims.push(`${job.payload.n}/${job.retryCount}`);
    if (job.payload.n !== 1 || claims.filter((claim) => claim.startsWith('1/')).length > 2) return;
    // Neither while it is active nor while it waits for its retry.
    expect(await queue.enqueueMany(db, definition, [{ n: 1 }])).toEqual([]);
    if (job.retryCount === 0) throw new Error('a bug of ours');
    await db.transaction().execute(async (tx) => {
      expect(await queue.complete(tx, definition, job)).toBe(true);
      await queue.enqueue(tx, definition, job.payload);
    });
    first.resolve();
  });
  await first.promise;
  await eventually(
    () => claims.toSorted(),
    (found) => found.length === 4,
  );
  expect(claims.toSorted()).toEqual(['1/0', '1/0', '1/1', '2/0']);
});

test.concurrent('jobs that are claimed together run side by side, and if one fails, all are retried', async (context) => {
  const definition = queueOf('together');
  const queue = await startQueue(context, [definition]);
  await database.db.transaction().execute(async (tx) => {
    for (const n of [1, 2, 3]) await queue.enqueue(tx, definition, { n });
  });
  const begun: string[] = [];
  const all = Promise.withResolvers<void>();
  const succeeded = Promise.withResolvers<void>();
  await queue.work(definition, { concurrency: 1, claimedAtOnce: 3 }, async ({ payload: { n }, retryCount }) => {
    begun.push(`${n}/${retryCount}`);
    if (begun.length === 3) all.resolve();
    if (begun.length === 6) succeeded.resolve();
    await all.promise;
    if (n === 2 && retryCount === 0) throw new Error('a bug of ours');
  });
  await succeeded.promise;
  expect(begun.toSorted()).toEqual(['1/0', '1/1', '2/0', '2/1', '3/0', '3/1']);
});

test.concurrent('a stop waits for a handler until its deadline, and then fails the job, which is retried', async () => {
  const definition = queueOf('stopped');
  const queue = createJobQueue({
    connectionString: database.connectionString,
    role: 'worker',
    queues: [definition],
    logger,
    poolSizeMax: 2,
    stopDeadlineMs: 1_000,
  });
  await queue.start?.();
  const begun = Promise.withResolvers<void>();
  await queue.work(definition, { concurrency: 1 }, async (job) => {
    begun.resolve();
    await sleep(3_600_000, job.signal);
  });
  await queue.enqueue(database.db, definition, { n: 1 });
  await begun.promise;
  await queue.stop?.();
  expect(await jobState('stopped')).toEqual([{ state: 'retry', retry_count: 0 }]);
});

test.concurrent.each([1, 2, 4, 7, 11, 16, 22, 30])(
  'a start that loses the database at its answer %i goes on when it is back',
  async (answer) => {
    const proxy = await startTcpProxy(database.connectionString);
    let answers = 0;
    let awayUntil = Number.NaN;
    proxy.setFilter(() => {
      answers += 1;
      if (answers === answer) awayUntil = performance.now() + 1_200;
      if (!(performance.now() < awayUntil)) return true;
      proxy.resetAll();
      return false;
    });
    const definition = queueOf(`started-${answer}`);
    const queue = createJobQueue({
      connectionString: proxy.connectionString,
      role: 'worker',
      queues: [definition],
      logger,
      poolSizeMax: 2,
    });
    const { connectionString } = proxy;
    const wait = createDatabaseWait({ connectionString, logger, waitMsMax: 60_000 });
    try {
      await wait.outlasting(queue).start?.();
      const done = Promise.withResolvers<number>();
      await queue.work(definition, { concurrency: 1 }, (job) => Promise.resolve(done.resolve(job.payload.n)));
      await queue.enqueue(database.db, definition, { n: answer });
      expect(await done.promise).toBe(answer);
    } finally {
      await queue.stop?.();
      await proxy.close();
    }
  },
);
