import type { JobFetchOptions, JobWithMetadata, PgBoss } from 'pg-boss';
import { z } from 'zod';
import { createBackgroundLoop, type BackgroundLoop } from '#libs/kernel/background-loop.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import { untilAborted } from '#libs/kernel/until-aborted.ts';
import { runAndReport, type OnJobEnded } from './ended-job.ts';
import type { ClaimedJob, QueueDefinition } from './queue-definition.ts';

export type GroupWorker = {
  /** Call this when jobs may have been added. The worker looks for them now instead of at the next poll. */
  wake(): void;
  /** True when jobs could be waiting for a slot here, even if reserved slots are still free. */
  isCrowded(): boolean;
  /** Claims no more jobs and waits for the running ones. After `timeoutMs`, the signals of those still running abort. */
  stop(timeoutMs: number): Promise<void>;
};

type Deps = {
  boss: PgBoss;
  logger: Logger;
  onError: (error: unknown) => void;
  /** Called for each claim that has ended here. */
  onJobEnded?: OnJobEnded | undefined;
};

type Limits = {
  /** Slots of this process for the jobs of all groups. First jobs of groups without a job can exceed it. */
  concurrency: number;
  /** How many of these jobs can belong to one group. */
  concurrencyOfGroup: number;
};

/**
 * Below this many times `concurrency`, a group can still start its first job: groups that hang must not block the
 * others.
 */
const firstJobFactor = 4;
/** Jobs can continue without a slot up to this many times the slots of all groups, and of one group. */
const tailFactor = { ofAll: 4, ofGroup: 8 };
/** The `priority` of snoozed jobs. */
export const snoozedPriority = -1;
/** The `priority` of jobs that get a slot even when the others have filled all that they can get. */
export const reservedPriority = 1;
/** Below this many times `concurrency`, reserved jobs can still start. */
const reservedFactor = 8;
/** While both kinds are due, one snoozed job is claimed after this many others. */
const othersInARowMax = 3;

type Running = {
  id: string;
  retryCount: number;
  group: string | null;
  isSnoozed: boolean;
  /** It has released its slot to others. */
  isTail: boolean;
  claim: AbortController;
  done: Promise<void>;
};

/** The running jobs of this process, and how many more it can take. */
class Slots {
  readonly running = new Map<string, Running>();
  readonly #limits: Limits;
  readonly #reserved: number;

  constructor(limits: Limits) {
    const { concurrency, concurrencyOfGroup } = limits;
    this.#limits = limits;
    this.#reserved = Math.max(0, Math.min(Math.ceil(concurrency / 8), concurrency - concurrencyOfGroup));
  }

  used(): number {
    return this.#count(({ isTail }) => !isTail);
  }

  isReserveOnly(): boolean {
    return this.used() >= this.#limits.concurrency - this.#reserved;
  }

  isFullOfSnoozed(): boolean {
    const snoozed = this.#count(({ isSnoozed, isTail }) => isSnoozed && !isTail);
    return snoozed >= Math.ceil(this.#limits.concurrency / 2);
  }

  /** Whether one more job of the group can continue without a slot. */
  hasRoomForTail(group: string | null): boolean {
    if (group === null) return false;
    const ofGroup = this.#count((entry) => entry.isTail && entry.group === group);
    if (ofGroup >= tailFactor.ofGroup * this.#limits.concurrencyOfGroup) return false;
    return this.#count(({ isTail }) => isTail) < tailFactor.ofAll * this.#limits.concurrency;
  }

  /** Groups that cannot claim another job now. */
  ignoredGroups(): string[] {
    const jobs = new Map<string, number>();
    for (const { group, isTail } of this.running.values()) {
      if (group !== null && !isTail) jobs.set(group, (jobs.get(group) ?? 0) + 1);
    }
    const most = this.isReserveOnly() ? 1 : this.#limits.concurrencyOfGroup;
    return [...jobs].filter(([, count]) => count >= most).map(([group]) => group);
  }

  claims(): { id: string; retryCount: number }[] {
    return [...this.running.values()]
      .filter(({ claim }) => !claim.signal.aborted)
      .map(({ id, retryCount }) => ({ id, retryCount }));
  }

  #count(what: (entry: Running) => boolean): number {
    let found = 0;
    for (const entry of this.running.values()) if (what(entry)) found += 1;
    return found;
  }
}

// New jobs wake the worker. Polling finds the rest: jobs lost by a dead worker, and jobs that have become due.
const pollMs = 2_000;
/** Half of the queue's heartbeat timeout, as in pg-boss itself. */
const heartbeatMs = 5_000;

/**
 * The heartbeats of claims (queue, IDs, retry counts). Returns those that were lost. `touch` of pg-boss waits for rows
 * that a handler's transaction has locked while it holds others, so that it could deadlock with a transaction that
 * completes several jobs. A locked row needs no heartbeat: its transaction decides, and the next heartbeat sees the
 * result.
 */
const touchStatement = `
  with free as (
    select id, retry_count from pgboss.job
    where name = $1 and id = any($2::uuid[]) and state = 'active' for update skip locked
  ), claim as (
    select * from unnest($2::uuid[], $3::int[]) as claim (id, retry_count)
  ), touched as (
    update pgboss.job set heartbeat_on = pgboss.job_now() from free join claim using (id, retry_count)
    where job.name = $1 and job.id = free.id
  )
  select claim.id, claim.retry_count from claim left join pgboss.job
    on job.name = $1 and job.id = claim.id and job.retry_count = claim.retry_count and job.state = 'active'
  where job.id is null`;
const LostClaims = z.array(z.object({ id: z.string(), retry_count: z.int() }));

/**
 * Works on a queue whose jobs belong to groups. One loop claims the jobs, one after the other, and one statement sends
 * the heartbeats of all claims. (pg-boss's own workers would need one poller for each slot. An idle process with 32
 * slots would send 16 queries a second, and pg-boss limits a group only across pollers that were started together.)
 *
 * The last eighth of the slots is reserved for groups that have no job here yet. When all slots are taken, such groups
 * can still start a first job, up to `firstJobFactor` times the slots. A group can therefore always start, however long
 * others take. Snoozed jobs get at most half of the slots, and only every fourth claim while other jobs are due, so
 * that jobs that keep waiting cost the others little and neither kind starves the other.
 *
 * Reserved jobs come before all others, and can start beyond those limits. The code that enqueues jobs marks a few of
 * each tenant as reserved, so that the jobs of one tenant cannot stop those of another, however long they take.
 *
 * A job of which only little is left releases its slot (`freeSlot`) and continues: one that waits for its last retry
 * must not delay its group.
 *
 * The handler completes its job itself, in the transaction of its work, which saves one statement per job. If it does
 * not, the job is redelivered when its heartbeat is missed.
 */
export function startGroupWorker<Payload extends object>(
  { boss, logger, onError, onJobEnded }: Deps,
  queue: QueueDefinition<Payload>,
  { concurrency, concurrencyOfGroup }: Limits,
  handler: (job: ClaimedJob<Payload>) => Promise<void>,
): GroupWorker {
  const slots = new Slots({ concurrency, concurrencyOfGroup });
  const { running } = slots;
  let othersInARow = 0;

  async function fetchJob(): Promise<JobWithMetadata<Payload> | undefined> {
    const options = { batchSize: 1, ignoreGroups: slots.ignoredGroups(), includeMetadata: true } as const;
    const fetchOne = async (more: JobFetchOptions): Promise<JobWithMetadata<Payload> | undefined> =>
      (await boss.fetch<Payload>(queue.name, { ...more, ...options }))[0];
    if (slots.used() >= firstJobFactor * concurrency) {
      if (slots.used() >= reservedFactor * concurrency) return undefined;
      return await fetchOne({ minPriority: reservedPriority });
    }
    if (slots.isFullOfSnoozed() || slots.used() >= concurrency)
      return await fetchOne({ minPriority: snoozedPriority + 1 });
    if (othersInARow >= othersInARowMax) {
      const job = await fetchOne({ maxPriority: snoozedPriority });
      if (job) return job;
      othersInARow = 0;
    }
    return await fetchOne({});
  }

  async function claimJobs(signal: AbortSignal): Promise<void> {
    while (!signal.aborted) {
      const job = await fetchJob();
      if (job === undefined) return;
      start(job);
    }
  }

  function start(job: JobWithMetadata<Payload>): void {
    const { id, retryCount, groupId = null } = job;
    const claim = new AbortController();
    const isSnoozed = job.priority <= snoozedPriority;
    othersInARow = isSnoozed ? 0 : othersInARow + 1;
    const entry: Running = { id, retryCount, group: groupId, isSnoozed, isTail: false, claim, done: Promise.resolve() };
    const freeSlot = (): boolean => {
      if (entry.isTail || !slots.hasRoomForTail(groupId)) return false;
      entry.isTail = true;
      void claiming.wake();
      return true;
    };
    // Keyed by claim: a lost job can be claimed here again while its first handler is still finishing.
    running.set(`${id}/${retryCount}`, entry);
    entry.done = run(job, claim.signal, freeSlot).finally(() => {
      running.delete(`${id}/${retryCount}`);
      void claiming.wake();
    });
  }

  async function run(fetched: JobWithMetadata<Payload>, signal: AbortSignal, freeSlot: () => boolean): Promise<void> {
    const { id, data, retryCount } = fetched;
    try {
      try {
        const job = { id, payload: queue.payload.parse(data), signal, retryCount, freeSlot };
        if (onJobEnded === undefined) await handler(job);
        else await runAndReport(onJobEnded, queue.name, fetched, job, handler);
      } catch (error) {
        await boss.fail(queue.name, { id, retryCount }, error as object);
      }
    } catch (error) {
      // The heartbeats of this claim stop here, so the job will be redelivered.
      onError(error);
    }
  }

  const claiming = createBackgroundLoop({ name: `claims of ${queue.name}`, periodMs: pollMs, run: claimJobs, logger });
  const heartbeat = createHeartbeat(boss, queue.name, slots, logger);
  claiming.start();
  heartbeat.start();

  return {
    wake: () => void claiming.wake(),
    isCrowded: () => slots.isReserveOnly() || slots.isFullOfSnoozed(),
    async stop(timeoutMs) {
      await claiming.stop();
      const all = Promise.all([...running.values()].map(({ done }) => done));
      await untilAborted(all, AbortSignal.timeout(timeoutMs), () => {});
      void heartbeat.stop();
      if (running.size === 0) return;
      logger.warn({ queue: queue.name, jobs: running.size }, 'jobs did not finish in time and were handed back');
      const left = slots.claims();
      for (const { claim } of running.values()) claim.abort(new Error('the process stops'));
      if (left.length > 0) await boss.fail(queue.name, left, { reason: 'the worker stopped' }).catch(onError);
    },
  };
}

/** Sends the heartbeats of all claims. A failed heartbeat does not mean that the claims are lost. */
function createHeartbeat(boss: PgBoss, queue: string, slots: Slots, logger: Logger): BackgroundLoop {
  async function keepClaims(): Promise<'idle' | undefined> {
    const held = slots.claims();
    if (held.length === 0) return 'idle';
    const parameters = [queue, held.map(({ id }) => id), held.map(({ retryCount }) => retryCount)];
    const { rows } = await boss.getDb().executeSql(touchStatement, parameters);
    for (const { id, retry_count: retryCount } of LostClaims.parse(rows)) {
      // Another worker has the job now. Or its own handler completed it, and then the signal has no effect.
      slots.running.get(`${id}/${retryCount}`)?.claim.abort(new Error(`the claim of job ${id} was lost`));
    }
    return undefined;
  }

  return createBackgroundLoop({ name: `heartbeats of ${queue}`, periodMs: heartbeatMs, run: keepClaims, logger });
}
