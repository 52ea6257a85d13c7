import { sql, type Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import { createBackgroundLoop, type BackgroundLoop } from '#libs/kernel/background-loop.ts';
import { steadyClock, type Clock } from '#libs/kernel/clock.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import { newId } from '#libs/kernel/ids.ts';
import type { LineWaits } from './line-waits.ts';

const intervalMs = 2_000;
const batchesMax = 1_000;

/** What the lines of a batch do in one process. */
type BatchReport = ReturnType<LineWaits['byBatch']>[number] & { calls: number };

/**
 * Writes the running calls and the waits of this worker's lines into a table, so that GET /v1/batches/{id} can show them
 * and explain why a batch makes no progress. Reports of processes that have ended become too old to be shown and are
 * deleted by the others.
 */
export function createLineReporter(deps: {
  db: Kysely<Database>;
  waits: Pick<LineWaits, 'byBatch'>;
  /** The running calls of each batch that has some. */
  calls: () => ReadonlyMap<string, number>;
  /** The database's clock. Waits have the steady clock of the process. */
  clock: Clock;
  logger: Logger;
}): BackgroundLoop {
  const processId = newId('process_');
  let reported = 0;

  async function report(): Promise<'idle' | undefined> {
    const reports = combine(inDatabaseTime(deps.waits.byBatch(), deps.clock.now() - steadyClock.now()), deps.calls());
    if (reports.length === 0 && reported === 0) return 'idle';
    await writeReport(deps.db, processId, reports);
    reported = reports.length;
    return undefined;
  }

  return createBackgroundLoop({ name: 'line reporter', periodMs: intervalMs, run: report, logger: deps.logger });
}

function combine(waiting: ReturnType<LineWaits['byBatch']>, calls: ReadonlyMap<string, number>): BatchReport[] {
  const waitsOf = new Map(waiting.map(({ batchId, waits }) => [batchId, waits]));
  const ids = [...new Set([...waitsOf.keys(), ...calls.keys()])].slice(0, batchesMax);
  return ids.map((batchId) => ({ batchId, waits: waitsOf.get(batchId) ?? [], calls: calls.get(batchId) ?? 0 }));
}

const inDatabaseTime = (all: ReturnType<LineWaits['byBatch']>, aheadMs: number): typeof all =>
  all.map(({ batchId, waits }) => ({
    batchId,
    waits: waits.map((wait) => ({
      ...wait,
      since_ms: Math.round(wait.since_ms + aheadMs),
      until_ms: wait.until_ms === null ? null : Math.round(wait.until_ms + aheadMs),
    })),
  }));

/**
 * Replaces the previous report of the process. One statement, so that a reader never sees half of it.
 *
 * @testOnly
 */
export async function writeReport(
  db: Kysely<Database>,
  processId: string,
  reports: readonly BatchReport[],
): Promise<void> {
  const ids = reports.map(({ batchId }) => batchId);
  await sql`
    with gone as (
      delete from batch_line_report where batch_id <> all(${ids}::text[])
        and (process_id = ${processId} or reported_at < now() - interval '1 minute')
    )
    insert into batch_line_report (batch_id, process_id, workspace_id, calls, waits, reported_at)
    select batch.id, ${processId}, batch.workspace_id, report.calls, report.waits, now()
    from unnest(${ids}::text[], ${reports.map(({ calls }) => calls)}::int[],
      ${reports.map(({ waits }) => JSON.stringify(waits))}::jsonb[]) as report (batch_id, calls, waits)
    join batch on batch.id = report.batch_id
    on conflict (batch_id, process_id) do update
      set calls = excluded.calls, waits = excluded.waits, reported_at = excluded.reported_at`.execute(db);
}
