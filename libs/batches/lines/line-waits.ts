import type { Wait } from '#libs/calls/call.ts';
import type { LineWait } from '#libs/database/schema.ts';
import { createBackgroundLoop } from '#libs/kernel/background-loop.ts';
import type { Part } from '#libs/kernel/lifecycle.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';

/** The waits of this process's lines: counts for metrics, and from time to time a log line for each batch. */
export type LineWaits = Part & {
  /** A line of the batch begins to wait. Returns a function to call when the wait is over. */
  begin(batchId: string, what: Wait): () => void;
  /** How many lines are waiting, by reason. */
  counts(): Record<Wait['reason'], number>;
  /** The waits of each batch's lines, sorted by their numbers of lines, largest first. */
  byBatch(): { batchId: string; waits: LineWait[] }[];
};

type Group = { what: Wait; waits: Set<{ untilMs: number | null }>; sinceMs: number };
type WaitingBatch = { sinceMs: number; groups: Map<string, Group> };

/** Shorter waits are not logged, because they end before anyone could investigate. */
const reportAfterMs = 5_000;
const reportEveryMs = 60_000;
const shownWaitsMax = 10;

/** Logs each waiting batch at most once a minute, with what most of its lines wait for. */
export function createLineWaits({ logger, now }: { logger: Logger; now: () => number }): LineWaits {
  const counts = {
    rate_limited: 0,
    budget_used_up: 0,
    circuit_open: 0,
    provider_busy: 0,
    retry: 0,
    gateway: 0,
    secret_unavailable: 0,
  };
  const batches = new Map<string, WaitingBatch>();
  /** When each batch was last logged. Retained for a minute even if it stops waiting, because waits come and go. */
  const reportedMs = new Map<string, number>();

  function report(): void {
    const nowMs = now();
    for (const [batchId, atMs] of reportedMs) if (nowMs - atMs >= reportEveryMs) reportedMs.delete(batchId);
    for (const [batchId, batch] of batches) {
      if (nowMs - batch.sinceMs < reportAfterMs || reportedMs.has(batchId)) continue;
      reportedMs.set(batchId, nowMs);
      const groups = [...batch.groups.values()];
      const lines = groups.reduce((sum, group) => sum + group.waits.size, 0);
      const most = groups.reduce((a, b) => (b.waits.size > a.waits.size ? b : a));
      const { reason, label, model } = most.what;
      const untilMs = soonest(most);
      const until = untilMs === null ? null : new Date(untilMs).toISOString();
      const cause = label === null ? 'the database' : `${label}${model === null ? '' : `, model ${model}`}`;
      const ofKey = reason !== 'secret_unavailable';
      logger.info(
        { batch_id: batchId, lines, reason, virtual_key: ofKey ? label : null, model, until },
        `batch is waiting: ${lines} lines are waiting, ${most.waits.size} of them for ${cause} (${reason}${until === null ? '' : ` until ${until}`})`,
      );
    }
  }

  return {
    ...createBackgroundLoop({ name: 'line waits', periodMs: 1_000, run: report, logger }),
    begin(batchId, what) {
      counts[what.reason] += 1;
      let batch = batches.get(batchId);
      if (!batch) {
        batch = { sinceMs: now(), groups: new Map() };
        batches.set(batchId, batch);
      }
      const waiting = batch;
      const key = JSON.stringify([what.reason, what.label, what.model]);
      let group = waiting.groups.get(key);
      if (!group) {
        group = { what, waits: new Set(), sinceMs: now() };
        waiting.groups.set(key, group);
      }
      // The newest one names the amounts that are left now.
      group.what = what;
      const joined = group;
      const wait = { untilMs: what.untilMs };
      joined.waits.add(wait);
      return () => {
        counts[what.reason] -= 1;
        joined.waits.delete(wait);
        if (joined.waits.size > 0) return;
        waiting.groups.delete(key);
        if (waiting.groups.size === 0) batches.delete(batchId);
      };
    },
    counts: () => ({ ...counts }),
    byBatch: () =>
      [...batches].map(([batchId, { groups }]) => ({
        batchId,
        waits: [...groups.values()]
          .toSorted((a, b) => b.waits.size - a.waits.size)
          .slice(0, shownWaitsMax)
          .map((group) => {
            const { reason, label, model, budget = null } = group.what;
            const counted = { lines: group.waits.size, since_ms: group.sinceMs, until_ms: soonest(group) };
            return { reason, label, model, budget, ...counted };
          }),
      })),
  };
}

/** When the first of these lines is called again. null: that is not known. */
function soonest({ waits }: Group): number | null {
  let found: number | null = null;
  for (const { untilMs } of waits) if (untilMs !== null && (found === null || untilMs < found)) found = untilMs;
  return found;
}
