import type { JobFetchOptions, JobWithMetadata, PgBoss } from 'pg-boss';
import { z } from 'zod';
import type { Logger } from '#libs/kernel/logger.ts';
import { sleep } from '#libs/kernel/sleep.ts';
import type { ClaimedJob, QueueDefinition } from './job-queue.ts';

export type GroupWorker = {
  /** There may be jobs: look now instead of at the next poll. */
  wake(): void;
  /** Jobs may wait for room here, also where some that is kept for others stands empty. */
  isCrowded(): boolean;
  /** Claims no more jobs, and waits for those under way; what is left after `timeoutMs` is told that its claim is lost. */
  stop(timeoutMs: number): Promise<void>;
};

type Limits = {
  /** Jobs at once in this process, of all groups; beyond it, first ones of groups that have none. */
  concurrency: number;
  /** Of one group. */
  concurrencyOfGroup: number;
};

/** Room for the first job of a group, in times of `concurrency`: many that hang must not keep out one that does not. */
const firstJobFactor = 4;
/** The `priority` of jobs that come back from waiting. */
export const snoozedPriority = -1;
/** Of the claims while both kinds are there: so many in a othersInARow of the others before one of those that come back. */
const othersInARowMax = 3;

type Running = {
  id: string;
  retryCount: number;
  group: string | null;
  isSnoozed: boolean;
  claim: AbortController;
  done: Promise<void>;
};

// Woken for new jobs, it asks by itself only for those of which nobody tells: lost by a dead worker, or due by now.
const pollMs = 2_000;
/** Half of the queue's heartbeat, as pg-boss has it. */
const heartbeatMs = 5_000;
const retryMs = 1_000;

/** pg-boss returns the ids that it refreshed but leaves them out of its public type. */
const Touched = z.object({ settled: z.array(z.string()).optional() });

/**
 * Works on a queue whose jobs come in groups, many at once: one loop claims jobs, one at a time, and one statement keeps
 * all their claims alive. (pg-boss's own workers are one poller for each job that may run at once, each with its own
 * queries, of which an idle process with room for 32 would send 16 a second; and its bound for groups holds for pollers
 * that were all started together.)
 *
 * The last eighth of the room goes to groups that have no job here yet, and so does as much again as `firstJobFactor` says
 * when all of it is taken: however long many groups take, another one finds room for a first job. Jobs that come back from waiting have half of it at most, and stand behind the others but
 * for every fourth claim: what waits again and again takes little from what could go on, and neither starves the other.
 *
 * The handler ends its claim itself, in the transaction of its work: one statement more for each job would say only what
 * the database knows. One that leaves its claim open has its job given to another when its heartbeat is missed.
 */
export function startGroupWorker<Payload extends object>(
  { boss, logger, onError }: { boss: PgBoss; logger: Logger; onError: (error: unknown) => void },
  queue: QueueDefinition<Payload>,
  { concurrency, concurrencyOfGroup }: Limits,
  handler: (job: ClaimedJob<Payload>) => Promise<void>,
): GroupWorker {
  const reserved = Math.max(0, Math.min(Math.ceil(concurrency / 8), concurrency - concurrencyOfGroup));
  const snoozedMax = Math.ceil(concurrency / 2);
  const stopping = new AbortController();
  const running = new Map<string, Running>();
  let woken = new AbortController();
  let isTouching = false;
  let othersInARow = 0;

  const isFullOfSnoozed = (): boolean =>
    [...running.values()].filter(({ isSnoozed }) => isSnoozed).length >= snoozedMax;
  const isReserveOnly = (): boolean => running.size >= concurrency - reserved;
  const isFull = (): boolean => running.size >= concurrency;
  // Jobs of an older release have no group: nobody can say whether one is a first one.
  const hasSlot = (): boolean =>
    !isFull() ||
    (running.size < firstJobFactor * concurrency && [...running.values()].every(({ group }) => group !== null));

  const claims = (): { id: string; retryCount: number }[] =>
    [...running.values()]
      .filter(({ claim }) => !claim.signal.aborted)
      .map(({ id, retryCount }) => ({ id, retryCount }));

  /** Groups of which no job is claimed now. */
  function ignoredGroups(): string[] {
    const jobs = new Map<string, number>();
    for (const { group } of running.values()) if (group !== null) jobs.set(group, (jobs.get(group) ?? 0) + 1);
    const most = isReserveOnly() ? 1 : concurrencyOfGroup;
    return [...jobs].filter(([, count]) => count >= most).map(([group]) => group);
  }

  async function fetchJob(): Promise<JobWithMetadata<Payload> | undefined> {
    const options = { batchSize: 1, ignoreGroups: ignoredGroups(), includeMetadata: true } as const;
    const fetchOne = async (more: JobFetchOptions): Promise<JobWithMetadata<Payload> | undefined> =>
      (await boss.fetch<Payload>(queue.name, { ...more, ...options }))[0];
    if (isFullOfSnoozed() || isFull()) return await fetchOne({ minPriority: snoozedPriority + 1 });
    if (othersInARow >= othersInARowMax) {
      const job = await fetchOne({ maxPriority: snoozedPriority });
      if (job) return job;
      othersInARow = 0;
    }
    return await fetchOne({});
  }

  async function claimJobs(): Promise<void> {
    while (!stopping.signal.aborted) {
      woken = new AbortController();
      let isEmpty = true;
      try {
        if (hasSlot()) {
          const job = await fetchJob();
          isEmpty = job === undefined;
          if (job) start(job);
        }
      } catch (error) {
        onError(error);
        await sleep(retryMs, stopping.signal);
      }
      if (isEmpty) await sleep(pollMs, AbortSignal.any([stopping.signal, woken.signal]));
    }
  }

  function start(job: JobWithMetadata<Payload>): void {
    const { id, retryCount, groupId = null } = job;
    const claim = new AbortController();
    const isSnoozed = job.priority <= snoozedPriority;
    othersInARow = isSnoozed ? 0 : othersInARow + 1;
    const entry: Running = { id, retryCount, group: groupId, isSnoozed, claim, done: Promise.resolve() };
    // By claim: one that was lost may come back while its handler still winds up.
    running.set(`${id}/${retryCount}`, entry);
    entry.done = run(job, claim.signal).finally(() => {
      running.delete(`${id}/${retryCount}`);
      woken.abort();
    });
  }

  async function run({ id, data, retryCount }: JobWithMetadata<Payload>, signal: AbortSignal): Promise<void> {
    try {
      try {
        await handler({ id, payload: queue.payload.parse(data), signal, retryCount });
      } catch (error) {
        await boss.fail(queue.name, { id, retryCount }, error as object);
      }
    } catch (error) {
      // Nobody keeps the claim alive any more: the monitor gives the job to another.
      onError(error);
    }
  }

  async function keepClaims(): Promise<void> {
    const held = claims();
    if (isTouching || held.length === 0) return;
    isTouching = true;
    try {
      const { settled } = Touched.parse(await boss.touch(queue.name, held));
      if (settled === undefined) return;
      const kept = new Set(settled);
      for (const { id, retryCount } of held) {
        if (kept.has(id)) continue;
        // Given to another worker; or settled by its own handler, for which this comes too late to matter.
        running.get(`${id}/${retryCount}`)?.claim.abort(new Error(`the claim of job ${id} was lost`));
      }
    } catch (error) {
      // A sign of life that could not be given says nothing about the claims.
      onError(error);
    } finally {
      isTouching = false;
    }
  }

  const heartbeat = setInterval(() => void keepClaims(), heartbeatMs);
  const claiming = claimJobs();

  return {
    wake: () => woken.abort(),
    isCrowded: () => isReserveOnly() || isFullOfSnoozed(),
    async stop(timeoutMs) {
      stopping.abort();
      await claiming;
      const ended = new AbortController();
      const all = Promise.all([...running.values()].map(({ done }) => done)).finally(() => ended.abort());
      await Promise.race([all, sleep(timeoutMs, ended.signal)]);
      clearInterval(heartbeat);
      if (running.size === 0) return;
      logger.warn({ queue: queue.name, jobs: running.size }, 'jobs did not end in time and are given back');
      const left = claims();
      for (const { claim } of running.values()) claim.abort(new Error('the process stops'));
      if (left.length > 0) await boss.fail(queue.name, left, { reason: 'the worker stopped' }).catch(onError);
    },
  };
}
