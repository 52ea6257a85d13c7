import { sql, type Selectable } from 'kysely';
import type { BatchChunkTable } from '#libs/database/schema.ts';
import type { EventLog, UnitOfWork } from '#libs/event-log/event-log.ts';
import type { JobQueue } from '#libs/queue/job-queue.ts';
import { decideBatch } from '../batch.ts';
import { batchModel, type BatchRow } from '../batch-model.ts';
import { chunkQueue } from './batch-queues.ts';
import { resultsBucket } from '../results/results-bucket.ts';

export type ChunkRow = Selectable<BatchChunkTable>;

export type Redelivery =
  /**
   * Run the lines that have no result yet. `isSuspect`: one line is left, and it was running each time a worker died.
   * It must only be called while no other suspect runs. Until it is called, the row stays `handed_back`.
   */
  | { action: 'run'; settled: ReadonlySet<number>; isSuspect: boolean }
  /** Nothing to do: the claim was lost, or the chunk was split in two and both halves are pending again. */
  | { action: 'drop' }
  /** The batch starts no more lines. */
  | { action: 'stop' }
  /** One line is left, and its worker died each time it was called: it becomes an error line. */
  | { action: 'poison'; line: number; settled: ReadonlySet<number> };

/** After this many claims in a row without a new result, a chunk is split in two. */
const failedClaimsBeforeSplit = 2;
/**
 * After this many, a single line is given up. The number is larger than for a split, because the user loses a line: a
 * machine that crashes a few times for another reason, while the line waits for a long answer, must not make it a
 * poison line.
 */
const failedClaimsBeforePoison = 5;

/** Whether a chunk was claimed before: under this job (its retry count) or an earlier one (its generation). */
export const isRedelivered = (chunk: Pick<ChunkRow, 'generation'>, job: { retryCount: number }): boolean =>
  job.retryCount > 0 || chunk.generation > 0;

/**
 * Resumes a chunk that was claimed before. `chunk` is its row from before this claim changed it, so that a repeat does not
 * count twice. Records how many lines are unsettled, which limits how many calls can be repeated, and reads which lines have
 * results. When claims repeatedly produce no new result, the chunk is split until the line that kills its worker is alone. A
 * claim that its worker handed back does not count.
 */
export async function resumeRedelivered(
  deps: { eventLog: EventLog; queue: JobQueue },
  batch: BatchRow,
  chunk: ChunkRow,
  job: { id: string; retryCount: number },
): Promise<Redelivery> {
  const metadata = { actor: { type: 'system' as const, id: 'worker' }, causation_id: job.id };
  const command = { workspaceId: batch.workspace_id, streams: [batch.id], metadata };
  return await deps.eventLog.transact(command, async (unit) => {
    const state = (await unit.load(batchModel, batch.id)) as BatchRow;
    // A process that hung after it claimed the job must not split a chunk that another worker has claimed meanwhile.
    if (!(await deps.queue.holds(unit.tx, chunkQueue, job))) return { action: 'drop' };
    if (state.status !== 'in_progress') return { action: 'stop' };
    const settled = await settledLines(unit, state, chunk);
    const unsettled = chunk.line_count - settled.size;
    // The first claim after a snooze or a split is not a redelivery, and the log already has that event.
    if (job.retryCount > 0 || !chunk.handed_back) {
      const record = { type: 'record_redelivery' as const, chunk: chunk.chunk, attempt: job.retryCount, unsettled };
      await unit.append(batchModel, batch.id, decideBatch(state, record, unit.now));
    }
    const before = chunk.redeliveries_without_progress;
    const failedClaims = settled.size > chunk.settled_lines ? 0 : chunk.handed_back ? before : before + 1;
    if (failedClaims >= failedClaimsBeforeSplit && unsettled > 1) {
      await splitChunk(unit, chunk, settled);
      await deps.queue.complete(unit.tx, chunkQueue, job);
      return { action: 'drop' };
    }
    const isAlone = unsettled === 1;
    const isPoison = isAlone && failedClaims >= failedClaimsBeforePoison;
    // If two suspects ran at the same time, it would not be clear which one caused a crash. From here on, only one of
    // them is called at a time, and a crash while it waits for its turn does not count.
    const isSuspect = isAlone && !isPoison && failedClaims >= failedClaimsBeforeSplit;
    await unit.tx
      .updateTable('batch_chunk')
      .set({ handed_back: isSuspect, settled_lines: settled.size, redeliveries_without_progress: failedClaims })
      .where('batch_id', '=', chunk.batch_id)
      .where('chunk', '=', chunk.chunk)
      .execute();
    if (isPoison) {
      const line = range(chunk).find((candidate) => !settled.has(candidate)) as number;
      return { action: 'poison', line, settled };
    }
    return { action: 'run', settled, isSuspect };
  });
}

async function settledLines(unit: UnitOfWork, batch: BatchRow, chunk: ChunkRow): Promise<Set<number>> {
  const rows = await unit.tx
    .selectFrom('batch_result')
    .select('line')
    .where('bucket', '=', resultsBucket(batch))
    .where('batch_id', '=', chunk.batch_id)
    .where('line', '>=', chunk.first_line)
    .where('line', '<', chunk.first_line + chunk.line_count)
    .execute();
  return new Set(rows.map((row) => row.line));
}

/**
 * Leaves the first half of the unsettled lines in this chunk and moves the rest to a new one; both become pending. Both have
 * the whole byte range, because the beginning of a line is only known after reading it, and differ in the lines they cover.
 * The generation shows that some lines can be settled already. `handed_back` prevents their first claim from counting as a
 * redelivery.
 */
async function splitChunk(unit: UnitOfWork, chunk: ChunkRow, settled: ReadonlySet<number>): Promise<void> {
  const open = range(chunk).filter((line) => !settled.has(line));
  const middle = open[Math.floor(open.length / 2)] as number;
  const { rows } = await sql<{ next: number }>`
    select max(chunk) + 1 as next from batch_chunk where batch_id = ${chunk.batch_id}`.execute(unit.tx);
  const half = {
    state: 'pending' as const,
    generation: chunk.generation + 1,
    handed_back: true,
    settled_lines: 0,
    redeliveries_without_progress: 0,
  };
  await unit.tx
    .insertInto('batch_chunk')
    .values({
      ...half,
      batch_id: chunk.batch_id,
      chunk: rows[0]?.next ?? 0,
      byte_offset: chunk.byte_offset,
      byte_length: chunk.byte_length,
      range_first_line: chunk.range_first_line,
      first_line: middle,
      line_count: chunk.first_line + chunk.line_count - middle,
      enqueue_order: chunk.enqueue_order,
    })
    .execute();
  await unit.tx
    .updateTable('batch_chunk')
    .set({ ...half, line_count: middle - chunk.first_line })
    .where('batch_id', '=', chunk.batch_id)
    .where('chunk', '=', chunk.chunk)
    .execute();
}

const range = (chunk: ChunkRow): number[] =>
  Array.from({ length: chunk.line_count }, (_value, index) => chunk.first_line + index);
