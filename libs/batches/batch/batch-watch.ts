import type { Kysely } from 'kysely';
import type { BatchStatus, Database } from '#libs/database/schema.ts';
import { createBackgroundLoop } from '#libs/kernel/background-loop.ts';
import type { Part } from '#libs/kernel/lifecycle.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import { canStartLines } from './batch.ts';

/**
 * Notices within a second that a batch has changed its status or was paused, so that a worker starts no more of its lines. One query per
 * interval covers all batches of the process.
 */
export type BatchWatch = Part & {
  /** `signal` aborts when the batch leaves `state`. Call `unwatch` when the work on the batch is over. */
  watch(batchId: string, state: WatchedState): { signal: AbortSignal; unwatch: () => void };
};

/** `starts_lines`: in progress and not paused. */
type WatchedState = BatchStatus | 'starts_lines';

type Watched = { batchId: string; state: WatchedState; controller: AbortController; watchers: number };

export function createBatchWatch(deps: { db: Kysely<Database>; logger: Logger; intervalMs: number }): BatchWatch {
  const { db, logger, intervalMs } = deps;
  // Keyed by batch and state: a validation that runs twice can still watch `validating` while the lines already run.
  const watched = new Map<string, Watched>();

  async function poll(): Promise<'idle' | undefined> {
    if (watched.size === 0) return 'idle';
    // Entries added while the query runs are left out: its answer can be older than their state.
    const polled = [...watched.values()];
    const rows = await db
      .selectFrom('batch')
      .select(['id', 'status', 'paused_at'])
      .where('id', 'in', [...new Set(polled.map((entry) => entry.batchId))])
      .execute();
    const batches = new Map(rows.map((row) => [row.id, row]));
    for (const { batchId, state, controller } of polled) {
      const batch = batches.get(batchId);
      const isInState = batch && (state === 'starts_lines' ? canStartLines(batch) : batch.status === state);
      if (!isInState) controller.abort();
    }
    return undefined;
  }

  return {
    ...createBackgroundLoop({ name: 'batch watch', periodMs: intervalMs, run: poll, logger }),
    watch(batchId, state) {
      const key = `${batchId}/${state}`;
      let entry = watched.get(key);
      if (!entry || entry.controller.signal.aborted) {
        entry = { batchId, state, controller: new AbortController(), watchers: 0 };
        watched.set(key, entry);
      }
      const held = entry;
      held.watchers += 1;
      return {
        signal: held.controller.signal,
        unwatch() {
          held.watchers -= 1;
          if (held.watchers === 0 && watched.get(key) === held) watched.delete(key);
        },
      };
    },
  };
}
