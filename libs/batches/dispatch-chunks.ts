import { sql, type Kysely, type Transaction } from 'kysely';
import { v5 as uuidv5 } from 'uuid';
import { isTransient } from '#libs/database/database-error.ts';
import type { Database } from '#libs/database/schema.ts';
import type { Part } from '#libs/kernel/lifecycle.ts';
import type { Logger } from '#libs/kernel/logger.ts';
import { sleep } from '#libs/kernel/sleep.ts';
import { snoozedPriority } from '#libs/queue/group-worker.ts';
import type { JobQueue } from '#libs/queue/job-queue.ts';
import type { BatchRow } from './batch-model.ts';
import { chunkQueue } from './batch-queues.ts';

// A fixed namespace, so that the same chunk and generation make the same job id and a repeated release inserts nothing.
const jobNamespace = '0f0a2f6e-6b0c-5f5a-9a51-51a9c1a3c7d2';

/** The pg-boss job id of one release of a chunk. */
export function chunkJobId(batchId: string, chunk: number, generation: number): string {
  return uuidv5(`${batchId}/${chunk}/${generation}`, jobNamespace);
}

// Immediate batches are put before all others by making them so much older.
const immediateMs = 100 * 365 * 86_400_000;

/** In which order the chunks of batches are released: immediate ones first, and the oldest of each kind first. */
export function dispatchOrder(batch: Pick<BatchRow, 'completion_window' | 'created_at'>): Date {
  return new Date(batch.created_at.getTime() - (batch.completion_window === 'immediate' ? immediateMs : 0));
}

/** A pass costs much the same for one batch as for many: those that are validated within this time share one. */
const passEveryMs = 40;

export type Dispatcher = Part & {
  /** Something may be ready to be released: look now instead of at the next interval. */
  wake(): void;
};

/** How many jobs wait in the queue: of one batch, and of all that have not been put off. */
type ReadyJobs = { ofBatch: number; ofAll: number };

/**
 * Keeps the queue short and full: releases pending chunks into pg-boss until `readyJobs` wait there, which with those
 * being worked on is about twice what this worker holds. Counted by batch, so that one whose chunks stand there does not
 * keep the others out. Every worker runs one; there is no leader, because the rows are taken with SKIP LOCKED. What is
 * not released yet can still be cancelled or overtaken for free.
 */
export function createDispatcher(deps: {
  db: Kysely<Database>;
  queue: JobQueue;
  logger: Logger;
  readyJobs: ReadyJobs;
  intervalMs: number;
  /** Jobs wait in the queue, whoever has put them there. */
  onReady: () => void;
}): Dispatcher {
  const { db, queue, logger, readyJobs, intervalMs } = deps;
  const stopped = new AbortController();
  let woken = new AbortController();
  let loop: Promise<void> | undefined;

  async function run(): Promise<void> {
    while (!stopped.signal.aborted) {
      woken = new AbortController();
      const soonestMs = performance.now() + passEveryMs;
      try {
        if ((await enqueueChunks(db, queue, readyJobs)) > 0) deps.onReady();
      } catch (error) {
        if (isTransient(error)) logger.warn({ err: error }, 'dispatcher waits for the database');
        else logger.error({ err: error }, 'dispatcher failed');
        await sleep(1_000, stopped.signal);
      }
      await sleep(Math.max(0, soonestMs - performance.now()), stopped.signal);
      await sleep(intervalMs, AbortSignal.any([stopped.signal, woken.signal]));
    }
  }

  return {
    name: 'chunk dispatcher',
    start() {
      loop ??= run();
    },
    async stop() {
      stopped.abort();
      await loop;
    },
    wake: () => woken.abort(),
  };
}

type PendingChunk = { batch_id: string; chunk: number; generation: number };

/** Room for first jobs of batches beside the rest: those of many that hang must not keep out one that does not. */
const firstJobFactor = 4;
/** Batches that are given chunks in one pass; the next pass comes soon. */
const batchesOfPassMax = 64;

/**
 * Releases as many pending chunks as the queue has room for; returns how many jobs may be claimed now. Immediate batches
 * come before those that may wait up to a day, older ones before younger.
 */
export async function enqueueChunks(db: Kysely<Database>, queue: JobQueue, readyJobs: ReadyJobs): Promise<number> {
  return await db.transaction().execute(async (tx) => {
    const { rows: waiting } = await sql<{ batch_id: string; jobs: number; ready: number; fresh: number }>`
      select data ->> 'batch_id' as batch_id, count(*)::int as jobs,
        (count(*) filter (where start_after <= now()))::int as ready,
        (count(*) filter (where priority > ${snoozedPriority}))::int as fresh
      from pgboss.job where name = ${chunkQueue.name} and state < 'active' and not blocked group by 1`.execute(tx);
    const ready = waiting.reduce((sum, row) => sum + row.ready, 0);
    // Those that come back from being put off take no room here: of a few throttled batches there may always be as many
    // as that, and no other batch would ever be given a job.
    const space = readyJobs.ofAll - waiting.reduce((sum, row) => sum + row.fresh, 0);
    // Where other batches have taken it, there is more for those that have no job there at all.
    const [ofBatch, room] = space > 0 ? [readyJobs.ofBatch, space] : [1, space + firstJobFactor * readyJobs.ofAll];
    if (room <= 0) return ready;
    // A batch's jobs that are put off count too: what they wait for is the matter with all of its lines, as a rule.
    const full = waiting.filter((row) => row.jobs >= ofBatch).map((row) => row.batch_id);
    const chunks = await takePendingChunks(tx, { waiting, full, ofBatch, room });
    if (chunks.length === 0) return ready;
    await sql`
      update batch_chunk as target set state = 'released'
      from unnest(${chunks.map((row) => row.batch_id)}::text[], ${chunks.map((row) => row.chunk)}::int[]) as taken (batch_id, chunk)
      where target.batch_id = taken.batch_id and target.chunk = taken.chunk`.execute(tx);
    await queue.enqueueMany(
      tx,
      chunkQueue,
      chunks.map((payload) => ({
        id: chunkJobId(payload.batch_id, payload.chunk, payload.generation),
        payload,
        group: payload.batch_id,
      })),
    );
    return ready + chunks.length;
  });
}

type Waiting = { batch_id: string; jobs: number };

/**
 * Locks pending chunks that no other worker is taking, `room` at most. The recursion steps from batch to batch through
 * the index of pending chunks, and only until it has found enough: what it costs depends on what is released, and on how
 * many batches have their jobs in the queue, but not on how many are in progress. (A status is asked by a scalar
 * subquery because a join, or `exists`, would let the planner read all of it first.)
 */
async function takePendingChunks(
  tx: Transaction<Database>,
  {
    waiting,
    full,
    ofBatch,
    room,
  }: { waiting: readonly Waiting[]; full: readonly string[]; ofBatch: number; room: number },
): Promise<PendingChunk[]> {
  const { rows } = await sql<PendingChunk>`
    with recursive has_pending as (
      (select release_order, batch_id from batch_chunk where state = 'pending' order by release_order, batch_id limit 1)
      union all
      select next.* from has_pending as last cross join lateral (
        select release_order, batch_id from batch_chunk
        where state = 'pending' and (release_order, batch_id) > (last.release_order, last.batch_id)
        order by release_order, batch_id limit 1
      ) as next
    ), chosen as materialized (
      select release_order, batch_id from has_pending
      where batch_id <> all(${full}::text[]) and (select status from batch where id = batch_id) = 'in_progress'
      limit ${batchesOfPassMax}
    )
    select pending.* from (
      select release_order, batch_id, ${ofBatch} - coalesce(waiting.jobs, 0) as room from chosen
      left join unnest(${waiting.map((row) => row.batch_id)}::text[], ${waiting.map((row) => row.jobs)}::int[])
        as waiting (batch_id, jobs) using (batch_id)
      order by release_order, batch_id
    ) as running
    cross join lateral (
      select batch_id, chunk, generation from batch_chunk
      where release_order = running.release_order and batch_id = running.batch_id and state = 'pending'
      order by chunk limit least(running.room, ${room})
      for update skip locked
    ) as pending
    limit ${room}`.execute(tx);
  return rows;
}
