import { hash } from 'node:crypto';
import { Readable } from 'node:stream';
import { sql, type Transaction } from 'kysely';
import type { BlobStore } from '#libs/blobs/blob-store.ts';
import type { Database } from '#libs/database/schema.ts';
import { byWorker } from '#libs/event-log/by-worker.ts';
import type { EventLog, UnitOfWork } from '#libs/event-log/event-log.ts';
import { addDecimals } from '#libs/prices/add-decimals.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import type { Holder } from '#libs/queue/process-lease.ts';
import {
  decideBatch,
  acceptsResults,
  type OutputChecks,
  type RepeatedCalls,
  type SettledUsage,
} from '../batch/batch.ts';
import { batchModel, type BatchRow } from '../batch/batch-model.ts';
import { exceedsErrorRate } from '../batch/bounds.ts';
import { closeChunk, countOpenChunks, lockTurns, type ChunkClaim, type ChunkRow } from '../chunks/chunk.ts';
import { appendAndFollow, type FollowDeps } from '../chunks/follow-status.ts';
import { chunkKey } from '../chunks/stray-work.ts';
import { bitsOfLines, countSettled, isRepeated, isSettled, settle } from '../chunks/settled-lines.ts';
import { isSmallBatch } from '../chunks/turns.ts';
import { isSuccess, type LineFailure } from './result-line.ts';
import { resultsRoot } from './results-root.ts';
import { insertRows, toRows, type NewResult } from './stored-results.ts';

/** The result of a line. `data` is the exact line of the output or error file. */
export type LineResult = {
  chunk: number;
  line: number;
  /** The HTTP status of the answer, 0 without one. */
  status: number;
  /** Why the line failed; null if it did not. */
  failure: LineFailure | null;
  data: Buffer;
  usage: Omit<SettledUsage, 'unpriced_lines'> | null;
  /** Whether its answer matched the JSON Schema of its request. null: it was not checked. */
  output?: keyof OutputChecks | null | undefined;
  /** Frees the memory of the result. Called once, when the result is committed or refused. */
  release: () => void;
};

export type SettleDeps = FollowDeps & {
  eventLog: EventLog;
  blobs: Pick<BlobStore, 'put'>;
  logger: Logger;
};

/** Results and claims of one batch that are settled together. */
export type SettleGroup<Result extends LineResult = LineResult> = {
  batch: { id: string; workspaceId: string };
  results: readonly Result[];
  claims: readonly ChunkClaim[];
};

/**
 * `refused`: the batch takes no more results. `claim_lost`: the chunk was taken away. `incomplete`: the batch is running
 * and lines have no result yet, so the claim continues.
 */
export type CloseOutcome = 'closed' | 'claim_lost' | 'refused' | 'incomplete';

/** The outcome for each claim. `finishing`: the batch, if it is small and has now ended its lines. */
export type SettledGroup = { outcomes: CloseOutcome[]; finishing: BatchRow | null };

/** Groups whose results have their final place. `segment`: the blob with their bytes; null: they go into the rows. */
export type StoredGroups = { groups: readonly SettleGroup<LineResult & NewResult>[]; segment: string | null };

/** Results of fewer bytes go into their rows, because a blob costs as much as this many bytes of a row. */
const segmentBytesMin = 8_192;

/** Sorts and hashes the results of groups, and writes those of more than a few kilobytes into one segment. */
export async function storeGroups(
  { blobs }: Pick<SettleDeps, 'blobs'>,
  groups: readonly SettleGroup[],
): Promise<StoredGroups> {
  let offset = 0;
  const stored = groups.map((group) => ({
    ...group,
    // The sort is stable: the first result of a line stays first.
    results: group.results
      .toSorted((a, b) => a.line - b.line)
      .map((result) => {
        const placed = { ...result, sha256: hash('sha256', result.data, 'buffer'), offset };
        offset += result.data.length;
        return placed;
      }),
  }));
  if (offset < segmentBytesMin) return { groups: stored, segment: null };
  const { blob } = await blobs.put(Readable.from(inPieces(stored.flatMap(({ results }) => results))));
  return { groups: stored, segment: blob };
}

/** A stream costs as much for each of its pieces as for some kilobytes. */
const pieceBytesMin = 65_536;

function* inPieces(results: readonly LineResult[]): Generator<Buffer> {
  let piece: Buffer[] = [];
  let bytes = 0;
  for (const [index, { data }] of results.entries()) {
    piece.push(data);
    bytes += data.length;
    if (bytes < pieceBytesMin && index + 1 < results.length) continue;
    yield Buffer.concat(piece, bytes);
    piece = [];
    bytes = 0;
  }
}

/**
 * Settles results of different batches in one short transaction under the locks of their streams: inserts those of lines
 * that have none, closes the chunks, and appends one event for each batch about the results that were inserted. With
 * the last result of a batch it also appends `batch.finalizing`. A small batch is then held by `holder`, which finishes it.
 */
export async function settleGroups(
  deps: SettleDeps,
  { groups, segment }: StoredGroups,
  holder: Holder,
): Promise<SettledGroup[]> {
  const [first] = groups;
  if (first === undefined) return [];
  const streams = groups.map(({ batch }) => batch.id);
  return await deps.eventLog.transact(
    { workspaceId: first.batch.workspaceId, streams, model: batchModel, metadata: byWorker },
    async (unit): Promise<SettledGroup[]> => {
      const settled = new Map<string, SettledGroup>();
      const open: OpenGroup[] = [];
      for (const group of groups) {
        const batch = await unit.load(batchModel, group.batch.id);
        if (batch && acceptsResults(batch)) open.push({ ...group, row: batch, chunks: [], fresh: [] });
        else settled.set(group.batch.id, await refuse(deps, unit.tx, group, batch));
      }
      await readChunks(unit.tx, open);
      for (const group of open) group.fresh = settleFirst(group.chunks, group.results);
      // What ends or stops a batch also changes its turn, and turns are locked before chunks.
      const stopping = open.filter(
        ({ row, fresh }) => canEnd(row, fresh) || exceedsErrorRate(row, countResults(fresh)),
      );
      await lockTurns(
        unit.tx,
        stopping.map(({ row }) => row.id),
      );
      const rows = open.flatMap(({ row, fresh }) => toRows(row, fresh, { segment, version: row.version + 1 }));
      await insertRows(unit.tx, rows);
      const closed = await writeChunks(unit.tx, open);
      // Shares of workspaces are locked last, in the same order by everyone.
      for (const group of open.toSorted((a, b) => (a.row.workspace_id < b.row.workspace_id ? -1 : 1))) {
        const outcomes = group.claims.map((claim) => outcomeOf(group, claim, closed));
        const after = await decideAndAppend(deps, unit, group, holder.id);
        const finishing = after.status === 'finalizing' && isSmallBatch(after) ? after : null;
        settled.set(after.id, { outcomes, finishing });
      }
      return groups.map(({ batch }) => settled.get(batch.id) as SettledGroup);
    },
  );
}

/** A group whose batch accepts results. `fresh`: those of lines that had none. */
type OpenGroup = SettleGroup<LineResult & NewResult> & {
  row: BatchRow;
  chunks: Settled[];
  fresh: (LineResult & NewResult)[];
};

async function refuse(
  { logger }: SettleDeps,
  tx: Transaction<Database>,
  { batch: { id }, results, claims }: SettleGroup,
  batch: BatchRow | undefined,
): Promise<SettledGroup> {
  if (results.length > 0)
    logger.warn(
      { batch_id: id, lines: results.length, status: batch?.status },
      'results arrived after the deadline and were discarded',
    );
  for (const claim of claims) await closeChunk(tx, claim);
  return { outcomes: claims.map(() => 'refused' as const), finishing: null };
}

type Settled = Pick<ChunkRow, 'batch_id' | 'chunk' | 'first_line' | 'line_count' | 'settled' | 'repeated'>;

/** Reads the chunks of the results and claims of each group. */
async function readChunks(tx: Transaction<Database>, groups: readonly OpenGroup[]): Promise<void> {
  const wanted = groups.flatMap(({ row, results, claims }) =>
    [...new Set([...results, ...claims].map(({ chunk }) => chunk))].map((chunk) => ({ id: row.id, chunk })),
  );
  if (wanted.length === 0) return;
  const { rows } = await sql<Settled>`
    select batch_id, chunk, first_line, line_count, settled, repeated from batch_chunk
    join unnest(${wanted.map(({ id }) => id)}::text[], ${wanted.map(({ chunk }) => chunk)}::int[])
      as wanted (batch_id, chunk) using (batch_id, chunk)`.execute(tx);
  const byBatch = Map.groupBy(rows, (row) => row.batch_id);
  for (const group of groups) {
    group.chunks = byBatch.get(group.row.id) ?? [];
    // A chunk can have been split since its lines were read.
    const moved = group.results.findLast(({ line }) => chunkOf(group.chunks, line) === undefined);
    if (moved === undefined) continue;
    group.chunks = await tx
      .selectFrom('batch_chunk')
      .select(['batch_id', 'chunk', 'first_line', 'line_count', 'settled', 'repeated'])
      .where('batch_id', '=', group.row.id)
      .where((of) =>
        of.or([
          of('first_line', '<=', moved.line),
          of(
            'chunk',
            'in',
            [...group.results, ...group.claims].map(({ chunk }) => chunk),
          ),
        ]),
      )
      .execute();
  }
}

const isWithin = (
  { first_line: first, line_count: count }: Pick<ChunkRow, 'first_line' | 'line_count'>,
  line: number,
) => line >= first && line < first + count;

const chunkOf = <Chunk extends Pick<ChunkRow, 'first_line' | 'line_count'>>(
  chunks: readonly Chunk[],
  line: number,
): Chunk | undefined => chunks.find((chunk) => isWithin(chunk, line));

/**
 * Marks the lines of the results as settled, and returns the results of lines that had none. The first result of a line
 * is final: a process whose claim was lost can bring results of the same lines as the next one.
 */
function settleFirst<Result extends LineResult>(chunks: readonly Settled[], results: readonly Result[]): Result[] {
  let last: Settled | undefined;
  return results.filter(({ line }) => {
    last = last && chunkOf([last], line) ? last : chunkOf(chunks, line);
    if (last === undefined) throw new Error(`line ${line} is in no chunk`);
    if (isSettled(last, line)) return false;
    settle(last, line);
    return true;
  });
}

/** Writes which lines are settled, and closes chunks, with one version of each row. Returns the claims that it closed. */
async function writeChunks(tx: Transaction<Database>, groups: readonly OpenGroup[]): Promise<ReadonlySet<string>> {
  const changed = groups.flatMap((group) =>
    group.chunks.flatMap((chunk) => {
      const claims = group.claims.filter((claim) => claim.chunk === chunk.chunk && canClose(group, claim));
      const isChanged = claims.length > 0 || group.fresh.some(({ line }) => isWithin(chunk, line));
      // Only the newest claim of a chunk can be the current one.
      const newest = claims.toSorted((a, b) => b.claim - a.claim)[0];
      return isChanged ? [{ ...chunk, claim: newest?.claim ?? null, holder: newest?.holder ?? null }] : [];
    }),
  );
  if (changed.length === 0) return new Set();
  const isClosed = sql`batch_chunk.claim = new.claim and batch_chunk.holder = new.holder`;
  const { rows } = await sql<Pick<ChunkRow, 'batch_id' | 'chunk' | 'claim' | 'state'>>`
    update batch_chunk set settled = new.settled, state = case when ${isClosed} then 'done' else state end,
      holder = case when ${isClosed} then null else batch_chunk.holder end
    from unnest(
      ${changed.map((row) => row.batch_id)}::text[],
      ${changed.map(({ chunk }) => chunk)}::int[],
      ${changed.map(({ settled }) => settled)}::bytea[],
      ${changed.map(({ claim }) => claim)}::int[],
      ${changed.map(({ holder }) => holder)}::text[]
    ) as new (batch_id, chunk, settled, claim, holder)
    where batch_chunk.batch_id = new.batch_id and batch_chunk.chunk = new.chunk
    returning batch_chunk.batch_id, batch_chunk.chunk, batch_chunk.claim, state`.execute(tx);
  return new Set(rows.filter(({ state }) => state === 'done').map(chunkKey));
}

/** Whether a claim ends with this settle. A cancelled batch can leave lines without a result. */
function canClose({ row, chunks }: OpenGroup, { chunk: number }: ChunkClaim): boolean {
  const chunk = chunks.find((one) => one.chunk === number);
  return row.status !== 'in_progress' || chunk === undefined || countSettled(chunk.settled) === chunk.line_count;
}

function outcomeOf(group: OpenGroup, claim: ChunkClaim, closed: ReadonlySet<string>): CloseOutcome {
  if (!canClose(group, claim)) return 'incomplete';
  return closed.has(chunkKey(claim)) ? 'closed' : 'claim_lost';
}

async function decideAndAppend(
  deps: FollowDeps,
  unit: UnitOfWork,
  { row: batch, chunks, fresh }: OpenGroup,
  holder: string,
): Promise<BatchRow> {
  const settled =
    fresh.length === 0
      ? null
      : {
          chunks: settledBits(chunks, fresh),
          ...countResults(fresh),
          usage: sumUsage(fresh),
          ...countOutputs(fresh),
          results_root: resultsRoot(fresh),
          ...sumRepeated(fresh, chunks),
        };
  const openChunks = batch.status === 'cancelling' ? await countOpenChunks(unit.tx, batch) : 1;
  const events = decideBatch(batch, { type: 'settle', settled, openChunks }, unit.now);
  return await appendAndFollow(deps, unit, batch, events, holder);
}

/** Sorted results as the bits of their lines in each chunk. */
function settledBits(chunks: readonly Settled[], results: readonly LineResult[]) {
  const byChunk = Map.groupBy(results, ({ line }) => chunkOf(chunks, line)?.chunk ?? 0);
  return [...byChunk].map(([chunk, of]) => ({ chunk, ...bitsOfLines(of.map(({ line }) => line)) }));
}

const canEnd = (batch: BatchRow, fresh: readonly LineResult[]): boolean =>
  batch.status === 'cancelling' || batch.completed + batch.failed + fresh.length >= batch.total;

function countResults(results: readonly LineResult[]): { completed: number; failed: number } {
  const completed = results.filter(({ status }) => isSuccess(status)).length;
  return { completed, failed: results.length - completed };
}

function countOutputs(results: readonly LineResult[]): { outputs?: OutputChecks } {
  const outputs: OutputChecks = { passed: 0, passed_after_retry: 0, failed: 0 };
  const checked = results.flatMap(({ output }) => output ?? []);
  for (const output of checked) outputs[output] += 1;
  return checked.length === 0 ? {} : { outputs };
}

function sumRepeated(results: readonly LineResult[], chunks: readonly Settled[]): { repeated?: RepeatedCalls } {
  const lines = results.filter(({ line }) => chunks.some((chunk) => isWithin(chunk, line) && isRepeated(chunk, line)));
  if (lines.length === 0) return {};
  const costs = lines.flatMap(({ usage }) => usage?.cost ?? []);
  return { repeated: { calls: lines.length, cost: costs.reduce<string | null>(addDecimals, null) } };
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
