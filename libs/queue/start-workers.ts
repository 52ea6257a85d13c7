import type { Job, JobWithMetadata, PgBoss } from 'pg-boss';
import { retryDuringOutage } from '#libs/database/retry-during-outage.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import { runAndReport, type OnJobEnded } from './ended-job.ts';
import type { ClaimedJob, QueueDefinition } from './queue-definition.ts';

/** Both ends are included. */
type Priorities = { minPriority?: number; maxPriority?: number };

/** The options of `work` in job-queue.ts. */
export type WorkOptions = {
  concurrency: number;
  claimedAtOnce?: number;
  retryOutages?: boolean;
  priorities?: Priorities;
};

type Deps = { boss: PgBoss; logger: Logger; stopping: AbortSignal; onJobEnded: OnJobEnded | undefined };

const outageRetryMs = 500;

/** Starts pg-boss workers for a queue. Failed jobs are logged, unless the process stops. */
export async function startWorkers<Payload extends object>(
  { boss, logger, stopping, onJobEnded }: Deps,
  queue: QueueDefinition<Payload>,
  { concurrency, claimedAtOnce = 1, retryOutages = false, priorities = {} }: WorkOptions,
  handler: (job: ClaimedJob<Payload>) => Promise<void>,
): Promise<void> {
  const retrying: typeof handler = async (job) => {
    await retryDuringOutage(() => handler(job), {
      delayMs: outageRetryMs,
      signal: AbortSignal.any([stopping, job.signal]),
      onRetry: (error) => logger.warn({ err: error }, 'job is waiting for the database'),
    });
  };
  const run = retryOutages ? retrying : handler;
  // pg-boss stores the error with the job but does not log it.
  const logged: typeof handler = async (job) => {
    try {
      await run(job);
    } catch (error) {
      if (!stopping.aborted && !job.signal.aborted) {
        const { id: job_id, retryCount: retries, payload } = job;
        const fields: object = { err: error, queue: queue.name, job_id, retries, ...payload };
        logger.warn(fields, 'job failed');
      }
      throw error;
    }
  };
  // This only reads the cached options of the queue. pg-boss's polling itself survives outages.
  for (let index = 0; index < concurrency; index += 1)
    await startWorker(boss, queue, { ...priorities, batchSize: claimedAtOnce }, logged, onJobEnded);
}

/**
 * One pg-boss worker. After its jobs it fetches again immediately, where pg-boss would wait for the next poll. It waits for
 * a NOTIFY or its poll only when the queue was empty.
 */
async function startWorker<Payload extends object>(
  boss: PgBoss,
  queue: QueueDefinition<Payload>,
  claims: Priorities & { batchSize: number },
  handler: (job: ClaimedJob<Payload>) => Promise<void>,
  onJobEnded: OnJobEnded | undefined,
): Promise<void> {
  const workerId = await boss.work(
    queue.name,
    // No NOTIFY is sent for a job that the monitor takes from a dead worker, or that becomes due for a retry.
    {
      ...claims,
      localConcurrency: 1,
      pollingIntervalSeconds: 1,
      notifyPollingIntervalSeconds: 2,
      includeMetadata: onJobEnded !== undefined,
    },
    async (jobs: Job<Payload>[]) => {
      try {
        await allSettled(
          jobs.map(async (fetched) => {
            const { id, data, signal, retryCount } = fetched;
            const job = { id, payload: queue.payload.parse(data), signal, retryCount };
            if (onJobEnded === undefined) await handler(job);
            else {
              const { startAfter, startedOn } = fetched as JobWithMetadata<Payload>;
              const waitedMs = Math.max(0, startedOn.getTime() - startAfter.getTime());
              const facts = { queue: queue.name, id, retryCount, payload: job.payload, waitedMs };
              await runAndReport(onJobEnded, facts, (note) => handler({ ...job, note }));
            }
          }),
        );
      } finally {
        boss.notifyWorker(workerId);
      }
    },
  );
}

/** Rejects with the first error, but only once all have ended, so that no handler outlives its claim. */
async function allSettled(work: readonly Promise<void>[]): Promise<void> {
  const failed = (await Promise.allSettled(work)).find((result) => result.status === 'rejected');
  if (failed) throw failed.reason;
}
