import { sql, type Kysely, type Transaction } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import { GatewayError } from '#libs/kernel/errors.ts';

/** What one workspace may have open at once, so that it leaves room to others. */
export type BatchLimits = {
  openBatchesMax: number;
  /** Lines of open batches that have no result yet. */
  queuedLinesMax: number;
};

// Batches end by themselves, but not in seconds.
const retryAfterMs = 60_000;

/** Open batches and their lines without a result, from an index of open batches: as many rows as `openBatchesMax` at most. */
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

// More transactions than there are connections to the database: so many that do not see each other stay within the limit.
const concurrentMax = 500;

/** Until the end of the transaction no other one near a limit of the workspace counts: it will see what this one adds. */
async function countExclusively(
  tx: Transaction<Database>,
  workspaceId: string,
  limits: BatchLimits,
): Promise<{ batches: number; lines: number }> {
  await sql`select pg_advisory_xact_lock(hashtextextended(${`admission ${workspaceId}`}, 0))`.execute(tx);
  return await countOpen(tx, workspaceId, limits.openBatchesMax);
}

/**
 * Throws rate_limited when a workspace has as much open as it may; to be asked in the transaction that opens the batch. Far
 * from the limit nobody waits for another; near it they come one after the other, so that it is never passed. Lines of a
 * file count once it was checked (`canQueueLines`).
 */
export async function admitBatch(tx: Transaction<Database>, workspaceId: string, limits: BatchLimits): Promise<void> {
  let open = await countOpen(tx, workspaceId, limits.openBatchesMax);
  const isNear = open.batches + concurrentMax >= limits.openBatchesMax;
  if (isNear && open.batches < limits.openBatchesMax) open = await countExclusively(tx, workspaceId, limits);
  const { batches, lines } = open;
  if (batches >= limits.openBatchesMax) {
    const message = `This workspace has ${batches} batches that have not ended, as many as it may. Create this one when some have.`;
    throw new GatewayError('rate_limited', 'too_many_open_batches', message, { retryAfterMs });
  }
  if (lines >= limits.queuedLinesMax) {
    const message = `Batches of this workspace have ${lines} lines to do, of ${limits.queuedLinesMax} that it may. Create this one when some are done.`;
    throw new GatewayError('rate_limited', 'too_many_queued_lines', message, { retryAfterMs });
  }
}

/**
 * Whether a batch may begin with its lines beside those that the workspace has to do; to be asked in the transaction that
 * begins it. Near the limit, as `admitBatch`; by what is begun elsewhere in the same moment without that, the limit may be
 * passed, by a five-hundredth each.
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
