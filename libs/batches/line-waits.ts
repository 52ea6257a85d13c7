import type { Wait } from '#libs/calls/call.ts';
import type { Part } from '#libs/kernel/lifecycle.ts';
import type { Logger } from '#libs/kernel/logger.ts';

/** What the lines of this process wait for: numbers for metrics, and a word in the log for each batch now and then. */
export type LineWaits = Part & {
  /** A line of the batch begins to wait; the function it returns says that the wait is over. */
  begin(batchId: string, what: Wait): () => void;
  /** Lines that wait now, by reason. */
  counts(): Record<Wait['reason'], number>;
};

type Group = { what: Wait; lines: number };
type WaitingBatch = { sinceMs: number; groups: Map<string, Group> };

/** A wait that is over before anybody could look is not worth a line. */
const untoldMs = 5_000;
const againAfterMs = 60_000;

/** Tells of each batch at most once a minute, by the target that most of its lines wait for. */
export function createLineWaits({ logger, now }: { logger: Logger; now: () => number }): LineWaits {
  const counts = { rate_limited: 0, circuit_open: 0, provider_busy: 0, retry: 0, gateway: 0 };
  const batches = new Map<string, WaitingBatch>();
  /** When each was told of last, for as long as that matters: waits come and go. */
  const told = new Map<string, number>();
  let timer: NodeJS.Timeout | undefined;

  function tell(): void {
    const nowMs = now();
    for (const [batchId, toldMs] of told) if (nowMs - toldMs >= againAfterMs) told.delete(batchId);
    for (const [batchId, batch] of batches) {
      if (nowMs - batch.sinceMs < untoldMs || told.has(batchId)) continue;
      told.set(batchId, nowMs);
      const groups = [...batch.groups.values()];
      const lines = groups.reduce((sum, group) => sum + group.lines, 0);
      const most = groups.reduce((a, b) => (b.lines > a.lines ? b : a));
      const { reason, label, model, untilMs } = most.what;
      const until = untilMs === null ? null : new Date(untilMs).toISOString();
      const place = label === null ? 'the database' : `${label}${model === null ? '' : `, model ${model}`}`;
      logger.info(
        { batch_id: batchId, lines, reason, virtual_key: label, model, until },
        `batch waits: ${lines} lines wait, ${most.lines} of them for ${place} (${reason}${until === null ? '' : ` until ${until}`})`,
      );
    }
  }

  return {
    name: 'line waits',
    start() {
      timer ??= setInterval(tell, 1_000).unref();
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
        group = { what, lines: 0 };
        waiting.groups.set(key, group);
      }
      const joined = group;
      joined.lines += 1;
      // Of many moments the latest: when the last of them can go on.
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
  };
}
