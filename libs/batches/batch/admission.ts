import { sql, type Kysely, type Transaction } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import { GatewayError } from '#libs/kernel/errors.ts';

/** The limits of what one workspace can have open, so that other workspaces get their share. */
export type BatchLimits = {
  openBatchesMax: number;
  /** Lines of open batches that have no result yet. */
  queuedLinesMax: number;
};

// Batches take minutes rather than seconds to end.
const retryAfterMs = 60_000;

/** Counts open batches and their lines without a result. Reads at most `openBatchesMax` rows of an index of open batches. */
async function countOpen(
  db: Kysely<Database>,
  workspaceId: string,
  openBatchesMax: number,
): Promise<{ batches: number; lines: number }> {
  const { rows } = await sql<{ batches: number; lines: number }>`
    select count(*)::int as batches, coalesce(sum(total - completed - failed), 0)::int8 as lines from (
      select total, completed, failed from batch
      where workspace_id = ${workspaceId} and status in ('validating', 'in_progress', 'finalizing', 'cancelling')
      limit ${openBatchesMax}
    ) as open`.execute(db);
  return rows[0] ?? { batches: 0, lines: 0 };
}

// More transactions than there are database connections. Counts that are this far below the limit need no lock: the
// transactions that do not see each other yet cannot exceed the limit together.
const concurrentMax = 500;

/** Counts under a lock that is held until the transaction ends, so that the next one to count sees what this one adds. */
async function countExclusively(
  tx: Transaction<Database>,
  workspaceId: string,
  limits: BatchLimits,
): Promise<{ batches: number; lines: number }> {
  await sql`select pg_advisory_xact_lock(hashtextextended(${`admission ${workspaceId}`}, 0))`.execute(tx);
  return await countOpen(tx, workspaceId, limits.openBatchesMax);
}

/**
 * Throws rate_limited when a workspace has reached its limits. Call it in the transaction that creates the batch. Near
 * the limit of batches it takes a lock, so that the limit is never exceeded; far below it, creates do not wait for each
 * other. Lines count once their file was validated (`canQueueLines`).
 */
export async function admitBatch(tx: Transaction<Database>, workspaceId: string, limits: BatchLimits): Promise<void> {
  let open = await countOpen(tx, workspaceId, limits.openBatchesMax);
  const isNear = open.batches + concurrentMax >= limits.openBatchesMax;
  if (isNear && open.batches < limits.openBatchesMax) open = await countExclusively(tx, workspaceId, limits);
  const { batches, lines } = open;
  if (batches >= limits.openBatchesMax) {
    const message = `This workspace has ${batches} open batches, the maximum. Try again when some have ended.`;
    throw new GatewayError('rate_limited', 'too_many_open_batches', message, { retryAfterMs });
  }
  if (lines >= limits.queuedLinesMax) {
    const message = `The open batches of this workspace have ${lines} lines left. The maximum is ${limits.queuedLinesMax}. Try again when some lines are done.`;
    throw new GatewayError('rate_limited', 'too_many_queued_lines', message, { retryAfterMs });
  }
}

/**
 * Whether a workspace can have this many more lines queued. Call it in the transaction that starts the batch. Takes a
 * lock as `admitBatch` does, except for batches of less than a five-hundredth of the limit. If several of those start
 * at the same moment, each can exceed the limit by its lines.
 */
export async function canQueueLines(
  tx: Transaction<Database>,
  workspaceId: string,
  lineCount: number,
  limits: BatchLimits,
): Promise<boolean> {
  let { lines } = await countOpen(tx, workspaceId, limits.openBatchesMax);
  if (lines + lineCount > limits.queuedLinesMax) return false;
  if (lines + lineCount > limits.queuedLinesMax / concurrentMax)
    ({ lines } = await countExclusively(tx, workspaceId, limits));
  return lines + lineCount <= limits.queuedLinesMax;
}
