import { sql, type Transaction } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import type { EventLog, UnitOfWork } from '#libs/event-log/event-log.ts';
import { addDecimals } from '#libs/prices/add-decimals.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import type { JobQueue } from '#libs/queue/job-queue.ts';
import { decideBatch, acceptsResults, type SettledUsage } from '../batch.ts';
import { batchModel, type BatchRow } from '../batch-model.ts';
import { chunkQueue } from '../chunks/batch-queues.ts';
import { enqueueFinalise, isSmall, type FinishSmallBatch } from './finish-small-batch.ts';
import { resultsBucket } from './results-bucket.ts';
import { resultsRoot } from './results-root.ts';

/** The result of a line. `data` is the exact line of the output or error file. */
export type LineResult = {
  chunk: number;
  line: number;
  succeeded: boolean;
  data: Buffer;
  usage: Omit<SettledUsage, 'unpriced_lines'> | null;
  /** Frees the memory of the result. Called once, when the result is committed or refused. */
  release: () => void;
};

export type SettleDeps = {
  eventLog: EventLog;
  queue: JobQueue;
  logger: Logger;
  finishSmallBatch: FinishSmallBatch;
  /** Called for each settle that was committed. */
  onSettled?: ((results: number) => void) | undefined;
  /** Aborts when the process has no time left. */
  signal: AbortSignal;
};

/** `lines`: how many the chunk had when it was claimed. */
export type ChunkClaim = { chunk: number; lines: number; job: { id: string; retryCount: number } };

/**
 * `refused`: the batch takes no more results. `claim_lost`: another worker has claimed the chunk. `incomplete`: the
 * batch is running and lines have no result yet, so the claim continues.
 */
export type CloseOutcome = 'closed' | 'claim_lost' | 'refused' | 'incomplete';

/**
 * Settles results in one short transaction under the stream's lock: inserts the new results, closes the chunks, and appends
 * an event about the rows that were inserted. With the last result of a batch it also appends `batch.finalizing`, and a
 * small batch is finished right after it.
 */
export async function settleGroup(
  deps: SettleDeps,
  { id, workspaceId }: { id: string; workspaceId: string },
  group: readonly LineResult[],
  claims: readonly ChunkClaim[],
): Promise<CloseOutcome[]> {
  const metadata = { actor: { type: 'system' as const, id: 'worker' } };
  const sorted = firstOfEachLine(group);
  const { outcomes, done } = await deps.eventLog.transact({ workspaceId, streams: [id], metadata }, async (unit) => {
    const batch = await unit.load(batchModel, id);
    if (!batch || !acceptsResults(batch)) {
      if (group.length > 0)
        deps.logger.warn(
          { batch_id: id, lines: group.length, status: batch?.status },
          'results arrived after the deadline and were discarded',
        );
      for (const { job } of claims) await deps.queue.complete(unit.tx, chunkQueue, job);
      return { outcomes: claims.map(() => 'refused' as const), done: null };
    }
    const inserted = await insertResults(unit.tx, batch, sorted);
    const outcomes = await closeChunks(deps.queue, unit.tx, { batch, inserted }, claims);
    const after = await decideAndAppend(deps.queue, unit, batch, inserted);
    return { outcomes, done: after.status === 'finalizing' && isSmall(after) ? after : null };
  });
  if (done) await deps.finishSmallBatch(done, deps.signal);
  return outcomes;
}

/**
 * In line order, each line once. A process can have the same chunk twice (its claim was lost and it claimed it again)
 * and produce two results of one line, of which only one is inserted and must be counted.
 */
function firstOfEachLine(results: readonly LineResult[]): LineResult[] {
  const sorted = results.toSorted((a, b) => a.line - b.line); // The sort is stable: the first result stays first.
  return sorted.filter((result, index) => result.line !== sorted[index - 1]?.line);
}

/** Inserts the results of lines that have none yet, and returns those it inserted. The first result of a line is final. */
async function insertResults(
  tx: Transaction<Database>,
  batch: BatchRow,
  results: readonly LineResult[],
): Promise<LineResult[]> {
  if (results.length === 0) return [];
  const bucket = resultsBucket(batch);
  // One binary parameter for all lines: an array of bytea would travel as hexadecimal text.
  const lengths = results.map((result) => result.data.length);
  let end = 1; // `substring()` counts from 1.
  const offsets = lengths.map((length) => (end += length) - length);
  // Line numbers are returned only when some lines had results already, because returned rows are expensive.
  const { rows } = await sql<{ inserted: number; lines: number[] | null }>`
    with inserted as (
      insert into batch_result (bucket, batch_id, line, succeeded, data)
      select ${bucket}::date, ${batch.id}, line, succeeded, substring(${Buffer.concat(results.map((result) => result.data))}::bytea from start for length)
      from unnest(
        ${results.map((result) => result.line)}::int[],
        ${results.map((result) => result.succeeded)}::bool[],
        ${offsets}::int[],
        ${lengths}::int[]
      ) as result (line, succeeded, start, length)
      order by line
      on conflict do nothing
      returning line
    )
    select count(*)::int as inserted, case when count(*) < ${results.length} then array_agg(line) end as lines
    from inserted`.execute(tx);
  const row = rows[0];
  if (row?.inserted === results.length) return [...results];
  const lines = new Set(row?.lines);
  return results.filter((result) => lines.has(result.line));
}

async function closeChunks(
  queue: JobQueue,
  tx: Transaction<Database>,
  { batch, inserted }: { batch: BatchRow; inserted: readonly LineResult[] },
  claims: readonly ChunkClaim[],
): Promise<CloseOutcome[]> {
  const outcomes: CloseOutcome[] = [];
  for (const { chunk, lines, job } of claims) {
    // A cancelled batch can leave lines without a result. A chunk whose lines were all inserted just now, as is usual
    // in a small batch, does not need a count.
    const isWhole = inserted.filter((result) => result.chunk === chunk).length === lines;
    if (batch.status === 'in_progress' && !isWhole && (await countUnsettled(tx, batch, chunk)) > 0) {
      outcomes.push('incomplete');
      continue;
    }
    const held = await queue.complete(tx, chunkQueue, job);
    if (held) {
      await tx
        .updateTable('batch_chunk')
        .set({ state: 'done' })
        .where('batch_id', '=', batch.id)
        .where('chunk', '=', chunk)
        .execute();
    }
    outcomes.push(held ? 'closed' : 'claim_lost');
  }
  return outcomes;
}

/** How many lines of a chunk have no result. */
export async function countUnsettled(tx: Transaction<Database>, batch: BatchRow, chunk: number): Promise<number> {
  const { rows } = await sql<{ unsettled: number }>`
    select line_count - (
      select count(*)::int from batch_result
      where bucket = ${resultsBucket(batch)}::date and batch_result.batch_id = ${batch.id}
        and line >= first_line and line < first_line + line_count
    ) as unsettled
    from batch_chunk where batch_id = ${batch.id} and chunk = ${chunk}`.execute(tx);
  return rows[0]?.unsettled ?? 0;
}

async function decideAndAppend(
  queue: JobQueue,
  unit: UnitOfWork,
  batch: BatchRow,
  inserted: readonly LineResult[],
): Promise<BatchRow> {
  const completed = inserted.filter((result) => result.succeeded).length;
  const settled =
    inserted.length === 0
      ? null
      : {
          chunks: chunkRanges(inserted),
          completed,
          failed: inserted.length - completed,
          usage: sumUsage(inserted),
          results_root: resultsRoot(inserted),
        };
  const openChunks = batch.status === 'cancelling' ? await countOpenChunks(unit.tx, batch.id) : 1;
  const events = decideBatch(batch, { type: 'settle', settled, openChunks }, unit.now);
  const after = await unit.append(batchModel, batch.id, events);
  if (after.status === 'finalizing') {
    await enqueueFinalise({ queue, tx: unit.tx, now: unit.now }, after, { finishesHere: true });
  }
  return after;
}

/** How many chunks of a batch are not done. */
export async function countOpenChunks(tx: Transaction<Database>, batchId: string): Promise<number> {
  const row = await tx
    .selectFrom('batch_chunk')
    .select((of) => of.fn.countAll<number>().as('open'))
    .where('batch_id', '=', batchId)
    .where('state', '<>', 'done')
    .executeTakeFirstOrThrow();
  return row.open;
}

/** Sorted results as inclusive line ranges per chunk. */
function chunkRanges(results: readonly LineResult[]): { chunk: number; ranges: [number, number][] }[] {
  const byChunk = new Map<number, [number, number][]>();
  for (const { chunk, line } of results) {
    const ranges = byChunk.get(chunk) ?? [];
    byChunk.set(chunk, ranges);
    const last = ranges.at(-1);
    if (last && last[1] === line - 1) last[1] = line;
    else ranges.push([line, line]);
  }
  return [...byChunk].map(([chunk, ranges]) => ({ chunk, ranges }));
}

function sumUsage(results: readonly LineResult[]): SettledUsage[] {
  const sums = new Map<string, SettledUsage>();
  for (const { usage } of results) {
    if (!usage) continue;
    const key = JSON.stringify([usage.provider, usage.model, usage.price_version, usage.cost === null]);
    const sum = sums.get(key);
    if (!sum) {
      sums.set(key, usage.cost === null ? { ...usage, unpriced_lines: 1 } : { ...usage });
      continue;
    }
    sum.input_tokens += usage.input_tokens;
    sum.cached_tokens += usage.cached_tokens;
    sum.output_tokens += usage.output_tokens;
    sum.reasoning_tokens += usage.reasoning_tokens;
    if (usage.cost === null) sum.unpriced_lines = (sum.unpriced_lines ?? 0) + 1;
    else sum.cost = addDecimals(sum.cost, usage.cost);
  }
  return [...sums.values()];
}
