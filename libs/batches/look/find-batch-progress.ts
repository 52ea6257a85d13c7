import { sql, type Kysely } from 'kysely';
import type { BatchProgress, BatchWait } from '#libs/contracts/batches/batches.ts';
import type { Database } from '#libs/database/schema.ts';
import { readNewest } from '#libs/event-log/read-events.ts';
import { toDollars } from '#libs/prices/to-dollars.ts';
import type { BatchEvent } from '../batch/batch.ts';
import type { BatchRow } from '../batch/batch-model.ts';
import { reportAge } from './find-batch-waits.ts';

/** The rate is measured over this time, or over the last `eventsMax` events if they cover less. */
const windowMs = 60_000;
const eventsMax = 250;

/**
 * Returns the progress of a batch: the rate of its results, when it will have the last of them, and its running calls as
 * workers have reported them.
 */
export async function findBatchProgress(
  db: Kysely<Database>,
  batch: BatchRow,
  waits: readonly BatchWait[],
): Promise<BatchProgress> {
  const { repeated_calls: repeated = 0, repeated_cost: cost } = batch.usage;
  const callsInFlight =
    batch.status === 'in_progress' || batch.status === 'cancelling' ? await countCalls(db, batch) : 0;
  const rate = batch.status === 'in_progress' ? await measureRate(db, batch.id) : null;
  // While nothing is called, the rate of the last minute says nothing about the future.
  const isHeldUp = batch.paused_at !== null || (waits.length > 0 && callsInFlight === 0);
  return {
    eta: rate === null || isHeldUp ? null : expectEnd(batch, rate),
    lines_per_second: rate && Number(rate.linesPerSecond.toPrecision(4)),
    calls_in_flight: callsInFlight,
    repeated_calls: repeated,
    repeated_cost_usd: cost === undefined ? null : toDollars(cost),
  };
}

type Rate = { linesPerSecond: number; nowMs: number };

function expectEnd({ total, completed, failed }: BatchRow, { linesPerSecond, nowMs }: Rate): string | null {
  if (linesPerSecond === 0) return null;
  return new Date(nowMs + ((total - completed - failed) / linesPerSecond) * 1_000).toISOString();
}

async function countCalls(db: Kysely<Database>, { id, workspace_id: workspaceId }: BatchRow): Promise<number> {
  const { rows } = await sql<{ calls: number }>`
    select coalesce(sum(calls), 0)::int as calls from batch_line_report
    where batch_id = ${id} and workspace_id = ${workspaceId} and reported_at > now() - ${reportAge}`.execute(db);
  return rows[0]?.calls ?? 0;
}

/** The results per second since the start of the window, or since the batch was started or resumed. */
async function measureRate(db: Kysely<Database>, batchId: string): Promise<Rate> {
  const { events, now } = await readNewest(db, batchId, { members: ['completed', 'failed'], limit: eventsMax });
  const nowMs = now.getTime();
  let sinceMs = nowMs - windowMs;
  let lines = 0;
  for (const [index, { type, data, recordedAt }] of events.entries()) {
    if (recordedAt.getTime() <= sinceMs) break;
    const isOldest = index === eventsMax - 1;
    if (isOldest || type === 'batch.validated' || type === 'batch.resumed') {
      sinceMs = recordedAt.getTime();
      break;
    }
    if (type !== 'batch.lines_settled') continue;
    const { completed, failed } = data as Extract<BatchEvent, { type: 'batch.lines_settled' }>['data'];
    lines += completed + failed;
  }
  // A moment after its start, a batch has no rate worth the name.
  return { linesPerSecond: lines / (Math.max(1_000, nowMs - sinceMs) / 1_000), nowMs };
}
