import { sql, type Transaction } from 'kysely';
import { isDatabaseTrouble } from '#libs/database/database-error.ts';
import type { Database } from '#libs/database/schema.ts';
import type { EventLog, UnitOfWork } from '#libs/event-log/event-log.ts';
import type { Logger } from '#libs/kernel/logger.ts';
import { sleep } from '#libs/kernel/sleep.ts';
import type { JobQueue } from '#libs/queue/job-queue.ts';
import { decideBatch, takesResults, type SettledUsage } from './batch.ts';
import { batchModel, type BatchRow } from './batch-model.ts';
import { chunkQueue, finaliseQueue } from './batch-queues.ts';
import { ensureResultsPartition, resultsBucket } from './results-bucket.ts';
import { resultsRoot } from './results-root.ts';

/** A line that has its result, made once; `data` is the exact line of the output or error file. */
export type LineResult = {
  chunk: number;
  line: number;
  succeeded: boolean;
  data: Buffer;
  usage: Omit<SettledUsage, 'cost' | 'price_version'> | null;
  /** Called once, when the result is committed or refused: its memory is free. */
  release: () => void;
};

export type ChunkClaim = { chunk: number; job: { id: string; retryCount: number } };

/**
 * `refused`: the batch takes no more results. `claim_lost`: another worker has the chunk by now. `incomplete`: lines of
 * a running batch have no row yet, so the claim is kept.
 */
export type CloseOutcome = 'closed' | 'claim_lost' | 'refused' | 'incomplete';

export type Settler = {
  /** Takes a result; it is committed with the batch's next group. */
  add(result: LineResult): void;
  /**
   * Marks a chunk as done, in one transaction with every result that was added before. While the batch is in progress,
   * that takes a row for each of its lines: a chunk that was closed without would never be looked at again.
   */
  close(claim: ChunkClaim): Promise<CloseOutcome>;
  /** Commits what has been added so far. */
  flush(): Promise<void>;
};

// One settle takes at most this many rows, however many wait: it must stay a short transaction.
const groupMax = { rows: 512, bytes: 8 * 1_048_576 };
// A group is due after this many results or bytes, or this long after its first (DESIGN, "Settle").
const groupDue = { rows: 64, bytes: 4 * 1_048_576, afterMs: 250 };

type Closing = { claim: ChunkClaim; resolve: (outcome: CloseOutcome) => void; reject: (error: unknown) => void };

/**
 * Commits the results of one batch in groups: one short transaction under the stream's lock for each, one at a time in
 * this process, so that what arrives meanwhile forms the next group. Counts, usage and root come from the rows that
 * the database says it inserted, never from the worker's memory. While the database is away the results wait here,
 * bounded by the worker's slots.
 */
export function createSettler(
  deps: { eventLog: EventLog; queue: JobQueue; logger: Logger; signal: AbortSignal },
  batch: { id: string; workspaceId: string },
): Settler {
  let results: LineResult[] = [];
  let bytes = 0;
  let closings: Closing[] = [];
  let timer: NodeJS.Timeout | undefined;
  let running: Promise<void> | undefined;

  const isDue = (): boolean => closings.length > 0 || results.length >= groupDue.rows || bytes >= groupDue.bytes;

  const start = (): void => {
    clearTimeout(timer);
    timer = undefined;
    running ??= drain().finally(() => {
      running = undefined;
      schedule();
    });
  };
  const schedule = (): void => {
    if (running) return;
    if (isDue()) start();
    else if (results.length > 0) timer ??= setTimeout(start, groupDue.afterMs);
  };

  const takeGroup = (): { group: LineResult[]; claims: Closing[] } => {
    let size = 0;
    let count = 0;
    while (count < results.length && count < groupMax.rows && size < groupMax.bytes) {
      size += (results[count] as LineResult).data.length;
      count += 1;
    }
    const group = results.slice(0, count);
    results = results.slice(count);
    bytes -= size;
    // A chunk may only close with or after its own results.
    const claims = results.length === 0 ? closings : [];
    if (results.length === 0) closings = [];
    return { group, claims };
  };

  async function drain(): Promise<void> {
    do {
      const { group, claims } = takeGroup();
      try {
        const outcomes = await settleUntilDone(
          deps,
          batch,
          group,
          claims.map(({ claim }) => claim),
        );
        for (const [index, { resolve }] of claims.entries()) resolve(outcomes[index] ?? 'closed');
      } catch (error) {
        // The lines stay unsettled: their chunks will be found incomplete, and their redelivery does them again.
        deps.logger.error({ err: error, batch_id: batch.id, lines: group.length }, 'results not settled');
        for (const { reject } of claims) reject(error);
      } finally {
        for (const result of group) result.release();
      }
    } while (isDue());
  }

  return {
    add(result) {
      results.push(result);
      bytes += result.data.length;
      schedule();
    },
    close(claim) {
      const closed = new Promise<CloseOutcome>((resolve, reject) => closings.push({ claim, resolve, reject }));
      schedule();
      return closed;
    },
    async flush() {
      do {
        start();
        await running;
      } while (results.length > 0);
    },
  };
}

/**
 * Tries again for as long as the database is away, full, or kept busy by a process that hangs with the batch's lock; the
 * results are paid for and must not be lost to an outage.
 */
async function settleUntilDone(
  deps: { eventLog: EventLog; queue: JobQueue; logger: Logger; signal: AbortSignal },
  batch: { id: string; workspaceId: string },
  group: readonly LineResult[],
  claims: readonly ChunkClaim[],
): Promise<CloseOutcome[]> {
  for (;;) {
    try {
      return await settleGroup(deps, batch, group, claims);
    } catch (error) {
      if (!isDatabaseTrouble(error) || deps.signal.aborted) throw error;
      deps.logger.warn({ err: error, batch_id: batch.id, lines: group.length }, 'settle waits for the database');
      await sleep(1_000, deps.signal);
    }
  }
}

async function settleGroup(
  deps: { eventLog: EventLog; queue: JobQueue; logger: Logger },
  { id, workspaceId }: { id: string; workspaceId: string },
  group: readonly LineResult[],
  claims: readonly ChunkClaim[],
): Promise<CloseOutcome[]> {
  const metadata = { actor: { type: 'system' as const, id: 'worker' } };
  const sorted = firstOfEachLine(group);
  return await deps.eventLog.transact({ workspaceId, streams: [id], metadata }, async (unit) => {
    const batch = await unit.load(batchModel, id);
    if (!batch || !takesResults(batch)) {
      if (group.length > 0)
        deps.logger.warn({ batch_id: id, lines: group.length, status: batch?.status }, 'results came too late');
      for (const { job } of claims) await deps.queue.complete(unit.tx, chunkQueue, job);
      return claims.map(() => 'refused' as const);
    }
    const inserted = await insertResults(unit.tx, batch, sorted);
    const outcomes = await closeChunks(deps.queue, unit.tx, batch, claims);
    await decideAndAppend(deps.queue, unit, batch, inserted);
    return outcomes;
  });
}

/**
 * In line order, each line once: a chunk that this process has twice (its claim was lost and came back) brings results
 * of the same line, and a row that is inserted once must be counted once.
 */
function firstOfEachLine(results: readonly LineResult[]): LineResult[] {
  const sorted = results.toSorted((a, b) => a.line - b.line); // stable: the first stays first
  return sorted.filter((result, index) => result.line !== sorted[index - 1]?.line);
}

/** Inserts the rows that are not there yet and returns them: the first result of a line wins, for ever. */
async function insertResults(
  tx: Transaction<Database>,
  batch: BatchRow,
  results: readonly LineResult[],
): Promise<LineResult[]> {
  if (results.length === 0) return [];
  const bucket = resultsBucket(batch);
  // One binary parameter for all lines: an array of bytea would travel as hexadecimal text.
  const lengths = results.map((result) => result.data.length);
  let end = 1; // substring() counts from 1
  const offsets = lengths.map((length) => (end += length) - length);
  // The lines themselves come back only when some were there already: a row of an answer costs more than a line here.
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
  batch: BatchRow,
  claims: readonly ChunkClaim[],
): Promise<CloseOutcome[]> {
  const outcomes: CloseOutcome[] = [];
  for (const { chunk, job } of claims) {
    // A cancelled batch leaves lines undone; its last event counts them.
    if (batch.status === 'in_progress' && (await countUnsettled(tx, batch, chunk)) > 0) {
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

async function countUnsettled(tx: Transaction<Database>, batch: BatchRow, chunk: number): Promise<number> {
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
): Promise<void> {
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
  if (after.status === 'finalizing') await queue.enqueue(unit.tx, finaliseQueue, { batch_id: batch.id });
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
    const key = JSON.stringify([usage.provider, usage.model]);
    const sum = sums.get(key);
    if (!sum) {
      sums.set(key, { ...usage, cost: null, price_version: null });
      continue;
    }
    sum.input_tokens += usage.input_tokens;
    sum.cached_tokens += usage.cached_tokens;
    sum.output_tokens += usage.output_tokens;
    sum.reasoning_tokens += usage.reasoning_tokens;
  }
  return [...sums.values()];
}

/** Before the first settle of a batch in this process. */
export const prepareSettling = (db: Parameters<typeof ensureResultsPartition>[0], batch: BatchRow): Promise<void> =>
  ensureResultsPartition(db, resultsBucket(batch));
