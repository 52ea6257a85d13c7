import { sql, type Kysely } from 'kysely';
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

/**
 * Throws rate_limited when a workspace has as much open as it may. Calls that run side by side do not see each other: there
 * may be as many more as these are. Lines of a file count once it was checked (`hasRoomForLines`).
 */
export async function admitBatch(db: Kysely<Database>, workspaceId: string, limits: BatchLimits): Promise<void> {
  const { batches, lines } = await countOpen(db, workspaceId, limits.openBatchesMax);
  if (batches >= limits.openBatchesMax) {
    const message = `This workspace has ${batches} batches that have not ended, as many as it may. Create this one when some have.`;
    throw new GatewayError('rate_limited', 'too_many_open_batches', message, { retryAfterMs });
  }
  if (lines >= limits.queuedLinesMax) {
    const message = `Batches of this workspace have ${lines} lines to do, of ${limits.queuedLinesMax} that it may. Create this one when some are done.`;
    throw new GatewayError('rate_limited', 'too_many_queued_lines', message, { retryAfterMs });
  }
}

/** Whether a batch may begin with its lines beside those that the workspace has to do. */
export async function hasRoomForLines(
  db: Kysely<Database>,
  workspaceId: string,
  lineCount: number,
  limits: BatchLimits,
): Promise<boolean> {
  const { lines } = await countOpen(db, workspaceId, limits.openBatchesMax);
  return lines + lineCount <= limits.queuedLinesMax;
}
