import { sql, type Kysely } from 'kysely';
import { v5 as uuidv5 } from 'uuid';
import { isTransient } from '#libs/database/database-error.ts';
import type { Database } from '#libs/database/schema.ts';
import type { Part } from '#libs/kernel/lifecycle.ts';
import type { Logger } from '#libs/kernel/logger.ts';
import { sleep } from '#libs/kernel/sleep.ts';
import type { JobQueue } from '#libs/queue/job-queue.ts';
import { chunkQueue, closeQueue } from './batch-queues.ts';

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

/**
 * Keeps the queue short and full: releases pending chunks into pg-boss until `readyJobsTarget` jobs wait there, which
 * with those being worked on is about twice what this worker holds. Every worker runs one; there is no leader, because
 * the rows are taken with SKIP LOCKED. What is not released yet can still be cancelled or overtaken for free.
 */
export function createDispatcher(deps: {
  db: Kysely<Database>;
  queue: JobQueue;
  logger: Logger;
  readyJobsTarget: number;
  intervalMs: number;
}): Dispatcher {
  const { db, queue, logger, readyJobsTarget, intervalMs } = deps;
  const stopped = new AbortController();
  let woken = new AbortController();
  let loop: Promise<void> | undefined;

  async function run(): Promise<void> {
    let rounds = 0;
    while (!stopped.signal.aborted) {
      woken = new AbortController();
      try {
        // Now and then, also look for chunks whose job is gone (a queue restored from a backup, an operator's delete).
        if (rounds % 240 === 0) await returnLostChunks(db, queue, logger);
        rounds += 1;
        await releaseChunks(db, queue, readyJobsTarget);
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

/**
 * Releases as many pending chunks as the queue has room for; returns how many. Immediate batches come before those
 * that may wait up to a day, older ones before younger.
 */
export async function releaseChunks(db: Kysely<Database>, queue: JobQueue, readyJobsTarget: number): Promise<number> {
  return await db.transaction().execute(async (tx) => {
    const { rows: depth } = await sql<{ ready: number }>`
      select count(*)::int as ready from pgboss.job where name = ${chunkQueue.name} and state < 'active'`.execute(tx);
    const room = readyJobsTarget - (depth[0]?.ready ?? 0);
    if (room <= 0) return 0;
    const { rows: chunks } = await sql<PendingChunk>`
      select pending.* from (
        select id, completion_window, created_at from batch where status = 'in_progress'
        order by completion_window = 'immediate' desc, created_at, id
      ) as running
      cross join lateral (
        select batch_id, chunk, generation from batch_chunk
        where batch_id = running.id and state = 'pending'
        order by chunk limit ${room}
        for update skip locked
      ) as pending
      limit ${room}`.execute(tx);
    if (chunks.length === 0) return 0;
    await sql`
      update batch_chunk as target set state = 'released'
      from unnest(${chunks.map((row) => row.batch_id)}::text[], ${chunks.map((row) => row.chunk)}::int[]) as taken (batch_id, chunk)
      where target.batch_id = taken.batch_id and target.chunk = taken.chunk`.execute(tx);
    await queue.enqueueMany(
      tx,
      chunkQueue,
      chunks.map((payload) => ({ id: chunkJobId(payload.batch_id, payload.chunk, payload.generation), payload })),
    );
    return chunks.length;
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
