import type { Kysely } from 'kysely';
import { isTerminal } from '#libs/batches/batch/batch.ts';
import type { BatchStatus, Database } from '#libs/database/schema.ts';
import { sleep } from '#libs/kernel/sleep.ts';

export type Observation = { status: BatchStatus; total: number; done: number };

/** Polls a batch in the database at short intervals, so that a fault can strike at a named moment. */
export type Observer = {
  latest(): Observation | undefined;
  /** Resolves with true when the condition holds, and with false when the batch ended (or `stop` was called) first. */
  until(holds: (now: Observation) => boolean): Promise<boolean>;
  /** The longest time without a change of status or counts, in milliseconds. */
  longestStallMs(): number;
  stop(): Promise<void>;
};

const intervalMs = 8;

export function observeBatch(db: Kysely<Database>, batchId: string): Observer {
  let latest: Observation | undefined;
  let ended = false;
  let longestStallMs = 0;
  let changedAt = performance.now();
  const stopped = new AbortController();
  const waiters = new Set<() => void>();
  const notify = (): void => {
    for (const wake of waiters) wake();
  };

  const follow = async (): Promise<void> => {
    while (!stopped.signal.aborted && !ended) {
      const row = await db
        .selectFrom('batch')
        .select(['status', 'total', 'completed', 'failed'])
        .where('id', '=', batchId)
        .executeTakeFirst()
        .catch(() => undefined); // the database is away, which is what this is about
      if (row) {
        const next = { status: row.status, total: row.total, done: row.completed + row.failed };
        if (latest?.status !== next.status || latest.done !== next.done) {
          const now = performance.now();
          longestStallMs = Math.max(longestStallMs, now - changedAt);
          changedAt = now;
          latest = next;
          ended = isTerminal(next.status);
          notify();
        }
      }
      await sleep(intervalMs, stopped.signal);
    }
    notify();
  };
  const following = follow();

  return {
    latest: () => latest,
    until: (holds) =>
      new Promise((resolve) => {
        const look = (): void => {
          const met = latest !== undefined && holds(latest);
          if (!met && !ended && !stopped.signal.aborted) return;
          waiters.delete(look);
          resolve(met);
        };
        waiters.add(look);
        look();
      }),
    longestStallMs: () => longestStallMs,
    async stop() {
      stopped.abort();
      await following;
    },
  };
}
