import type { Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import { createInsertRows } from '#libs/request-log/write/insert-rows.ts';
import type { RequestLogEntry } from '#libs/request-log/row/log-entry.ts';
import { newLogUuid, utcDay } from '#libs/request-log/row/log-id.ts';
import { ensureLogPartition } from '#libs/request-log/write/log-partitions.ts';
import { packRows } from '#libs/request-log/write/pack-rows.ts';
import type { Kept } from '#libs/analytics/choose-buckets.ts';
import { logKeptFrom, readRollupState, rollUp } from '#libs/analytics/rollups/roll-up.ts';
import { readRollupKeys } from '#libs/analytics/rollups/rollup-keys.ts';
import { logEntry } from '#test/log-entry.ts';

export const minuteMs = 60_000;
export const hourMs = 3_600_000;
export const dayMs = 86_400_000;
export const logRetentionMs = 30 * dayMs;

let sequence = 0;

/** Writes calls into the request log, each recorded at its `at` (epoch ms), as one group of a process. */
export async function writeCalls(
  db: Kysely<Database>,
  calls: readonly (Partial<RequestLogEntry> & { at: number })[],
): Promise<void> {
  const rows = calls.map(({ at, ...entry }) => {
    sequence += 1;
    return { ...logEntry(entry), recorded_on: utcDay(at), id: newLogUuid(at, sequence), sequence };
  });
  if (!db.isTransaction)
    for (const day of new Set(rows.map((row) => row.recorded_on))) await ensureLogPartition(db, day);
  await createInsertRows(db, '019aa631-4c00-7000-8000-000000000001')(packRows(rows));
}

/** Rolls up until nothing is left. */
export async function rollUpAll(db: Kysely<Database>, nowMs: number = Date.now()): Promise<void> {
  for (;;) {
    const { state, hasMore } = await rollUp(db, { nowMs, logRetentionMs, minutesMax: 600 });
    if (state === 'done' && !hasMore) return;
  }
}

/** What a query of a workspace knows of the tables. */
export async function readKept(db: Kysely<Database>, workspaceId: string, now: number): Promise<Kept> {
  const state = await readRollupState(db);
  if (!state) throw new Error('no state');
  return { ...state, keys: await readRollupKeys(db, workspaceId), logFrom: await logKeptFrom(db, 0), now };
}
