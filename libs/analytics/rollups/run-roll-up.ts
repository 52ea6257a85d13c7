import { sql, type Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import { createBackgroundLoop, type BackgroundLoop } from '#libs/kernel/background-loop.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import { sleep } from '#libs/kernel/sleep.ts';
import { hasWork, rollUp } from './roll-up.ts';

/** After a pass, the process rests four times as long, so that passes never take more than a fifth of a processor. */
const restFactor = 4;

/**
 * Rolls up the request log in every worker: each pass is made by the one that gets the lease. Changes of the last
 * seconds are processed together, because a minute is computed again from all of its rows.
 */
export function createRollUpRunner(deps: {
  db: Kysely<Database>;
  /** The clock of the database. */
  now: () => number;
  logRetentionMs: number;
  /** The time between two passes. */
  intervalMs: number;
  logger: Logger;
}): BackgroundLoop {
  const { db, now, logRetentionMs, intervalMs, logger } = deps;

  async function run(signal: AbortSignal): Promise<void> {
    for (let hasMore = true; hasMore && !signal.aborted && (await hasWork(db));) {
      const startedMs = performance.now();
      ({ hasMore } = await rollUp(db, { nowMs: now(), logRetentionMs }));
      await sleep(restFactor * (performance.now() - startedMs), signal);
    }
  }

  return createBackgroundLoop({ name: 'analytics rollups', periodMs: intervalMs, run, logger });
}

export type RollupLag = { changes: number; seconds: number };
/** Further reports are not counted. */
const changesCountedMax = 10_000;

/** Reports of changes that wait to be rolled up, and the seconds since the last pass if there are any. */
export async function readRollupLag(db: Kysely<Database>): Promise<RollupLag> {
  const { rows } = await sql<RollupLag>`
    select changes, case when changes = 0 then 0
      else coalesce(extract(epoch from clock_timestamp() - rolled_up_at)::float8, 0) end as seconds
    from rollup_state, (
      select count(*)::int as changes from (select from request_log_change limit ${changesCountedMax}) as counted
    ) as waiting`.execute(db);
  return rows[0] ?? { changes: 0, seconds: 0 };
}
