import { sql, type Kysely, type Transaction } from 'kysely';
import type { BatchStatus, Database } from '#libs/database/schema.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import type { JobQueue } from '#libs/queue/job-queue.ts';
import type { QueueDefinition } from '#libs/queue/queue-definition.ts';
import type { WorkedOn } from '#libs/queue/replace-lost-jobs.ts';
import { chunkQueue, closeQueue, finaliseQueue, validateQueue, type BatchPayload } from './batch-queues.ts';
import { chunkJobId } from './dispatch-chunks.ts';

// Chunks and batches whose job no longer exists, for the repair of all work (libs/queue/replace-lost-jobs.ts defines
// when a job is lost).

type EnqueuedChunk = { batch_id: string; chunk: number; generation: number };

/** Chunks checked by one statement. Those that have lost their job are reset in one transaction. */
const pageSize = 1_000;

/**
 * Makes chunks pending again whose job no longer exists, so that their batch continues. In a batch that is being
 * cancelled, such a chunk becomes done instead, and a close job is enqueued. Returns how many chunks had lost their
 * job.
 */
export async function resetLostChunks(db: Kysely<Database>, queue: JobQueue, logger: Logger): Promise<number> {
  let lost = 0;
  let after = { batch_id: '', chunk: -1 };
  for (;;) {
    const { rows: page } = await sql<EnqueuedChunk>`
      select batch_id, chunk, generation from batch_chunk
      where state = 'enqueued' and (batch_id, chunk) > (${after.batch_id}, ${after.chunk}::int)
      order by batch_id, chunk limit ${pageSize}`.execute(db);
    const suspects = await withoutJob(db, page);
    // Checked once more under a lock, because a chunk and its job change in one transaction.
    if (suspects.length > 0) lost += await db.transaction().execute((tx) => resetChunks(tx, queue, logger, suspects));
    const last = page.at(-1);
    if (!last || page.length < pageSize) return lost;
    after = last;
  }
}

async function withoutJob<Chunk extends EnqueuedChunk>(
  db: Kysely<Database>,
  chunks: readonly Chunk[],
): Promise<Chunk[]> {
  if (chunks.length === 0) return [];
  const ids = chunks.map((row) => chunkJobId(row.batch_id, row.chunk, row.generation));
  const { rows } = await sql<{ id: string }>`
    select id from pgboss.job where name = ${chunkQueue.name} and state <= 'active' and id = any(${ids}::uuid[])`.execute(
    db,
  );
  const live = new Set(rows.map((row) => row.id));
  return chunks.filter((_row, index) => !live.has(ids[index] as string));
}

async function resetChunks(
  tx: Transaction<Database>,
  queue: JobQueue,
  logger: Logger,
  suspects: readonly EnqueuedChunk[],
): Promise<number> {
  const { rows } = await sql<EnqueuedChunk & { status: BatchStatus }>`
    select batch_chunk.batch_id, batch_chunk.chunk, batch_chunk.generation, batch.status
    from unnest(${suspects.map((row) => row.batch_id)}::text[], ${suspects.map((row) => row.chunk)}::int[])
      as suspect (batch_id, chunk)
    join batch_chunk using (batch_id, chunk) join batch on batch.id = batch_id
    where batch_chunk.state = 'enqueued' and batch.status in ('in_progress', 'cancelling')
    for update of batch_chunk skip locked`.execute(tx);
  const lost = await withoutJob(tx, rows);
  for (const { batch_id, chunk, generation, status } of lost) {
    const isDrained = status === 'cancelling';
    await tx
      .updateTable('batch_chunk')
      .set(isDrained ? { state: 'done' } : { state: 'pending', generation: generation + 1 })
      .where('batch_id', '=', batch_id)
      .where('chunk', '=', chunk)
      .execute();
    if (isDrained) await queue.enqueue(tx, closeQueue, { batch_id });
    logger.warn({ batch_id, chunk, status }, 'chunk lost its job and was reset');
  }
  return lost.length;
}

/** Batches in a state that one job ends. */
const batchesIn = (status: BatchStatus, jobs: QueueDefinition<BatchPayload>): WorkedOn => ({
  idField: 'batch_id',
  what: `a batch that is ${status}`,
  async findLost(tx, { changedBefore, max }) {
    // Locked, so that only one of several workers replaces a job.
    const { rows } = await sql<{ id: string }>`
      select id from batch
      where status = ${status} and updated_at < (select clock_timestamp()) - ${changedBefore}::interval and not exists (
        select from pgboss.job where name = ${jobs.name} and state <= 'active' and data ->> 'batch_id' = batch.id
      ) limit ${max} for update skip locked`.execute(tx);
    return rows.map(({ id }) => ({ id, enqueue: (queue) => queue.enqueue(tx, jobs, { batch_id: id }, { group: id }) }));
  },
});

/** Batches that wait for one job. Those in progress have chunks instead, and overdue ones get close jobs all the time. */
export const workedOnBatches: readonly WorkedOn[] = [
  batchesIn('validating', validateQueue),
  batchesIn('finalizing', finaliseQueue),
];

const surplusMax = 5_000;

/**
 * Deletes jobs of batches that do not exist or have ended. They exist when the queue and the batches were restored from
 * different moments; their handlers would do nothing. Returns how many were deleted.
 */
export async function deleteSurplusJobs(db: Kysely<Database>): Promise<number> {
  const names = [validateQueue, chunkQueue, finaliseQueue, closeQueue].map((queue) => queue.name);
  let deleted = 0;
  for (;;) {
    const { numAffectedRows = 0n } = await sql`
      delete from pgboss.job where name = any(${names}) and id in (
        select job.id from pgboss.job left join batch on batch.id = job.data ->> 'batch_id'
        where job.name = any(${names}) and job.state <= 'active'
          and (batch.id is null or batch.status in ('completed', 'failed', 'cancelled', 'expired'))
        limit ${surplusMax} for update of job skip locked
      )`.execute(db);
    deleted += Number(numAffectedRows);
    if (numAffectedRows < surplusMax) return deleted;
  }
}
