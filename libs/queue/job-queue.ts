import { fromKysely, PgBoss, type ConstructorOptions, type Job, type QueueOptions, type QueueResult } from 'pg-boss';
import type { Kysely } from 'kysely';
import { z } from 'zod';
import { isTransient } from '#libs/database/database-error.ts';
import type { Database } from '#libs/database/schema.ts';
import type { Part } from '#libs/kernel/lifecycle.ts';
import type { Logger } from '#libs/kernel/logger.ts';
import { sleep } from '#libs/kernel/sleep.ts';
import { startGroupWorker, type GroupWorker } from './group-worker.ts';

/** A queue: its name, the shape of its payload, and how pg-boss keeps its jobs. Payloads hold ids, never data. */
export type QueueDefinition<Payload extends object> = {
  name: string;
  payload: z.ZodType<Payload>;
  options: QueueOptions & { notify?: boolean; policy?: 'standard' | 'exclusive' | 'short' };
};

/** Enough to settle or schedule: payloads play no part there. */
type QueueName = { name: string };

/** A claimed job. `attempt` fences every settle: a claim that was lost affects nothing. */
export type ClaimedJob<Payload> = {
  id: string;
  payload: Payload;
  /** Aborted when the claim was lost or the process is told to stop. */
  signal: AbortSignal;
  retryCount: number;
};

/** `group`: jobs that `workInGroups` bounds together. */
type EnqueueOptions = { id?: string; startAfter?: Date; singletonKey?: string; priority?: number; group?: string };

/** Both ends are included. */
type Priorities = { minPriority?: number; maxPriority?: number };

export type JobQueue = Part & {
  /** Enqueues inside the caller's transaction: the job exists if and only if the transaction commits. */
  enqueue<Payload extends object>(
    tx: Kysely<Database>,
    queue: QueueDefinition<Payload>,
    payload: Payload,
    options?: EnqueueOptions,
  ): Promise<void>;
  enqueueMany<Payload extends object>(
    tx: Kysely<Database>,
    queue: QueueDefinition<Payload>,
    jobs: readonly { id: string; payload: Payload; priority?: number; group?: string }[],
  ): Promise<void>;
  /**
   * Runs a handler for each job, `concurrency` at a time in this process. A handler that throws is run again.
   * `claimedAtOnce`: so many jobs are claimed, run side by side and completed together by each of these, and done again
   * together when a handler throws; for short jobs that may be repeated. Default 1.
   * `retryOutages`: one that fails because the database is away is begun again under the same claim until it answers,
   * and not after the claim's heartbeat was missed; for handlers whose every step may be repeated. `priorities`: only jobs
   * of these.
   */
  work<Payload extends object>(
    queue: QueueDefinition<Payload>,
    options: { concurrency: number; claimedAtOnce?: number; retryOutages?: boolean; priorities?: Priorities },
    handler: (job: ClaimedJob<Payload>) => Promise<void>,
  ): Promise<void>;
  /**
   * As `work`, of a queue whose jobs are enqueued with a `group`: `concurrency` at a time in this process, of one group
   * at most `concurrencyOfGroup`. Jobs without a group count only among all. For queues with a heartbeat of 10 s. The
   * handler completes its job, or gives it back, itself; where it throws, the job is done again.
   */
  workInGroups<Payload extends object>(
    queue: QueueDefinition<Payload>,
    limits: { concurrency: number; concurrencyOfGroup: number },
    handler: (job: ClaimedJob<Payload>) => Promise<void>,
  ): Pick<GroupWorker, 'wake' | 'isCrowded'>;
  /** Completes a job inside the caller's transaction; false when the claim was lost meanwhile. */
  complete(tx: Kysely<Database>, queue: QueueName, job: { id: string; retryCount: number }): Promise<boolean>;
  /** Whether the claim is still ours, and a sign of life for it, inside the caller's transaction. */
  holds(tx: Kysely<Database>, queue: QueueName, job: { id: string; retryCount: number }): Promise<boolean>;
  /** Gives a job back for immediate redelivery (a worker that stops); false when the claim was lost. */
  handBack(queue: QueueName, job: { id: string; retryCount: number }, reason: string): Promise<boolean>;
  schedule(queue: QueueName, cron: string): Promise<void>;
  depths(): Promise<Pick<QueueResult, 'name' | 'readyCount' | 'activeCount' | 'deferredCount'>[]>;
};

const groupOf = (group: string | undefined): { group?: { id: string } } =>
  group === undefined ? {} : { group: { id: group } };

// pg-boss returns the count but leaves it out of its public type.
const Affected = z.object({ affected: z.number() });

/**
 * pg-boss behind the few calls that Sluice needs. `role: 'sender'` (the API) neither supervises nor works;
 * `role: 'worker'` does both.
 */
export function createJobQueue(deps: {
  connectionString: string;
  role: 'sender' | 'worker';
  queues: readonly Omit<QueueDefinition<object>, 'payload'>[];
  logger: Logger;
  poolSizeMax: number;
  /** How long `stop` waits for handlers that run; their jobs then fail, and are done again. Default 25 s. */
  stopDeadlineMs?: number;
}): JobQueue {
  const { logger, queues, stopDeadlineMs = 25_000 } = deps;
  const boss = new PgBoss(bossOptions(deps));
  // Without a listener an emitted error would end the process; a database that is away is retried by pg-boss itself.
  const logError = createErrorLog(logger);
  boss.on('error', logError);
  boss.on('warning', (warning) => logger.warn({ warning: warning.message }, 'queue warning'));
  const groupWorkers: GroupWorker[] = [];
  let stopped = false;

  return {
    name: 'job queue',
    // May be repeated after it failed: what is started stays so, and a queue that exists is made to what it should be.
    async start(signal) {
      await startBoss(boss);
      for (const { name, options } of queues) {
        signal?.throwIfAborted();
        const { policy: _immutable, ...changeable } = options;
        await boss.createQueue(name, options);
        await boss.updateQueue(name, changeable);
      }
    },
    async stop() {
      if (stopped) return;
      stopped = true;
      const endMs = performance.now() + stopDeadlineMs;
      // pg-boss would end its connections before these have given back what they hold; nobody claims anything meanwhile.
      for (const { name } of queues) await boss.offWork(name, { wait: false });
      await Promise.all(groupWorkers.map((worker) => worker.stop(stopDeadlineMs)));
      await boss.stop({ graceful: true, timeout: Math.max(1_000, endMs - performance.now()) });
    },
    async enqueue(tx, queue, payload, { group, ...options } = {}) {
      await boss.send(queue.name, payload, { ...options, ...groupOf(group), db: fromKysely(tx) });
    },
    async enqueueMany(tx, queue, jobs) {
      const inserts = jobs.map(({ id, payload, priority, group }) => ({
        id,
        data: payload,
        ...groupOf(group),
        ...(priority === undefined ? {} : { priority }),
      }));
      await boss.insert(queue.name, inserts, { db: fromKysely(tx) });
    },
    async work(queue, { concurrency, claimedAtOnce = 1, retryOutages = false, priorities = {} }, handler) {
      const outlasting: typeof handler = async (job) => {
        await outlastOutage(() => handler(job), { logger, isOver: () => stopped || job.signal.aborted });
      };
      // pg-boss keeps the error with the job, where nobody looks.
      const logged =
        (run: typeof handler): typeof handler =>
        async (job) => {
          try {
            await run(job);
          } catch (error) {
            if (!stopped && !job.signal.aborted) {
              const told: object = {
                err: error,
                queue: queue.name,
                job_id: job.id,
                retries: job.retryCount,
                ...job.payload,
              };
              logger.warn(told, 'job failed');
            }
            throw error;
          }
        };
      // Of the queue itself only its cached options are read here; the polling outlasts outages by itself.
      for (let index = 0; index < concurrency; index += 1)
        await startWorker(
          boss,
          queue,
          { ...priorities, batchSize: claimedAtOnce },
          logged(retryOutages ? outlasting : handler),
        );
    },
    workInGroups(queue, limits, handler) {
      const worker = startGroupWorker({ boss, logger, onError: logError }, queue, limits, handler);
      groupWorkers.push(worker);
      return worker;
    },
    async complete(tx, queue, job) {
      const response = await boss.complete(queue.name, job, null, { db: fromKysely(tx) });
      return Affected.parse(response).affected === 1;
    },
    async holds(tx, queue, job) {
      const response = await boss.touch(queue.name, job, { db: fromKysely(tx) });
      return Affected.parse(response).affected === 1;
    },
    async handBack(queue, job, reason) {
      const response = await boss.fail(queue.name, job, { reason });
      return Affected.parse(response).affected === 1;
    },
    async schedule(queue, cron) {
      await boss.schedule(queue.name, cron);
    },
    async depths() {
      return await boss.getQueues(queues.map((queue) => queue.name));
    },
  };
}

const errorLogIntervalMs = 5_000;

/** Every poller of every queue fails while the database is away: one line every few seconds says as much. */
function createErrorLog(logger: Logger): (error: unknown) => void {
  let quietUntil = Number.NEGATIVE_INFINITY;
  let unlogged = 0;
  return (error) => {
    if (performance.now() < quietUntil) {
      unlogged += 1;
      return;
    }
    logger.warn({ err: error, unlogged }, 'queue error');
    quietUntil = performance.now() + errorLogIntervalMs;
    unlogged = 0;
  };
}

function bossOptions(deps: {
  connectionString: string;
  role: 'sender' | 'worker';
  poolSizeMax: number;
}): ConstructorOptions {
  const working = deps.role === 'worker';
  return {
    connectionString: deps.connectionString,
    application_name: `sluice-queue-${deps.role}`,
    max: deps.poolSizeMax,
    supervise: working,
    schedule: working,
    // A dead worker is noticed after its heartbeat (10 s, pg-boss's least) and the next pass that finds it overdue, of which
    // one can just have missed it: two passes. At 5 s that came to 22 s when everything had been killed and the database took ten
    // more to come back; the job table is small enough to be looked at this often.
    superviseIntervalSeconds: 2,
    monitorIntervalSeconds: 2,
    // Once a day would keep a day of ended jobs, and each of the looks above reads them all.
    maintenanceIntervalSeconds: 300,
    useListenNotify: working,
  };
}

const outageRetryMs = 500;

/** A start that failed half-way has begun parts that only a stop ends. */
async function startBoss(boss: PgBoss): Promise<void> {
  try {
    await boss.start();
  } catch (error) {
    await boss.stop({ graceful: false }).catch(() => {});
    throw error;
  }
}

async function outlastOutage(
  work: () => Promise<void>,
  { logger, isOver }: { logger: Logger; isOver: () => boolean },
): Promise<void> {
  for (;;) {
    try {
      return await work();
    } catch (error) {
      if (!isTransient(error) || isOver()) throw error;
      logger.warn({ err: error }, 'queue waits for the database');
      await sleep(outageRetryMs);
    }
  }
}

/**
 * One pg-boss worker. It fetches again at once after its jobs (pg-boss waits for its poll interval when it got as many as
 * it asked for, or fewer), and waits for a NOTIFY or its poll only when the queue was empty.
 */
async function startWorker<Payload extends object>(
  boss: PgBoss,
  queue: QueueDefinition<Payload>,
  claims: Priorities & { batchSize: number },
  handler: (job: ClaimedJob<Payload>) => Promise<void>,
): Promise<void> {
  const workerId = await boss.work(
    queue.name,
    // A job that the monitor takes from a dead worker, or that waited to be tried again, is told by no NOTIFY.
    { ...claims, localConcurrency: 1, pollingIntervalSeconds: 1, notifyPollingIntervalSeconds: 2 },
    async (jobs: Job<Payload>[]) => {
      try {
        await allSettled(
          jobs.map(async ({ id, data, signal, retryCount }) => {
            await handler({ id, payload: queue.payload.parse(data), signal, retryCount });
          }),
        );
      } finally {
        boss.notifyWorker(workerId);
      }
    },
  );
}

/** Rejects with the first error, but only when all of them have ended: no handler outlives its claim. */
async function allSettled(work: readonly Promise<void>[]): Promise<void> {
  const failed = (await Promise.allSettled(work)).find((result) => result.status === 'rejected');
  if (failed) throw failed.reason;
}
