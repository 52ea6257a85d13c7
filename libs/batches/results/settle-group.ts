import { sql, type Transaction } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import type { EventLog, UnitOfWork } from '#libs/event-log/event-log.ts';
import { addDecimals } from '#libs/prices/add-decimals.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import type { Holder } from '#libs/queue/process-lease.ts';
import { decideBatch, acceptsResults, type SettledUsage } from '../batch.ts';
import { batchModel, type BatchRow } from '../batch-model.ts';
import { closeChunk, countOpenChunks, lockTurn, type ChunkClaim, type ChunkRow } from '../chunks/chunk.ts';
import { appendAndFollow, type FollowDeps } from '../chunks/follow-status.ts';
import { countSettled, isSettled, settle } from '../chunks/settled-lines.ts';
import { isSmallBatch } from '../chunks/turns.ts';
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

export type SettleDeps = FollowDeps & {
  eventLog: EventLog;
  logger: Logger;
  /** The identity under which this process holds work now. */
  holder: () => Holder;
  /**
   * Writes the files of a small batch that this process holds. The settle waits for it and its chunk keeps its slot, so
   * that batches are not settled faster than they are finished. Never rejects.
   */
  finishSmallBatch: (batch: BatchRow, holder: Holder) => Promise<void>;
  /** Called for each settle that was committed. */
  onSettled?: ((results: number) => void) | undefined;
  /** Aborts when the process has no time left. */
  signal: AbortSignal;
};

/**
 * `refused`: the batch takes no more results. `claim_lost`: the chunk was taken away. `incomplete`: the batch is running
 * and lines have no result yet, so the claim continues.
 */
export type CloseOutcome = 'closed' | 'claim_lost' | 'refused' | 'incomplete';

/**
 * Settles results in one short transaction under the stream's lock: inserts those of lines that have none, closes the
 * chunks, and appends an event about the results that were inserted. With the last result of a batch it also appends
 * `batch.finalizing`, and a small batch is finished right after it.
 */
export async function settleGroup(
  deps: SettleDeps,
  { id, workspaceId }: { id: string; workspaceId: string },
  group: readonly LineResult[],
  claims: readonly ChunkClaim[],
): Promise<CloseOutcome[]> {
  const metadata = { actor: { type: 'system' as const, id: 'worker' } };
  const sorted = group.toSorted((a, b) => a.line - b.line); // The sort is stable: the first result stays first.
  const holder = deps.holder();
  const { outcomes, done } = await deps.eventLog.transact({ workspaceId, streams: [id], metadata }, async (unit) => {
    const batch = await unit.load(batchModel, id);
    if (!batch || !acceptsResults(batch)) {
      if (group.length > 0)
        deps.logger.warn(
          { batch_id: id, lines: group.length, status: batch?.status },
          'results arrived after the deadline and were discarded',
        );
      for (const claim of claims) await closeChunk(unit.tx, claim);
      return { outcomes: claims.map(() => 'refused' as const), done: null };
    }
    const chunks = await readChunks(unit.tx, id, sorted, claims);
    const fresh = settleFirst(chunks, sorted);
    // What ends the batch also changes its turn, which is locked before the chunks.
    const canEnd = batch.status === 'cancelling' || batch.completed + batch.failed + fresh.length >= batch.total;
    if (canEnd) await lockTurn(unit.tx, id);
    await insertResults(unit.tx, batch, fresh);
    await writeSettled(unit.tx, id, chunks, fresh);
    const outcomes = await closeChunks(unit.tx, { batch, chunks }, claims);
    const after = await decideAndAppend(deps, unit, batch, fresh, holder.id);
    return { outcomes, done: after.status === 'finalizing' && isSmallBatch(after) ? after : null };
  });
  if (done) await deps.finishSmallBatch(done, holder);
  return outcomes;
}

type Settled = Pick<ChunkRow, 'chunk' | 'first_line' | 'line_count' | 'settled'>;

/** The chunks of the results and claims. A chunk can have been split since its lines were read. */
async function readChunks(
  tx: Transaction<Database>,
  batchId: string,
  results: readonly LineResult[],
  claims: readonly ChunkClaim[],
): Promise<Settled[]> {
  const wanted = [...new Set([...results, ...claims].map(({ chunk }) => chunk))];
  if (wanted.length === 0) return [];
  const read = tx
    .selectFrom('batch_chunk')
    .select(['chunk', 'first_line', 'line_count', 'settled'])
    .where('batch_id', '=', batchId);
  const chunks = await read.where('chunk', 'in', wanted).execute();
  const moved = results.filter(({ line }) => chunkOf(chunks, line) === undefined);
  if (moved.length === 0) return chunks;
  const others = read.where('chunk', 'not in', wanted).where('first_line', '<=', (moved.at(-1) as LineResult).line);
  return [...chunks, ...(await others.execute())];
}

const chunkOf = <Chunk extends Pick<ChunkRow, 'first_line' | 'line_count'>>(
  chunks: readonly Chunk[],
  line: number,
): Chunk | undefined =>
  chunks.find(({ first_line: first, line_count: count }) => line >= first && line < first + count);

/**
 * Marks the lines of the results as settled, and returns the results of lines that had none. The first result of a line
 * is final: a process whose claim was lost can bring results of the same lines as the next one.
 */
function settleFirst(chunks: readonly Settled[], results: readonly LineResult[]): LineResult[] {
  let last: Settled | undefined;
  return results.filter(({ line }) => {
    last = last && chunkOf([last], line) ? last : chunkOf(chunks, line);
    if (last === undefined) throw new Error(`line ${line} is in no chunk`);
    if (isSettled(last, line)) return false;
    settle(last, line);
    return true;
  });
}

async function writeSettled(
  tx: Transaction<Database>,
  batchId: string,
  chunks: readonly Settled[],
  fresh: readonly LineResult[],
): Promise<void> {
  const changed = chunks.filter(({ first_line: first, line_count: count }) =>
    fresh.some(({ line }) => line >= first && line < first + count),
  );
  // In the order in which they are taken over.
  for (const { chunk, settled } of changed.toSorted((a, b) => a.chunk - b.chunk))
    await tx
      .updateTable('batch_chunk')
      .set({ settled })
      .where('batch_id', '=', batchId)
      .where('chunk', '=', chunk)
      .execute();
}

async function insertResults(
  tx: Transaction<Database>,
  batch: BatchRow,
  results: readonly LineResult[],
): Promise<void> {
  if (results.length === 0) return;
  const bucket = resultsBucket(batch);
  // One binary parameter for all lines: an array of bytea would travel as hexadecimal text.
  const lengths = results.map((result) => result.data.length);
  let end = 1; // `substring()` counts from 1.
  const offsets = lengths.map((length) => (end += length) - length);
  await sql`
    insert into batch_result (bucket, batch_id, line, succeeded, data)
    select ${bucket}::date, ${batch.id}, line, succeeded, substring(${Buffer.concat(results.map((result) => result.data))}::bytea from start for length)
    from unnest(
      ${results.map((result) => result.line)}::int[],
      ${results.map((result) => result.succeeded)}::bool[],
      ${offsets}::int[],
      ${lengths}::int[]
    ) as result (line, succeeded, start, length)
    order by line`.execute(tx);
}

async function closeChunks(
  tx: Transaction<Database>,
  { batch, chunks }: { batch: BatchRow; chunks: readonly Settled[] },
  claims: readonly ChunkClaim[],
): Promise<CloseOutcome[]> {
  const outcomes: CloseOutcome[] = [];
  for (const claim of claims) {
    const found = chunks.find(({ chunk }) => chunk === claim.chunk);
    // A cancelled batch can leave lines without a result.
    const isWhole = found === undefined || countSettled(found.settled) === found.line_count;
    if (batch.status === 'in_progress' && !isWhole) outcomes.push('incomplete');
    else outcomes.push((await closeChunk(tx, claim)) ? 'closed' : 'claim_lost');
  }
  return outcomes;
}

async function decideAndAppend(
  deps: FollowDeps,
  unit: UnitOfWork,
  batch: BatchRow,
  inserted: readonly LineResult[],
  holder: string,
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
  const openChunks = batch.status === 'cancelling' ? await countOpenChunks(unit.tx, batch) : 1;
  const events = decideBatch(batch, { type: 'settle', settled, openChunks }, unit.now);
  return await appendAndFollow(deps, unit, batch, events, holder);
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
