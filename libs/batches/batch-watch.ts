import type { Kysely } from 'kysely';
import type { BatchStatus, Database } from '#libs/database/schema.ts';
import type { Part } from '#libs/kernel/lifecycle.ts';
import type { Logger } from '#libs/kernel/logger.ts';

/**
 * Notices within a second that a batch has changed its status, so that a worker starts no more of its lines. One query per
 * interval covers all batches of the process.
 */
export type BatchWatch = Part & {
  /** `signal` aborts when the batch leaves `status`. Call `unwatch` when the work on the batch is over. */
  watch(batchId: string, status: BatchStatus): { signal: AbortSignal; unwatch: () => void };
};

type Watched = { batchId: string; status: BatchStatus; controller: AbortController; watchers: number };

export function createBatchWatch(deps: { db: Kysely<Database>; logger: Logger; intervalMs: number }): BatchWatch {
  const { db, logger, intervalMs } = deps;
  // Keyed by batch and status: a validation that runs twice may still watch `validating` while the lines already run.
  const watched = new Map<string, Watched>();
  let timer: NodeJS.Timeout | undefined;
  let polling = false;

  async function poll(): Promise<void> {
    if (polling || watched.size === 0) return;
    polling = true;
    // Entries added while the query runs are left out: its answer may be older than what they know.
    const polled = [...watched.values()];
    try {
      const rows = await db
        .selectFrom('batch')
        .select(['id', 'status'])
        .where('id', 'in', [...new Set(polled.map((entry) => entry.batchId))])
        .execute();
      const statuses = new Map(rows.map((row) => [row.id, row.status]));
      for (const { batchId, status, controller } of polled) if (statuses.get(batchId) !== status) controller.abort();
    } catch (error) {
      logger.warn({ err: error }, 'batch watch is waiting for the database');
    } finally {
      polling = false;
    }
  }

  return {
    name: 'batch watch',
    start() {
      timer ??= setInterval(() => void poll(), intervalMs);
    },
    stop() {
      clearInterval(timer);
      timer = undefined;
    },
    watch(batchId, status) {
      const key = `${batchId}/${status}`;
      let entry = watched.get(key);
      if (!entry || entry.controller.signal.aborted) {
        entry = { batchId, status, controller: new AbortController(), watchers: 0 };
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
