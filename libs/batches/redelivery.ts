import { sql, type Selectable } from 'kysely';
import type { BatchChunkTable } from '#libs/database/schema.ts';
import type { EventLog, UnitOfWork } from '#libs/event-log/event-log.ts';
import type { JobQueue } from '#libs/queue/job-queue.ts';
import { decideBatch } from './batch.ts';
import { batchModel, type BatchRow } from './batch-model.ts';
import { chunkQueue } from './batch-queues.ts';
import { resultsBucket } from './results-bucket.ts';

export type ChunkRow = Selectable<BatchChunkTable>;

export type Redelivery =
  /** Do the lines that have no row yet. */
  | { action: 'run'; settled: ReadonlySet<number> }
  /** The chunk was cut in two and released again: nothing to do under this claim. */
  | { action: 'split' }
  /** One line is left and has ended its worker each time: it becomes an error line. */
  | { action: 'poison'; line: number; settled: ReadonlySet<number> };

/**
 * Takes up a chunk whose earlier claim was lost: records how many lines were unsettled (the bound on repeated calls),
 * asks which lines have rows, and, when two claims in a row brought no new row, cuts the chunk until the line that
 * kills its worker stands alone. A chunk that was handed back by a worker told to stop does not count.
 */
export async function takeUpRedelivered(
  deps: { eventLog: EventLog; queue: JobQueue },
  batch: BatchRow,
  chunk: ChunkRow,
  job: { id: string; retryCount: number },
): Promise<Redelivery> {
  const metadata = { actor: { type: 'system' as const, id: 'worker' }, causation_id: job.id };
  const command = { workspaceId: batch.workspace_id, streams: [batch.id], metadata };
  return await deps.eventLog.transact(command, async (unit) => {
    const state = (await unit.load(batchModel, batch.id)) as BatchRow;
    const settled = await settledLines(unit, state, chunk);
    const unsettled = chunk.line_count - settled.size;
    if (!chunk.handed_back) {
      const record = { type: 'record_redelivery' as const, chunk: chunk.chunk, attempt: job.retryCount, unsettled };
      await unit.append(batchModel, batch.id, decideBatch(state, record, unit.now));
    }
    const stuck = !chunk.handed_back && settled.size === chunk.settled_lines;
    const fruitless = stuck ? chunk.redeliveries_without_progress + 1 : 0;
    if (fruitless >= 2 && unsettled > 1) {
      await splitChunk(unit, chunk, settled);
      await deps.queue.complete(unit.tx, chunkQueue, job);
      return { action: 'split' };
    }
    await unit.tx
      .updateTable('batch_chunk')
      .set({ handed_back: false, settled_lines: settled.size, redeliveries_without_progress: fruitless })
      .where('batch_id', '=', chunk.batch_id)
      .where('chunk', '=', chunk.chunk)
      .execute();
    if (fruitless >= 2 && unsettled === 1) {
      const line = range(chunk).find((candidate) => !settled.has(candidate)) as number;
      return { action: 'poison', line, settled };
    }
    return { action: 'run', settled };
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
 * The first half of the unsettled lines stays in this chunk, the rest goes to a new one; both are released again. Both
 * keep the whole byte range (where a line begins is only known by reading it) and differ in the lines they cover.
 */
async function splitChunk(unit: UnitOfWork, chunk: ChunkRow, settled: ReadonlySet<number>): Promise<void> {
  const open = range(chunk).filter((line) => !settled.has(line));
  const middle = open[Math.floor(open.length / 2)] as number;
  const { rows } = await sql<{ next: number }>`
    select max(chunk) + 1 as next from batch_chunk where batch_id = ${chunk.batch_id}`.execute(unit.tx);
  await unit.tx
    .insertInto('batch_chunk')
    .values({
      batch_id: chunk.batch_id,
      chunk: rows[0]?.next ?? 0,
      byte_offset: chunk.byte_offset,
      byte_length: chunk.byte_length,
      range_first_line: chunk.range_first_line,
      first_line: middle,
      line_count: chunk.first_line + chunk.line_count - middle,
    })
    .execute();
  await unit.tx
    .updateTable('batch_chunk')
    .set({
      state: 'pending',
      generation: chunk.generation + 1,
      line_count: middle - chunk.first_line,
      settled_lines: 0,
      redeliveries_without_progress: 0,
    })
    .where('batch_id', '=', chunk.batch_id)
    .where('chunk', '=', chunk.chunk)
    .execute();
}

const range = (chunk: ChunkRow): number[] =>
  Array.from({ length: chunk.line_count }, (_value, index) => chunk.first_line + index);
