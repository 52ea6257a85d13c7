import { sql, type Kysely, type Selectable, type Transaction } from 'kysely';
import type { BatchChunkTable, Database } from '#libs/database/schema.ts';
import type { JobQueue } from '#libs/queue/job-queue.ts';
import type { BatchRow } from '../batch/batch-model.ts';
import { noneSettled } from './settled-lines.ts';
import { sendTickets } from './tickets.ts';
import { activate, claimColumns, claimWork, type Claim, type ClaimLimits } from './turns.ts';

// The states of a chunk. Its row is the only record of them.
//
//              claim                    closeChunk (every line has a result, or the batch takes none)
//    ready ─────────────► held ───────────────────────────────────────────► done
//      ▲ ▲                │ │ ▲                                               ▲
//      │ └── releaseChunk ┘ │ └─ holder: a process (libs/queue/process-lease.ts)
//      │ └── takeOverWork   │                                                 │
//      │ └── splitChunk     │ snoozeChunk                                     │
//      │                    ▼                                                 │
//      └── wakeDue ───── waiting              dropChunks (ready and waiting) ─┘
//          wakeChunks
//
// A claim is a holder and a number. Whatever ends a claim names both, and has no effect on a later one. Results do not:
// the first result of a line counts, no matter which process brings it (settled-lines.ts).

export type ChunkRow = Selectable<BatchChunkTable>;

/**
 * How a claim ends: calls of its lines were given up (stopped), none was (clean), its process died (null), or no line
 * was called and the end of the claim before it is still to be recorded.
 */
export type ClaimEnd = ChunkRow['claim_end'] | 'as before';

/** The claim of a chunk. */
export type ChunkClaim = Pick<ChunkRow, 'batch_id' | 'chunk' | 'claim'> & { holder: string };

/** A byte range of an input file. `firstLine` counts from 1. */
type Range = { offset: number; length: number; firstLine: number; lines: number };

/**
 * Validation has cut the input file of a batch into chunks, which begin as ready. Call it after `turnToLines`. `holder`:
 * the process that holds the first chunk at once, as its first claim. Returns the first chunk.
 */
export async function insertChunks(
  tx: Transaction<Database>,
  batchId: string,
  ranges: readonly Range[],
  holder: string | null = null,
): Promise<ChunkRow> {
  const held = holder === null ? {} : { state: 'held' as const, holder, claim: 1 };
  const chunks = ranges.map((range, chunk) => ({
    batch_id: batchId,
    chunk,
    byte_offset: range.offset,
    byte_length: range.length,
    range_first_line: range.firstLine,
    first_line: range.firstLine,
    line_count: range.lines,
    settled: noneSettled(range.lines),
    ...(chunk === 0 ? held : {}),
  }));
  let first: ChunkRow | undefined;
  const rowsPerStatement = 1_000;
  for (let from = 0; from < chunks.length; from += rowsPerStatement) {
    const values = chunks.slice(from, from + rowsPerStatement);
    const [inserted] = await tx.insertInto('batch_chunk').values(values).returningAll().execute();
    first ??= inserted;
  }
  return first as ChunkRow;
}

/** ready → held. Claims the next chunk for a process, in the order of turns.ts, unless the process was given up. */
export async function claimChunk(
  db: Kysely<Database>,
  holder: string,
  limits: ClaimLimits,
): Promise<Claim<ChunkRow & { workspace_id: string }>> {
  const { rows } = await sql<Omit<Claim<never>, 'claimed'> & ChunkRow & { workspace_id: string; isClaimed: boolean }>`
    select ${claimColumns}, coalesce((turn).ready, 1) - 1 as left, (turn).workspace_id,
      (chunk).batch_id is not null as "isClaimed", (chunk).*
    from ${claimWork('lines', holder, limits)}`.execute(db);
  const [{ found, left, others, weight, activeWeight, isClaimed, ...chunk }] = rows as [(typeof rows)[number]];
  return { claimed: isClaimed ? chunk : null, found, left, others, weight, activeWeight };
}

/**
 * held → ready. The process starts no more of its lines. `repeated`: the lines that it was possibly calling, if it was.
 * Returns false, and leaves the chunk held, when no line of the batch is to be claimed any more; the caller has to close
 * the chunk then.
 */
export async function releaseChunk(
  db: Kysely<Database>,
  claim: ChunkClaim,
  end: ClaimEnd,
  repeated?: Buffer | null,
): Promise<boolean> {
  return await db.transaction().execute(async (tx) => {
    const turn = await lockLines(tx, claim.batch_id);
    if (turn === undefined) return false;
    const { numUpdatedRows } = await ofClaim(tx, claim)
      .set({
        state: 'ready',
        holder: null,
        ...(end === 'as before' ? {} : { claim_end: end }),
        ...(repeated ? { repeated } : {}),
      })
      .executeTakeFirst();
    if (numUpdatedRows > 0n) await addReady(tx, [{ ...turn, chunks: 1 }]);
    return true;
  });
}

/**
 * held → waiting. All lines of the chunk wait, and others need its slot. It is ready again in `delayMs` by the database's
 * clock, and its batch goes behind those that could run by now. The next claim does not count as one after a crash.
 * Returns false like `releaseChunk`.
 */
export async function snoozeChunk(db: Kysely<Database>, claim: ChunkClaim, delayMs: number): Promise<boolean> {
  return await db.transaction().execute(async (tx) => {
    if ((await lockLines(tx, claim.batch_id)) === undefined) return false;
    await ofClaim(tx, claim)
      .set((of) => ({
        state: 'waiting',
        holder: null,
        claim_end: 'clean',
        snoozes: of('snoozes', '+', 1),
        due_at: sql<Date>`clock_timestamp() + ${`${Math.ceil(delayMs)} ms`}::interval`,
      }))
      .execute();
    await sql`
      update batch_turn set order_at = clock_timestamp()
      where batch_id = ${claim.batch_id} and order_at < clock_timestamp()`.execute(tx);
    return true;
  });
}

/** Turns woken in one transaction. */
const wokenMax = 500;

/** waiting → ready, for chunks that are due, and the same for validations and finalises. Returns whether any was due. */
export async function wakeDue(db: Kysely<Database>, queue: JobQueue): Promise<boolean> {
  const isDue = sql`due_at <= (select clock_timestamp())`;
  return await db.transaction().execute(async (tx) => {
    const { rows: files } = await sql<Readied>`
      update batch_turn set ready = 1, due_at = null
      where batch_id in (select batch_id from batch_turn where ${isDue} limit ${wokenMax} for update skip locked)
      returning batch_id, workspace_id, lane`.execute(tx);
    for (const { lane, workspace_id: workspaceId } of files) await activate(tx, lane, workspaceId);
    const { rows: due } = await sql<{ batch_id: string }>`
      select distinct batch_id from batch_chunk where ${isDue} limit ${wokenMax}`.execute(tx);
    const woken = await wakeOf(tx, due, isDue);
    for (const [lane, turns] of Map.groupBy(files, (row) => row.lane)) await sendTickets(queue, tx, lane, turns.length);
    if (woken > 0) await sendTickets(queue, tx, 'lines', woken);
    return files.length + woken > 0;
  });
}

/** waiting → ready, for the chunks of some workspaces, because some of their credentials have changed. */
export async function wakeChunks(db: Kysely<Database>, workspaceIds: readonly string[]): Promise<void> {
  await db.transaction().execute(async (tx) => {
    const { rows } = await sql<{ batch_id: string }>`
      select distinct batch_id from batch_chunk join batch_turn using (batch_id)
      where batch_chunk.state = 'waiting' and workspace_id = any(${workspaceIds}::text[])`.execute(tx);
    await wakeOf(tx, rows, sql`true`);
  });
}

type Readied = { batch_id: string; workspace_id: string; lane: 'lines' | 'small_files' | 'large_files' };

async function wakeOf(
  tx: Transaction<Database>,
  batches: readonly { batch_id: string }[],
  which: ReturnType<typeof sql>,
): Promise<number> {
  if (batches.length === 0) return 0;
  const ids = batches.map((row) => row.batch_id);
  // A turn that another process is changing is woken in the next pass.
  const { rows: turns } = await sql<Readied>`
    select batch_id, workspace_id, lane from batch_turn
    where batch_id = any(${ids}::text[]) and work = 'lines' order by batch_id for update skip locked`.execute(tx);
  const { rows: woken } = await sql<{ batch_id: string; chunks: number }>`
    with woken as (
      update batch_chunk set state = 'ready', due_at = null
      where batch_id = any(${turns.map((row) => row.batch_id)}::text[]) and state = 'waiting' and ${which}
      returning batch_id
    ) select batch_id, count(*)::int as chunks from woken group by batch_id`.execute(tx);
  const counts = new Map(woken.map((row) => [row.batch_id, row.chunks]));
  await addReady(
    tx,
    turns.map((turn) => ({ ...turn, chunks: counts.get(turn.batch_id) ?? 0 })),
  );
  return woken.reduce((sum, { chunks }) => sum + chunks, 0);
}

/**
 * held → ready, for all chunks of a process that was given up or has stopped, and the same for its validations and
 * finalises. Chunks of batches that start no more lines become done. The next claim counts as one after a crash, unless
 * the chunk was marked before. `keys`: only this work (stray-work.ts); null: all of it. `unstarted`: the keys of claims
 * that ran nothing. Their chunks are as they were before.
 */
export async function takeOverWork(
  tx: Transaction<Database>,
  processId: string,
  keys: readonly string[] | null = null,
  unstarted: readonly string[] = [],
): Promise<void> {
  const key = sql`batch_id || '/' || chunk || '/' || claim`;
  const isTaken = sql`holder = ${processId} and (${keys}::text[] is null or ${key} = any(${keys}::text[]))`;
  const isTurnTaken = sql`holder = ${processId} and (${keys}::text[] is null or batch_id = any(${keys}::text[]))`;
  const { rows: turns } = await sql<Readied & { work: string }>`
    select batch_id, workspace_id, lane, work from batch_turn
    where batch_id in (select batch_id from batch_chunk where ${isTaken}) or (${isTurnTaken})
    order by batch_id for update`.execute(tx);
  const { rows: freed } = await sql<{ batch_id: string; chunks: number }>`
    with held as (
      select batch_id, chunk from batch_chunk where ${isTaken} order by batch_id, chunk for update
    ), freed as (
      update batch_chunk set holder = null,
        claim_end = case when claim = 1 and ${key} = any(${unstarted}::text[]) then 'clean' else claim_end end,
        state = case when batch_id = any(${turns.filter(({ work }) => work === 'lines').map((row) => row.batch_id)}::text[])
          then 'ready' else 'done' end
      where (batch_id, chunk) in (select batch_id, chunk from held) returning batch_id
    ) select batch_id, count(*)::int as chunks from freed group by batch_id`.execute(tx);
  const counts = new Map(freed.map((row) => [row.batch_id, row.chunks]));
  const ofLines = turns.filter(({ work }) => work === 'lines');
  await addReady(
    tx,
    ofLines.map((turn) => ({ ...turn, chunks: counts.get(turn.batch_id) ?? 0 })),
  );
  const { rows: files } = await sql<Readied>`
    update batch_turn set holder = null, ready = 1 where ${isTurnTaken}
    returning batch_id, workspace_id, lane`.execute(tx);
  for (const { lane, workspace_id: workspaceId } of files) await activate(tx, lane, workspaceId);
}

/** ready and waiting → done: none of these chunks is ever started. Call it after `turnToClose`. */
export async function dropChunks(tx: Transaction<Database>, batchId: string): Promise<void> {
  await tx
    .updateTable('batch_chunk')
    .set({ state: 'done', due_at: null })
    .where('batch_id', '=', batchId)
    .where('state', 'in', ['ready', 'waiting'])
    .execute();
}

/** Any state → done, and no turn any more, because the batch has ended. */
export async function endBatchWork(tx: Transaction<Database>, batchId: string): Promise<void> {
  // The count makes the turn be locked before the chunks.
  await sql`
    with ended as (delete from batch_turn where batch_id = ${batchId} returning batch_id)
    update batch_chunk set state = 'done', holder = null, due_at = null
    where (select count(*) from ended) >= 0 and batch_id = ${batchId} and state <> 'done'`.execute(tx);
}

/** held → done. Returns false when the claim was lost. */
export async function closeChunk(tx: Transaction<Database>, claim: ChunkClaim): Promise<boolean> {
  const { numUpdatedRows } = await ofClaim(tx, claim).set({ state: 'done', holder: null }).executeTakeFirst();
  return numUpdatedRows > 0n;
}

/**
 * held → ready, with the first half of its lines without a result; the rest become a new chunk that is ready too. Both
 * have the whole byte range, because the beginning of a line is only known after reading it. Their first claims do not
 * count as claims after a crash. The caller holds the turn (`lockLines`) and the claim.
 */
export async function splitChunk(
  tx: Transaction<Database>,
  turn: Readied,
  chunk: ChunkRow,
  [first, rest]: readonly [Half, Half],
): Promise<void> {
  const { rows } = await sql<{ next: number }>`
    select max(chunk) + 1 as next from batch_chunk where batch_id = ${chunk.batch_id}`.execute(tx);
  const half = { state: 'ready' as const, claim_end: 'clean' as const, settled_before: 0, claims_without_progress: 0 };
  await tx
    .insertInto('batch_chunk')
    .values({
      ...half,
      ...rest,
      batch_id: chunk.batch_id,
      chunk: rows[0]?.next ?? 0,
      byte_offset: chunk.byte_offset,
      byte_length: chunk.byte_length,
      range_first_line: chunk.range_first_line,
      claim: chunk.claim,
    })
    .execute();
  await tx
    .updateTable('batch_chunk')
    .set({ ...half, ...first, holder: null })
    .where('batch_id', '=', chunk.batch_id)
    .where('chunk', '=', chunk.chunk)
    .execute();
  await addReady(tx, [{ ...turn, chunks: 2 }]);
}

export type Half = Pick<ChunkRow, 'first_line' | 'line_count' | 'settled' | 'repeated'>;

/** Locks the turns of batches. */
export async function lockTurns(
  tx: Transaction<Database>,
  batchIds: readonly string[],
): Promise<(Readied & { work: string })[]> {
  if (batchIds.length === 0) return [];
  return await tx
    .selectFrom('batch_turn')
    .select(['batch_id', 'workspace_id', 'lane', 'work'])
    .where('batch_id', 'in', batchIds)
    .orderBy('batch_id')
    .forUpdate()
    .execute();
}

/** Locks the turn of a batch. undefined: none of its lines is to be claimed any more. */
export async function lockLines(tx: Transaction<Database>, batchId: string): Promise<Readied | undefined> {
  const [turn] = await lockTurns(tx, [batchId]);
  return turn?.work === 'lines' ? turn : undefined;
}

async function addReady(tx: Transaction<Database>, turns: readonly (Readied & { chunks: number })[]): Promise<void> {
  const readied = turns.filter(({ chunks }) => chunks > 0);
  if (readied.length === 0) return;
  await sql`
    update batch_turn set ready = ready + more.chunks
    from unnest(${readied.map((row) => row.batch_id)}::text[], ${readied.map(({ chunks }) => chunks)}::int[])
      as more (batch_id, chunks)
    where batch_turn.batch_id = more.batch_id`.execute(tx);
  for (const workspaceId of new Set(readied.map((row) => row.workspace_id))) await activate(tx, 'lines', workspaceId);
}

const ofClaim = (tx: Transaction<Database>, { batch_id, chunk, claim, holder }: ChunkClaim) =>
  tx
    .updateTable('batch_chunk')
    .where('batch_id', '=', batch_id)
    .where('chunk', '=', chunk)
    .where('claim', '=', claim)
    .where('holder', '=', holder);

/** How many chunks of a batch are not done. */
export async function countOpenChunks(tx: Transaction<Database>, { id }: Pick<BatchRow, 'id'>): Promise<number> {
  const row = await tx
    .selectFrom('batch_chunk')
    .select((of) => of.fn.countAll<number>().as('open'))
    .where('batch_id', '=', id)
    .where('state', '<>', 'done')
    .executeTakeFirstOrThrow();
  return row.open;
}
