import { sql, type Kysely } from 'kysely';
import { v5 as uuidv5 } from 'uuid';
import { isTransient } from '#libs/database/database-error.ts';
import type { Database } from '#libs/database/schema.ts';
import type { Part } from '#libs/kernel/lifecycle.ts';
import type { Logger } from '#libs/kernel/logger.ts';
import { sleep } from '#libs/kernel/sleep.ts';
import { backFromWaiting } from '#libs/queue/group-worker.ts';
import type { JobQueue } from '#libs/queue/job-queue.ts';
import { chunkQueue, closeQueue, finaliseQueue, validateQueue } from './batch-queues.ts';

// A fixed namespace, so that the same chunk and generation make the same job id and a repeated release inserts nothing.
const jobNamespace = '0f0a2f6e-6b0c-5f5a-9a51-51a9c1a3c7d2';

/** The pg-boss job id of one release of a chunk. */
export function chunkJobId(batchId: string, chunk: number, generation: number): string {
  return uuidv5(`${batchId}/${chunk}/${generation}`, jobNamespace);
}

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
    let rounds = 0;
    while (!stopped.signal.aborted) {
      woken = new AbortController();
      try {
        // Now and then, also look for work whose job is gone (a queue restored from a backup, an operator's delete, a job
        // that was tried 10,000 times).
        if (rounds % 240 === 0) {
          await returnLostChunks(db, queue, logger);
          await replaceLostJobs(db, queue, logger);
        }
        rounds += 1;
        if ((await releaseChunks(db, queue, readyJobs)) > 0) deps.onReady();
      } catch (error) {
        if (isTransient(error)) logger.warn({ err: error }, 'dispatcher waits for the database');
        else logger.error({ err: error }, 'dispatcher failed');
        await sleep(1_000, stopped.signal);
      }
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

/** Batches that are given chunks in one pass; the next pass comes soon. */
const batchesOfPassMax = 64;

/**
 * Releases as many pending chunks as the queue has room for; returns how many jobs may be claimed now. Immediate batches
 * come before those that may wait up to a day, older ones before younger.
 */
export async function releaseChunks(db: Kysely<Database>, queue: JobQueue, readyJobs: ReadyJobs): Promise<number> {
  return await db.transaction().execute(async (tx) => {
    const { rows: waiting } = await sql<{ batch_id: string; jobs: number; ready: number; fresh: number }>`
      select data ->> 'batch_id' as batch_id, count(*)::int as jobs,
        (count(*) filter (where start_after <= now()))::int as ready,
        (count(*) filter (where priority > ${backFromWaiting}))::int as fresh
      from pgboss.job where name = ${chunkQueue.name} and state < 'active' and not blocked group by 1`.execute(tx);
    const ready = waiting.reduce((sum, row) => sum + row.ready, 0);
    // Those that come back from being put off take no room here: of a few throttled batches there may always be as many
    // as that, and no other batch would ever be given a job.
    const space = readyJobs.ofAll - waiting.reduce((sum, row) => sum + row.fresh, 0);
    // Where a few large batches have taken it, there is a quarter more for those that have no job there at all.
    const [ofBatch, room] =
      space > 0 ? [readyJobs.ofBatch, space] : [1, space + Math.max(1, Math.floor(readyJobs.ofAll / 4))];
    if (room <= 0) return ready;
    // Those whose chunks are all out cost one look at an index each. A batch's jobs that are put off count too: what they
    // wait for is the matter with all of its lines, as a rule.
    const { rows: chunks } = await sql<PendingChunk>`
      select pending.* from (
        select batch.id, ${ofBatch} - coalesce(waiting.jobs, 0) as room from batch
        left join unnest(${waiting.map((row) => row.batch_id)}::text[], ${waiting.map((row) => row.jobs)}::int[])
          as waiting (id, jobs) using (id)
        where batch.status = 'in_progress' and coalesce(waiting.jobs, 0) < ${ofBatch}
          and exists (select from batch_chunk where batch_id = batch.id and state = 'pending')
        order by batch.completion_window = 'immediate' desc, batch.created_at, batch.id
        limit ${batchesOfPassMax}
      ) as running
      cross join lateral (
        select batch_id, chunk, generation from batch_chunk
        where batch_id = running.id and state = 'pending'
        order by chunk limit least(running.room, ${room})
        for update skip locked
      ) as pending
      limit ${room}`.execute(tx);
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

/**
 * Makes chunks pending again whose job no longer exists; a batch must not stand still because a job was lost. Where no
 * more lines are started, such a chunk is done, and what waits for it is told. Returns how many were lost.
 */
export async function returnLostChunks(db: Kysely<Database>, queue: JobQueue, logger: Logger): Promise<number> {
  return await db.transaction().execute(async (tx) => {
    const released = await tx
      .selectFrom('batch_chunk')
      .innerJoin('batch', 'batch.id', 'batch_chunk.batch_id')
      .select(['batch_chunk.batch_id', 'batch_chunk.chunk', 'batch_chunk.generation', 'batch.status'])
      .where('batch_chunk.state', '=', 'released')
      .where('batch.status', 'in', ['in_progress', 'cancelling'])
      .forUpdate('batch_chunk')
      .skipLocked()
      .execute();
    if (released.length === 0) return 0;
    const ids = released.map((row) => chunkJobId(row.batch_id, row.chunk, row.generation));
    const { rows: live } = await sql<{ id: string }>`
      select id from pgboss.job where name = ${chunkQueue.name} and state <= 'active' and id = any(${ids}::uuid[])`.execute(
      tx,
    );
    const liveIds = new Set(live.map((row) => row.id));
    const lost = released.filter((_row, index) => !liveIds.has(ids[index] as string));
    for (const { batch_id, chunk, generation, status } of lost) {
      const isDrained = status === 'cancelling';
      await tx
        .updateTable('batch_chunk')
        .set(isDrained ? { state: 'done' } : { state: 'pending', generation: generation + 1 })
        .where('batch_id', '=', batch_id)
        .where('chunk', '=', chunk)
        .execute();
      if (isDrained) await queue.enqueue(tx, closeQueue, { batch_id });
      logger.warn({ batch_id, chunk, status }, 'chunk without a job is taken back');
    }
    return lost.length;
  });
}

/** The states of a batch that end with a job: it is enqueued in the transaction that begins the state. */
const jobOfState = [
  ['validating', validateQueue],
  ['finalizing', finaliseQueue],
] as const;

/** Gives batches a new job whose own no longer exists, or was given up. Returns how many. */
export async function replaceLostJobs(db: Kysely<Database>, queue: JobQueue, logger: Logger): Promise<number> {
  let replaced = 0;
  for (const [status, jobs] of jobOfState) {
    await db.transaction().execute(async (tx) => {
      // Locked, so that of several workers one does it.
      const { rows: lost } = await sql<{ id: string }>`
        select id from batch where status = ${status} and not exists (
          select from pgboss.job where name = ${jobs.name} and state <= 'active' and data ->> 'batch_id' = batch.id
        ) for update skip locked`.execute(tx);
      for (const { id } of lost) {
        await queue.enqueue(tx, jobs, { batch_id: id });
        logger.warn({ batch_id: id, status }, 'batch without a job is given a new one');
      }
      replaced += lost.length;
    });
  }
  return replaced;
}
