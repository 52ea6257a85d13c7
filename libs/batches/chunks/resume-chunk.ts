import type { Transaction } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import { byWorker } from '#libs/event-log/by-worker.ts';
import type { EventLog } from '#libs/event-log/event-log.ts';
import { decideBatch } from '../batch/batch.ts';
import { batchModel, type BatchRow } from '../batch/batch-model.ts';
import { lockLines, splitChunk, type ChunkClaim, type ChunkRow, type Half } from './chunk.ts';
import { allRepeated, countSettled, settledOfPart, unsettledLines } from './settled-lines.ts';

export type Resumed =
  /**
   * Run the lines that have no result yet. `isSuspect`: one line is left, and it was running each time a worker died.
   * It must only be called while no other suspect runs. Until then its last claim counts as clean (`callSuspect`).
   */
  | { action: 'run'; chunk: ChunkRow; isSuspect: boolean }
  /** Nothing to do: the claim was lost, or the chunk was split in two and both halves are ready. */
  | { action: 'drop' }
  /** The batch starts no more lines. */
  | { action: 'stop' }
  /** One line is left, and its worker died each time it was called: it becomes an error line. */
  | { action: 'poison'; chunk: ChunkRow; line: number };

/** After this many claims in a row without a new result, a chunk is split in two. */
const failedClaimsBeforeSplit = 2;
/**
 * After this many, a single line is given up. The number is larger than for a split, because the user loses a line: a
 * machine that crashes a few times for another reason, while the line waits for a long answer, must not make it a
 * poison line.
 */
const failedClaimsBeforePoison = 5;

/** Whether a chunk was claimed before. */
export const isClaimedAgain = ({ claim }: Pick<ChunkRow, 'claim'>): boolean => claim > 1;

/**
 * Resumes a chunk that was claimed before. Records how many of its lines can be called again, unless none was running.
 * When claims repeatedly end with their process and without a new result, the chunk is split until the line that kills
 * its worker is alone. A claim that its worker ended itself does not count. `claimed`: the chunk as it was claimed, so
 * that a repetition, after a lost answer, does not count twice.
 */
export async function resumeChunk(
  eventLog: EventLog,
  batch: Pick<BatchRow, 'id' | 'workspace_id'>,
  claimed: ChunkRow & { holder: string },
): Promise<Resumed> {
  const command = { workspaceId: batch.workspace_id, streams: [batch.id], model: batchModel, metadata: byWorker };
  return await eventLog.transact(command, async (unit) => {
    const state = (await unit.load(batchModel, batch.id)) as BatchRow;
    const turn = await lockLines(unit.tx, batch.id);
    const now = await readClaimed(unit.tx, claimed);
    if (now === undefined) return { action: 'drop' };
    // Only a process that died knew which lines it was calling.
    const repeated = claimed.claim_end === null ? allRepeated(claimed.line_count) : claimed.repeated;
    const chunk = { ...claimed, settled: now.settled, repeated };
    if (turn === undefined) return { action: 'stop' };
    const settled = countSettled(chunk.settled);
    const unsettled = chunk.line_count - settled;
    if (chunk.claim_end !== 'clean') {
      const record = { type: 'record_redelivery' as const, chunk: chunk.chunk, attempt: chunk.claim - 1, unsettled };
      await unit.append(batchModel, batch.id, decideBatch(state, record, unit.now));
    }
    const before = chunk.claims_without_progress;
    const failedClaims = settled > chunk.settled_before ? 0 : chunk.claim_end === null ? before + 1 : before;
    if (failedClaims >= failedClaimsBeforeSplit && unsettled > 1) {
      await splitChunk(unit.tx, turn, chunk, halves(chunk));
      return { action: 'drop' };
    }
    const isAlone = unsettled === 1;
    const isPoison = isAlone && failedClaims >= failedClaimsBeforePoison;
    // If two suspects ran at the same time, it would not be clear which one caused a crash. From here on, only one of
    // them is called at a time, and a crash while it waits for its turn does not count.
    const isSuspect = isAlone && !isPoison && failedClaims >= failedClaimsBeforeSplit;
    await setClaim(unit.tx, claimed, {
      repeated,
      claim_end: isSuspect ? 'clean' : null,
      settled_before: settled,
      claims_without_progress: failedClaims,
    });
    if (isPoison) return { action: 'poison', chunk, line: unsettledLines(chunk)[0] as number };
    return { action: 'run', chunk, isSuspect };
  });
}

/** A suspect is called now: a crash counts. */
export async function callSuspect(db: Parameters<typeof setClaim>[0], claim: ChunkClaim): Promise<void> {
  await setClaim(db, claim, { claim_end: null });
}

async function readClaimed(tx: Transaction<Database>, claim: ChunkClaim): Promise<ChunkRow | undefined> {
  return await tx
    .selectFrom('batch_chunk')
    .selectAll()
    .where('batch_id', '=', claim.batch_id)
    .where('chunk', '=', claim.chunk)
    .where('holder', '=', claim.holder)
    .where('claim', '=', claim.claim)
    .forUpdate()
    .executeTakeFirst();
}

async function setClaim(
  db: Pick<Transaction<Database>, 'updateTable'>,
  { batch_id, chunk, holder, claim }: ChunkClaim,
  change: Partial<Pick<ChunkRow, 'repeated' | 'claim_end' | 'settled_before' | 'claims_without_progress'>>,
): Promise<void> {
  await db
    .updateTable('batch_chunk')
    .set(change)
    .where('batch_id', '=', batch_id)
    .where('chunk', '=', chunk)
    .where('holder', '=', holder)
    .where('claim', '=', claim)
    .execute();
}

/** The chunk up to the middle of its lines without a result, and the rest. */
function halves(chunk: ChunkRow): [Half, Half] {
  const open = unsettledLines(chunk);
  const middle = open[Math.floor(open.length / 2)] as number;
  const first = { first_line: chunk.first_line, line_count: middle - chunk.first_line };
  const rest = { first_line: middle, line_count: chunk.first_line + chunk.line_count - middle };
  const bitsOf = (part: typeof first) => ({
    settled: settledOfPart(chunk, part),
    repeated: chunk.repeated && settledOfPart({ ...chunk, settled: chunk.repeated }, part),
  });
  return [
    { ...first, ...bitsOf(first) },
    { ...rest, ...bitsOf(rest) },
  ];
}
