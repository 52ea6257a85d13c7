import type { Kysely } from 'kysely';
import type { BatchStatus, Database } from '#libs/database/schema.ts';
import type { Part } from '#libs/kernel/lifecycle.ts';
import type { Logger } from '#libs/kernel/logger.ts';

/**
 * Tells a worker, within a second, that a batch it works on starts no more lines: one query an interval for all of
 * them, none a line.
 */
export type BatchWatch = Part & {
  /** A signal that aborts when the batch leaves `status`; `unwatch` when the work on it is over. */
  watch(batchId: string, status: BatchStatus): { signal: AbortSignal; unwatch: () => void };
};

type Watched = { batchId: string; status: BatchStatus; controller: AbortController; watchers: number };

export function createBatchWatch(deps: { db: Kysely<Database>; logger: Logger; intervalMs: number }): BatchWatch {
  const { db, logger, intervalMs } = deps;
  // By batch and status: a validation that runs twice may still watch for `validating` when the lines already run.
  const watched = new Map<string, Watched>();
  let timer: NodeJS.Timeout | undefined;
  let polling = false;

  async function poll(): Promise<void> {
    if (polling || watched.size === 0) return;
    polling = true;
    // Not those who come while the answer is under way: it may be older than what they know.
    const asked = [...watched.values()];
    try {
      const rows = await db
        .selectFrom('batch')
        .select(['id', 'status'])
        .where('id', 'in', [...new Set(asked.map((entry) => entry.batchId))])
        .execute();
      const statuses = new Map(rows.map((row) => [row.id, row.status]));
      for (const { batchId, status, controller } of asked) if (statuses.get(batchId) !== status) controller.abort();
    } catch (error) {
      logger.warn({ err: error }, 'batch watch waits for the database');
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
