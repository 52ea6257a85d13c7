import { sql, type Kysely, type Transaction } from 'kysely';
import { v5 as uuidv5 } from 'uuid';
import type { Database } from '#libs/database/schema.ts';
import { createBackgroundLoop, type BackgroundLoop } from '#libs/kernel/background-loop.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import { sleep } from '#libs/kernel/sleep.ts';
import { reservedPriority, snoozedPriority } from '#libs/queue/group-worker.ts';
import type { JobQueue } from '#libs/queue/job-queue.ts';
import type { BatchRow } from '../batch-model.ts';
import { chunkQueue } from './batch-queues.ts';

// A fixed namespace: the same chunk and generation give the same job id, so enqueueing it again inserts nothing.
const jobNamespace = '0f0a2f6e-6b0c-5f5a-9a51-51a9c1a3c7d2';

/** The pg-boss job id of one generation of a chunk. */
export function chunkJobId(batchId: string, chunk: number, generation: number): string {
  return uuidv5(`${batchId}/${chunk}/${generation}`, jobNamespace);
}

// Immediate batches are sorted before all others by making them this much older.
const immediateMs = 100 * 365 * 86_400_000;

/** The order in which batches get their chunks enqueued: immediate batches first, and older ones before younger ones. */
export function dispatchOrder(batch: Pick<BatchRow, 'completion_window' | 'created_at'>): Date {
  return new Date(batch.created_at.getTime() - (batch.completion_window === 'immediate' ? immediateMs : 0));
}

/** A pass costs about the same for one batch as for many, so batches validated within this time share one. */
const passEveryMs = 40;

/** How many jobs to keep in the queue: of one batch, and of all batches. Snoozed jobs do not count towards `ofAll`. */
type ReadyJobs = { ofBatch: number; ofAll: number };

/**
 * Keeps the queue short but never empty: enqueues pending chunks until `readyJobs` are waiting in pg-boss. The limit per
 * batch keeps one batch from filling the queue. Every worker runs a dispatcher. There is no leader, because rows are locked
 * with SKIP LOCKED. Chunks that are still pending can be cancelled, or overtaken by more urgent ones, at no cost.
 */
export function createDispatcher(deps: {
  db: Kysely<Database>;
  queue: JobQueue;
  logger: Logger;
  readyJobs: ReadyJobs;
  intervalMs: number;
  /** Called when jobs are waiting in the queue, whichever worker enqueued them. */
  onReady: () => void;
}): BackgroundLoop {
  const { db, queue, logger, readyJobs, intervalMs } = deps;

  async function run(signal: AbortSignal): Promise<void> {
    const soonestMs = performance.now() + passEveryMs;
    if ((await enqueueChunks(db, queue, readyJobs)) > 0) deps.onReady();
    await sleep(Math.max(0, soonestMs - performance.now()), signal);
  }

  return createBackgroundLoop({ name: 'chunk dispatcher', periodMs: intervalMs, run, logger });
}

type PendingChunk = { batch_id: string; chunk: number; generation: number };

/**
 * Below this many times `ofAll`, a batch can still enqueue its first job: batches that hang must not block the others.
 */
const firstJobFactor = 4;
/** Batches served in one pass. The next pass follows soon. */
const batchesPerPassMax = 64;

/**
 * Enqueues as many pending chunks as `readyJobs` allows. Returns how many jobs can be claimed now. Immediate batches
 * come before those that can wait up to a day, and older ones before younger ones.
 *
 * @testOnly
 */
export async function enqueueChunks(db: Kysely<Database>, queue: JobQueue, readyJobs: ReadyJobs): Promise<number> {
  return await db.transaction().execute(async (tx) => {
    const live = await readLiveJobs(tx);
    const queued = live.filter((row) => row.jobs > 0);
    const reserved = await reserveJobs(tx, live);
    await enqueueTaken(tx, queue, reserved, reservedPriority);
    const ready = reserved.length + queued.reduce((sum, row) => sum + row.ready, 0);
    // Snoozed jobs do not count: a few rate-limited batches could always have `ofAll` of them, and no other batch would
    // ever get a job.
    const free = readyJobs.ofAll - queued.reduce((sum, row) => sum + row.unsnoozed, 0);
    // When the queue is full, batches that have no job in it can still get their first one.
    const [ofBatch, countMax] = free > 0 ? [readyJobs.ofBatch, free] : [1, free + firstJobFactor * readyJobs.ofAll];
    if (countMax <= 0) return ready;
    // Snoozed jobs do count towards the batch's own limit: usually the batch's other lines would wait for the same thing.
    const counted = [...queued, ...reserved.map(({ batch_id }) => ({ batch_id, jobs: 1 }))];
    const full = counted.filter((row) => row.jobs >= ofBatch).map((row) => row.batch_id);
    const chunks = await takePendingChunks(tx, { queued: counted, full, ofBatch, countMax });
    await enqueueTaken(tx, queue, chunks, 0);
    return ready + chunks.length;
  });
}

async function enqueueTaken(
  tx: Transaction<Database>,
  queue: JobQueue,
  chunks: readonly PendingChunk[],
  priority: number,
): Promise<void> {
  if (chunks.length === 0) return;
  await sql`
    update batch_chunk as target set state = 'enqueued'
    from unnest(${chunks.map((row) => row.batch_id)}::text[], ${chunks.map((row) => row.chunk)}::int[]) as taken (batch_id, chunk)
    where target.batch_id = taken.batch_id and target.chunk = taken.chunk`.execute(tx);
  await queue.enqueueMany(
    tx,
    chunkQueue,
    chunks.map((payload) => ({
      id: chunkJobId(payload.batch_id, payload.chunk, payload.generation),
      payload,
      priority,
      group: payload.batch_id,
    })),
  );
}

type QueuedJobs = { batch_id: string; jobs: number };

/** The jobs of one batch: `jobs` wait to be claimed, `late` of them for more than a second without being reserved. */
type LiveJobs = QueuedJobs & {
  workspace_id: string;
  ready: number;
  unsnoozed: number;
  late: number;
  active: number;
  reserved: number;
};

async function readLiveJobs(tx: Transaction<Database>): Promise<LiveJobs[]> {
  const { rows } = await sql<LiveJobs>`
    select jobs.*, batch.workspace_id from (
      select batch_id, (count(*) filter (where not active))::int as jobs,
        (count(*) filter (where active))::int as active,
        (count(*) filter (where not active and start_after <= now()))::int as ready,
        (count(*) filter (where not active and priority > ${snoozedPriority}))::int as unsnoozed,
        (count(*) filter (where priority >= ${reservedPriority}))::int as reserved,
        (count(*) filter (where not active and priority < ${reservedPriority}
          and greatest(start_after, created_on) < now() - interval '1 second'))::int as late
      from (
        select data ->> 'batch_id' as batch_id, false as active, priority, start_after, created_on
        from pgboss.job where name = ${chunkQueue.name} and state < 'active' and not blocked
        union all
        select data ->> 'batch_id', true, priority, start_after, created_on
        from pgboss.job where name = ${chunkQueue.name} and state = 'active'
      ) as job group by batch_id
    ) as jobs join batch on batch.id = jobs.batch_id`.execute(tx);
  return rows;
}

/**
 * Jobs of one workspace that are reserved together. There are several, so that a workspace whose own provider hangs
 * still has room for its other batches.
 */
const reservedOfWorkspace = 2;

/**
 * Reserves jobs for workspaces, so that the batches of one cannot stop those of another: when they fill the queue and
 * all slots, reserved jobs are still enqueued and claimed. A workspace without a waiting job gets one for a pending
 * chunk, and late jobs become reserved ones. Returns the chunks to enqueue.
 */
async function reserveJobs(tx: Transaction<Database>, live: readonly LiveJobs[]): Promise<PendingChunk[]> {
  const workspaces = await workspacesWithBatches(tx);
  if (workspaces.length < 2) return [];
  const byWorkspace = Map.groupBy(live, (row) => row.workspace_id);
  const late: string[] = [];
  const without: string[] = [];
  for (const workspace of workspaces) {
    const rows = byWorkspace.get(workspace) ?? [];
    const room = reservedOfWorkspace - rows.reduce((sum, row) => sum + row.reserved, 0);
    if (room <= 0) continue;
    const waiting = rows.filter((row) => row.late > 0).toSorted((one, other) => one.active - other.active);
    late.push(...waiting.slice(0, room).map((row) => row.batch_id));
    if (rows.every((row) => row.unsnoozed === 0)) without.push(workspace);
  }
  if (late.length > 0) {
    await sql`
      with first as materialized (
        select job.id from unnest(${late}::text[]) as reserved (batch_id) cross join lateral (
          select id from pgboss.job
          where name = ${chunkQueue.name} and state < 'active' and not blocked and group_id = reserved.batch_id
            and priority < ${reservedPriority} and start_after <= now()
          order by priority desc, created_on limit 1 for update skip locked
        ) as job
      )
      update pgboss.job set priority = ${reservedPriority} from first
      where job.name = ${chunkQueue.name} and job.id = first.id`.execute(tx);
  }
  if (without.length === 0) return [];
  const { rows } = await sql<PendingChunk>`
    select pending.* from unnest(${without.slice(0, batchesPerPassMax)}::text[]) as lacking (id) cross join lateral (
      select chunk.* from (
        select id from batch
        where workspace_id = lacking.id and status = 'in_progress' and paused_at is null
          and id <> all(${live.map((row) => row.batch_id)}::text[])
        order by completion_window <> 'immediate', created_at
      ) as own cross join lateral (
        select batch_id, chunk, generation from batch_chunk
        where batch_id = own.id and state = 'pending' order by chunk limit 1 for update skip locked
      ) as chunk limit 1
    ) as pending`.execute(tx);
  return rows;
}

/** The workspaces that have open batches: one step through the index for each. */
async function workspacesWithBatches(tx: Transaction<Database>): Promise<string[]> {
  const isOpen = sql`status in ('validating', 'in_progress', 'finalizing', 'cancelling')`;
  const { rows } = await sql<{ id: string }>`
    with recursive found as (
      (select workspace_id as id from batch where ${isOpen} order by workspace_id limit 1)
      union all
      select (select workspace_id from batch where ${isOpen} and workspace_id > found.id order by workspace_id limit 1)
      from found where id is not null
    ) select id from found where id is not null`.execute(tx);
  return rows.map(({ id }) => id);
}

/**
 * Locks up to `countMax` pending chunks that no other worker is taking. The recursion steps from batch to batch through
 * the index of pending chunks, and stops when it has found enough. The cost therefore depends on how many chunks are
 * enqueued and how many batches have jobs in the queue, but not on how many batches are in progress. Batches that are
 * paused retain their pending chunks. (The status is read by a scalar subquery, because with a join or `exists` the
 * planner might read all batches first.)
 */
async function takePendingChunks(
  tx: Transaction<Database>,
  limits: { queued: readonly QueuedJobs[]; full: readonly string[]; ofBatch: number; countMax: number },
): Promise<PendingChunk[]> {
  const { queued, full, ofBatch, countMax } = limits;
  const { rows } = await sql<PendingChunk>`
    with recursive has_pending as (
      (select enqueue_order, batch_id from batch_chunk where state = 'pending' order by enqueue_order, batch_id limit 1)
      union all
      select next.* from has_pending as last cross join lateral (
        select enqueue_order, batch_id from batch_chunk
        where state = 'pending' and (enqueue_order, batch_id) > (last.enqueue_order, last.batch_id)
        order by enqueue_order, batch_id limit 1
      ) as next
    ), chosen as materialized (
      select enqueue_order, batch_id from has_pending
      where batch_id <> all(${full}::text[]) and (select status = 'in_progress' and paused_at is null from batch where id = batch_id)
      limit ${batchesPerPassMax}
    )
    select pending.* from (
      select enqueue_order, batch_id, ${ofBatch} - coalesce(queued.jobs, 0) as count_max from chosen
      left join unnest(${queued.map((row) => row.batch_id)}::text[], ${queued.map((row) => row.jobs)}::int[])
        as queued (batch_id, jobs) using (batch_id)
      order by enqueue_order, batch_id
    ) as running
    cross join lateral (
      select batch_id, chunk, generation from batch_chunk
      where enqueue_order = running.enqueue_order and batch_id = running.batch_id and state = 'pending'
      order by chunk limit least(running.count_max, ${countMax})
      for update skip locked
    ) as pending
    limit ${countMax}`.execute(tx);
  return rows;
}
