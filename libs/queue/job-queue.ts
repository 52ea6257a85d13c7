import { fromKysely, PgBoss, type ConstructorOptions, type Job, type QueueOptions, type QueueResult } from 'pg-boss';
import type { Kysely } from 'kysely';
import { z } from 'zod';
import { isTransient } from '#libs/database/database-error.ts';
import type { Database } from '#libs/database/schema.ts';
import type { Part } from '#libs/kernel/lifecycle.ts';
import type { Logger } from '#libs/kernel/logger.ts';
import { sleep } from '#libs/kernel/sleep.ts';

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

type EnqueueOptions = { id?: string; startAfter?: Date; singletonKey?: string; priority?: number };

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
    jobs: readonly { id: string; payload: Payload; priority?: number }[],
  ): Promise<void>;
  /**
   * Runs a handler for each job, `concurrency` at a time in this process. A handler that throws is run again.
   * `outlastOutages`: one that fails because the database is away is begun anew under the same claim until it answers,
   * and not after the claim's heartbeat was missed; for handlers whose every step may be repeated.
   */
  work<Payload extends object>(
    queue: QueueDefinition<Payload>,
    options: { concurrency: number; outlastOutages?: boolean },
    handler: (job: ClaimedJob<Payload>) => Promise<void>,
  ): Promise<void>;
  /** Completes a job inside the caller's transaction; false when the claim was lost meanwhile. */
  complete(tx: Kysely<Database>, queue: QueueName, job: { id: string; retryCount: number }): Promise<boolean>;
  /** Whether the claim is still ours, and a sign of life for it, inside the caller's transaction. */
  holds(tx: Kysely<Database>, queue: QueueName, job: { id: string; retryCount: number }): Promise<boolean>;
  /** Gives a job back for immediate redelivery (a worker that stops); false when the claim was lost. */
  giveBack(queue: QueueName, job: { id: string; retryCount: number }, reason: string): Promise<boolean>;
  schedule(queue: QueueName, cron: string): Promise<void>;
  depths(): Promise<Pick<QueueResult, 'name' | 'readyCount' | 'activeCount' | 'deferredCount'>[]>;
};

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
}): JobQueue {
  const { logger, queues } = deps;
  const boss = new PgBoss(bossOptions(deps));
  // Without a listener an emitted error would end the process; a database that is away is retried by pg-boss itself.
  boss.on('error', createErrorLog(logger));
  boss.on('warning', (warning) => logger.warn({ warning: warning.message }, 'queue warning'));
  let stopped = false;
  const starting = { logger, isOver: () => stopped };

  return {
    name: 'job queue',
    async start() {
      // A database that goes away between the steps of a start is waited for, as in the middle of work: a process that
      // ended here would be missed for as long as its supervisor takes.
      await outlastOutage(() => startBoss(boss), starting);
      for (const { name, options } of queues) {
        const { policy: _immutable, ...changeable } = options;
        await outlastOutage(() => boss.createQueue(name, options), starting);
        await outlastOutage(() => boss.updateQueue(name, changeable), starting);
      }
    },
    async stop() {
      if (stopped) return;
      stopped = true;
      await boss.stop({ graceful: true, timeout: 25_000 });
    },
    async enqueue(tx, queue, payload, options = {}) {
      await boss.send(queue.name, payload, { ...options, db: fromKysely(tx) });
    },
    async enqueueMany(tx, queue, jobs) {
      const inserts = jobs.map(({ id, payload, priority }) => ({
        id,
        data: payload,
        ...(priority === undefined ? {} : { priority }),
      }));
      await boss.insert(queue.name, inserts, { db: fromKysely(tx) });
    },
    async work(queue, { concurrency, outlastOutages = false }, handler) {
      const outlasting: typeof handler = async (job) => {
        await outlastOutage(() => handler(job), { logger, isOver: () => stopped || job.signal.aborted });
      };
      // Of the queue itself only its cached options are read here; the polling outlasts outages by itself.
      for (let index = 0; index < concurrency; index += 1)
        await startWorker(boss, queue, outlastOutages ? outlasting : handler);
    },
    async complete(tx, queue, job) {
      const response = await boss.complete(queue.name, job, null, { db: fromKysely(tx) });
      return Affected.parse(response).affected === 1;
    },
    async holds(tx, queue, job) {
      const response = await boss.touch(queue.name, job, { db: fromKysely(tx) });
      return Affected.parse(response).affected === 1;
    },
    async giveBack(queue, job, reason) {
      const response = await boss.fail(queue.name, job, { reason });
      return Affected.parse(response).affected === 1;
    },
    async schedule(queue, cron) {
      await outlastOutage(() => boss.schedule(queue.name, cron), starting);
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
    // one can just have missed it: two passes. DESIGN says 5 s, which came to 22 s when everything had been killed and the
    // database took ten more to come back; the job table is small enough to be looked at this often.
    superviseIntervalSeconds: 2,
    monitorIntervalSeconds: 2,
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
 * One pg-boss worker. It fetches again at once after a job (pg-boss waits for its poll interval when the batch size
 * is 1), and waits for a NOTIFY or its poll only when the queue was empty.
 */
async function startWorker<Payload extends object>(
  boss: PgBoss,
  queue: QueueDefinition<Payload>,
  handler: (job: ClaimedJob<Payload>) => Promise<void>,
): Promise<void> {
  const workerId = await boss.work(
    queue.name,
    // A job that the monitor takes from a dead worker, or that waited to be tried again, is told by no NOTIFY.
    { batchSize: 1, localConcurrency: 1, pollingIntervalSeconds: 1, notifyPollingIntervalSeconds: 2 },
    async (jobs: Job<Payload>[]) => {
      for (const job of jobs) {
        try {
          await handler({
            id: job.id,
            payload: queue.payload.parse(job.data),
            signal: job.signal,
            retryCount: job.retryCount,
          });
        } finally {
          boss.notifyWorker(workerId);
        }
      }
    },
  );
}
