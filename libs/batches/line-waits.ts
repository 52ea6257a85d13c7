import type { BudgetRefusal, Wait } from '#libs/calls/call.ts';
import type { LineWait } from '#libs/database/schema.ts';
import type { Part } from '#libs/kernel/lifecycle.ts';
import type { Logger } from '#libs/kernel/logger.ts';

/** What the lines of this process wait for: counts for metrics, and from time to time a log line for each batch. */
export type LineWaits = Part & {
  /** A line of the batch begins to wait. Returns a function to call when the wait is over. */
  begin(batchId: string, what: Wait): () => void;
  /** How many lines wait now, by reason. */
  counts(): Record<Wait['reason'], number>;
  /** What the lines of each batch have been waiting for, those waits first in which most lines are. */
  byBatch(): { batchId: string; waits: LineWait[] }[];
};

type Group = { what: Wait; lines: number; sinceMs: number };
type WaitingBatch = { sinceMs: number; groups: Map<string, Group> };

/** Shorter waits are not logged: they are over before anybody could look. */
const reportAfterMs = 5_000;
const reportEveryMs = 60_000;
const shownBatchesMax = 1_000;
const shownWaitsMax = 10;

/**
 * Logs each waiting batch at most once a minute, with what most of its lines wait for, and calls `onBudgetWait` as often if
 * any of them wait for a budget.
 */
export function createLineWaits({
  logger,
  now,
  onBudgetWait,
}: {
  logger: Logger;
  now: () => number;
  onBudgetWait: (batchId: string, refusal: BudgetRefusal) => void;
}): LineWaits {
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
  /** When each batch was last logged. Kept for a minute even if it stops waiting, because waits come and go. */
  const reportedMs = new Map<string, number>();
  let timer: NodeJS.Timeout | undefined;

  function report(): void {
    const nowMs = now();
    for (const [batchId, atMs] of reportedMs) if (nowMs - atMs >= reportEveryMs) reportedMs.delete(batchId);
    for (const [batchId, batch] of batches) {
      if (nowMs - batch.sinceMs < reportAfterMs || reportedMs.has(batchId)) continue;
      reportedMs.set(batchId, nowMs);
      const groups = [...batch.groups.values()];
      const lines = groups.reduce((sum, group) => sum + group.lines, 0);
      const most = groups.reduce((a, b) => (b.lines > a.lines ? b : a));
      const { reason, label, model, untilMs } = most.what;
      const until = untilMs === null ? null : new Date(untilMs).toISOString();
      const cause = label === null ? 'the database' : `${label}${model === null ? '' : `, model ${model}`}`;
      const ofKey = reason !== 'secret_unavailable';
      logger.info(
        { batch_id: batchId, lines, reason, virtual_key: ofKey ? label : null, model, until },
        `batch waits: ${lines} lines wait, ${most.lines} of them for ${cause} (${reason}${until === null ? '' : ` until ${until}`})`,
      );
      const budget = groups.find(({ what }) => what.budget !== undefined)?.what.budget;
      if (budget !== undefined) onBudgetWait(batchId, budget);
    }
  }

  return {
    name: 'line waits',
    start() {
      timer ??= setInterval(report, 1_000).unref();
    },
    stop() {
      clearInterval(timer);
      timer = undefined;
    },
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
        group = { what, lines: 0, sinceMs: now() };
        waiting.groups.set(key, group);
      }
      const joined = group;
      joined.lines += 1;
      // The latest end of these waits: by then all of the lines can go on.
      if (what.untilMs !== null && what.untilMs > (joined.what.untilMs ?? 0)) joined.what = what;
      return () => {
        counts[what.reason] -= 1;
        joined.lines -= 1;
        if (joined.lines > 0) return;
        waiting.groups.delete(key);
        if (waiting.groups.size === 0) batches.delete(batchId);
      };
    },
    counts: () => ({ ...counts }),
    byBatch: () =>
      [...batches].slice(0, shownBatchesMax).map(([batchId, { groups }]) => ({
        batchId,
        waits: [...groups.values()]
          .toSorted((a, b) => b.lines - a.lines)
          .slice(0, shownWaitsMax)
          .map(({ what: { reason, label, model, untilMs }, lines, sinceMs }) => ({
            reason,
            label,
            model,
            lines,
            since_ms: Math.round(sinceMs),
            until_ms: untilMs === null ? null : Math.round(untilMs),
          })),
      })),
  };
}
