import { randomUUID } from 'node:crypto';
import { fromKysely, PgBoss, type ConstructorOptions } from 'pg-boss';
import type { Kysely } from 'kysely';
import { z } from 'zod';
import { getSqlState } from '#libs/database/database-error.ts';
import type { Database } from '#libs/database/schema.ts';
import { asSystem } from '#libs/database/workspace-binding.ts';
import type { Part } from '#libs/kernel/lifecycle.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import type { OnJobEnded } from './ended-job.ts';
import type { ClaimedJob, QueueDefinition } from './queue-definition.ts';
import { startWorkers, type WorkOptions } from './start-workers.ts';

/** Enough to create a queue, or to complete its jobs, where the payload does not matter. */
export type AnyQueue = Pick<QueueDefinition<object>, 'name' | 'options'>;

/** `singletonSeconds`: does nothing if a job with the same key was enqueued in the current interval of this length. */
type EnqueueOptions = { startAfter?: Date; singletonSeconds?: number; priority?: number };

export type QueueDepth = {
  name: string;
  /** As counted by the last monitor pass of a worker. */
  readyCount: number;
  activeCount: number;
  deferredCount: number;
  /** How long the oldest job that could start has waited; null if none is waiting. */
  oldestReadySeconds: number | null;
};

// Jobs belong to no workspace, but requests can only access rows of a workspace (libs/database/workspace-database.ts), so
// that jobs are enqueued as the system.

export type JobQueue = Part & {
  /** Enqueues inside the caller's transaction: the job exists if and only if the transaction commits. */
  enqueue<Payload extends object>(
    tx: Kysely<Database>,
    queue: QueueDefinition<Payload>,
    payload: Payload,
    options?: EnqueueOptions,
  ): Promise<void>;
  /**
   * Enqueues a job for each payload in one statement. Returns the payloads of those that were enqueued, because no job
   * with their key existed. Pass them in the order of their keys, so that concurrent transactions do not deadlock.
   */
  enqueueMany<Payload extends object>(
    tx: Kysely<Database>,
    queue: QueueDefinition<Payload>,
    payloads: readonly Payload[],
  ): Promise<Payload[]>;
  /**
   * Runs a handler for each job, `concurrency` in parallel in this process. A job whose handler throws is retried.
   * `claimedAtOnce` (default 1): each worker claims this many jobs, runs them in parallel and completes them together.
   * If one handler throws, all of them are retried, so this is for short jobs that can be repeated. `retryOutages`: a
   * handler that fails because the database is unavailable runs again under the same claim until the database answers,
   * so that the job is not lost with its heartbeat. Every step of such a handler must be repeatable. `priorities`: only
   * jobs in this range are claimed.
   */
  work<Payload extends object>(
    queue: QueueDefinition<Payload>,
    options: WorkOptions,
    handler: (job: ClaimedJob<Payload>) => Promise<void>,
  ): Promise<void>;
  /** Completes a job inside the caller's transaction. false when its claim was lost. */
  complete(tx: Kysely<Database>, queue: AnyQueue, job: { id: string; retryCount: number }): Promise<boolean>;
  /** Sends a heartbeat inside the caller's transaction. false when the claim was lost. */
  holds(tx: Kysely<Database>, queue: AnyQueue, job: { id: string; retryCount: number }): Promise<boolean>;
  depths(): Promise<QueueDepth[]>;
};

// pg-boss returns the count, but its public type does not include it.
const Affected = z.object({ affected: z.number() });
const isDone = (response: object): boolean => Affected.parse(response).affected === 1;

/**
 * pg-boss behind the few calls that Sluice needs. With `role: 'worker'` it works on jobs and detects lost ones; with
 * `role: 'sender'` (the API) it only enqueues.
 */
export function createJobQueue(deps: {
  connectionString: string;
  role: 'sender' | 'worker';
  queues: readonly AnyQueue[];
  logger: Logger;
  poolSizeMax: number;
  /** How long `stop` waits for running handlers. Jobs still running after that fail and are retried. Default 25 s. */
  stopDeadlineMs?: number;
  /** Called for each claim that has ended in this process. */
  onJobEnded?: OnJobEnded | undefined;
}): JobQueue {
  const { logger, queues, stopDeadlineMs = 25_000, onJobEnded } = deps;
  const boss = new PgBoss(bossOptions(deps));
  // Without a listener, an emitted error would end the process. pg-boss itself retries while the database is unavailable.
  const logError = createErrorLog(logger);
  boss.on('error', logError);
  boss.on('warning', (warning) => logger.warn({ warning: warning.message }, 'queue warning'));
  const stopping = new AbortController();

  return {
    name: 'job queue',
    // Can be repeated after a failure. Queues that already exist get the current options.
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
      if (stopping.signal.aborted) return;
      stopping.abort();
      const endMs = performance.now() + stopDeadlineMs;
      for (const { name } of queues) await boss.offWork(name, { wait: false });
      await boss.stop({ graceful: true, timeout: Math.max(1_000, endMs - performance.now()) });
    },
    async enqueue(tx, queue, payload, options = {}) {
      await asSystem(() =>
        boss.send(queue.name, payload, { ...options, ...keyOf(queue, payload), db: fromKysely(tx) }),
      );
    },
    async enqueueMany(tx, queue, payloads) {
      const jobs = payloads.map((data) => ({ id: randomUUID(), data, ...keyOf(queue, data) }));
      const inserted = await asSystem(() => boss.insert(queue.name, jobs, { db: fromKysely(tx), returnId: true }));
      const ids = new Set(inserted);
      return jobs.filter(({ id }) => ids.has(id)).map(({ data }) => data);
    },
    work: (queue, options, handler) =>
      startWorkers({ boss, logger, stopping: stopping.signal, onJobEnded }, queue, options, handler),
    complete: async (tx, queue, job) => isDone(await boss.complete(queue.name, job, null, { db: fromKysely(tx) })),
    holds: async (tx, queue, job) => isDone(await boss.touch(queue.name, job, { db: fromKysely(tx) })),
    depths: async () =>
      await Promise.all(
        (await boss.getQueues(queues.map((queue) => queue.name))).map(async (queue) => ({
          ...queue,
          oldestReadySeconds: await readOldestReady(boss, queue.name),
        })),
      ),
  };
}

const keyOf = <Payload extends object>(
  { key }: QueueDefinition<Payload>,
  payload: Payload,
): { singletonKey?: string } => (key === undefined ? {} : { singletonKey: key(payload) });

/** Jobs that wait for their time come before younger ones that are ready. All of them are due soon, or few. */
const oldestMax = 100;

/**
 * How many seconds the oldest job that could start has waited. Read from the jobs, because workers might be missing,
 * and the counts of pg-boss are those of the last monitor pass of a worker.
 */
async function readOldestReady(boss: PgBoss, name: string): Promise<number | null> {
  const oldest = await boss.findJobs(name, { queued: true, limit: oldestMax });
  const waits = oldest.map(({ startAfter }) => (Date.now() - startAfter.getTime()) / 1_000).filter((wait) => wait >= 0);
  return waits.length === 0 ? null : Math.max(...waits);
}

const errorLogIntervalMs = 5_000;

/** While the database is unavailable every poller of every queue fails, so only one error in five seconds is logged. */
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
    schedule: false,
    // A dead worker is noticed when its heartbeat (10 s, the minimum of pg-boss) is overdue, which takes up to two
    // passes. With passes 5 s apart this took 22 s after everything had been killed and the database needed 10 s to
    // come back. The job table is small enough to be checked every 2 s.
    superviseIntervalSeconds: 2,
    monitorIntervalSeconds: 2,
    // With the default of once a day, a day of ended jobs would stay in the table, and each pass above reads all of
    // them.
    maintenanceIntervalSeconds: 300,
    useListenNotify: working,
    // Sluice does not use pg-boss's list of processes. For it, each process would measure its event loop 50 times a second.
    registerInstance: false,
  };
}

/** If the start fails half-way, the parts that already run have to be stopped. */
async function startBoss(boss: PgBoss, { isRepeated = false } = {}): Promise<void> {
  try {
    await boss.start();
  } catch (error) {
    await boss.stop({ graceful: false }).catch(() => {});
    // Another process has just created the schema, which a session that a pooler keeps can notice too late.
    if (isRepeated || getSqlState(error) !== '23505') throw error;
    await startBoss(boss, { isRepeated: true });
  }
}
