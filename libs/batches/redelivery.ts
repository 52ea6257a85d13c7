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
  /**
   * Do the lines that have no row yet; `chunk` is the row as it is now. `isSuspect`: one line is left, and it was there
   * each time a worker died; it is called when no other suspect is, and the row says until then that it is not called.
   */
  | { action: 'run'; chunk: ChunkRow; settled: ReadonlySet<number>; isSuspect: boolean }
  /** Nothing to do under this claim: it was lost, or the chunk was cut in two and released again. */
  | { action: 'drop' }
  /** The batch starts no more lines. */
  | { action: 'stop' }
  /** One line is left and has ended its worker each time: it becomes an error line. */
  | { action: 'poison'; chunk: ChunkRow; line: number; settled: ReadonlySet<number> };

/** So many claims in a row without a new row cut a chunk in two. */
const failedClaimsBeforeSplit = 2;
/**
 * So many end a line that stands alone. More than for a split, because here a user's line is given up: a machine that
 * crashes for another reason, a few times while one long answer is awaited, must not look like the line's doing.
 */
const failedClaimsBeforePoison = 5;

/** Whether a claim is not the first of its chunk: the queue counts its own, the generation those of lost or split jobs. */
export const isRedelivered = (chunk: Pick<ChunkRow, 'generation'>, job: { retryCount: number }): boolean =>
  job.retryCount > 0 || chunk.generation > 0;

/**
 * Takes up a chunk whose earlier claim was lost: records how many lines were unsettled (the bound on repeated calls),
 * asks which lines have rows, and, when claim after claim brought no new row, cuts the chunk until the line that kills
 * its worker stands alone. A chunk that a living worker gave back does not count.
 */
export async function resumeRedelivered(
  deps: { eventLog: EventLog; queue: JobQueue },
  batch: BatchRow,
  chunkNumber: number,
  job: { id: string; retryCount: number },
): Promise<Redelivery> {
  const metadata = { actor: { type: 'system' as const, id: 'worker' }, causation_id: job.id };
  const command = { workspaceId: batch.workspace_id, streams: [batch.id], metadata };
  return await deps.eventLog.transact(command, async (unit) => {
    const state = (await unit.load(batchModel, batch.id)) as BatchRow;
    // A process that hung since it claimed the job must not cut a chunk that another one works on.
    if (!(await deps.queue.holds(unit.tx, chunkQueue, job))) return { action: 'drop' };
    if (state.status !== 'in_progress') return { action: 'stop' };
    const chunk = await findChunk(unit, batch.id, chunkNumber);
    const settled = await settledLines(unit, state, chunk);
    const unsettled = chunk.line_count - settled.size;
    // A first claim after the chunk was put off, or cut in two, lost nothing: the log has that already.
    if (job.retryCount > 0 || !chunk.handed_back) {
      const record = { type: 'record_redelivery' as const, chunk: chunkNumber, attempt: job.retryCount, unsettled };
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
    // Two lines that die together each time cannot be told apart: from here on only one of them is called at a time, and
    // what dies while it waits for that has not been tried.
    const isSuspect = isAlone && !isPoison && failedClaims >= failedClaimsBeforeSplit;
    await unit.tx
      .updateTable('batch_chunk')
      .set({ handed_back: isSuspect, settled_lines: settled.size, redeliveries_without_progress: failedClaims })
      .where('batch_id', '=', chunk.batch_id)
      .where('chunk', '=', chunk.chunk)
      .execute();
    if (isPoison) {
      const line = range(chunk).find((candidate) => !settled.has(candidate)) as number;
      return { action: 'poison', chunk, line, settled };
    }
    return { action: 'run', chunk, settled, isSuspect };
  });
}

async function findChunk(unit: UnitOfWork, batchId: string, chunk: number): Promise<ChunkRow> {
  return await unit.tx
    .selectFrom('batch_chunk')
    .selectAll()
    .where('batch_id', '=', batchId)
    .where('chunk', '=', chunk)
    .executeTakeFirstOrThrow();
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
 * Their generation says that lines may be settled already; `handed_back`, that their first claim proves nothing yet.
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
      release_order: chunk.release_order,
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
