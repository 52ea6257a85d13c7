import { sql, type Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import { createBackgroundLoop, type BackgroundLoop } from '#libs/kernel/background-loop.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import { newId } from '#libs/kernel/ids.ts';
import type { LineWaits } from './line-waits.ts';

const intervalMs = 2_000;

/**
 * Writes the waits of this worker's lines into a table, so that GET /v1/batches/{id} can explain why a batch makes no
 * progress. Reports of processes that have ended become too old to be shown and are deleted by the others.
 */
export function createWaitReporter(deps: {
  db: Kysely<Database>;
  waits: Pick<LineWaits, 'byBatch'>;
  /** How far the database's clock is ahead of the clock of the waits. */
  aheadMs: () => number;
  logger: Logger;
}): BackgroundLoop {
  const processId = newId('process_');
  let reported = 0;

  async function report(): Promise<'idle' | undefined> {
    const waiting = inDatabaseTime(deps.waits.byBatch(), deps.aheadMs());
    if (waiting.length === 0 && reported === 0) return 'idle';
    await writeReport(deps.db, processId, waiting);
    reported = waiting.length;
    return undefined;
  }

  return createBackgroundLoop({ name: 'wait reporter', periodMs: intervalMs, run: report, logger: deps.logger });
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
  waiting: ReturnType<LineWaits['byBatch']>,
): Promise<void> {
  const ids = waiting.map(({ batchId }) => batchId);
  await sql`
    with gone as (
      delete from batch_line_wait where batch_id <> all(${ids}::text[])
        and (process_id = ${processId} or reported_at < now() - interval '1 minute')
    )
    insert into batch_line_wait (batch_id, process_id, workspace_id, waits, reported_at)
    select batch.id, ${processId}, batch.workspace_id, report.waits, now()
    from unnest(${ids}::text[], ${waiting.map(({ waits }) => JSON.stringify(waits))}::jsonb[]) as report (batch_id, waits)
    join batch on batch.id = report.batch_id
    on conflict (batch_id, process_id) do update set waits = excluded.waits, reported_at = excluded.reported_at`.execute(
    db,
  );
}
