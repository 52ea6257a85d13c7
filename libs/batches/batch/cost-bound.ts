import { Big } from 'big.js';
import { LRUCache } from 'lru-cache';
import type { CallBound } from '#libs/calls/admission.ts';
import { byWorker } from '#libs/event-log/by-worker.ts';
import type { EventLog } from '#libs/event-log/event-log.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import { budgetRule, type LimitRule } from '#libs/limits/limit-rule.ts';
import { decideBatch } from './batch.ts';
import { batchModel, type BatchRow } from './batch-model.ts';
import { appendAndFollow, closeIfOver, type FollowDeps } from '../chunks/follow-status.ts';
import { readBounds } from './bounds.ts';

type Known = { version: number; max: string | null; rule: LimitRule | null };

const knownMax = 10_000;
const dayMs = 86_400_000;

/**
 * The cost bounds of batches, as budgets that only the calls of one batch draw from. Each call reserves its estimate from
 * leases that all processes share (libs/limits), so together they exceed a bound only by what calls cost beyond their
 * estimates. When what is left does not cover the next call, the batch is paused or cancelled.
 */
export function createCostBounds(
  deps: FollowDeps & { eventLog: EventLog; logger: Logger },
): (batch: BatchRow) => CallBound | null {
  const known = new LRUCache<string, Known>({ max: knownMax });
  const reaching = new Set<string>();

  /** The bound of the newest row that this process has seen: lines can wait while their batch gets another bound. */
  function learn(batch: BatchRow): Known {
    const before = known.get(batch.id);
    if (before !== undefined && before.version >= batch.version) return before;
    const max = readBounds(batch)?.max_cost ?? null;
    // The same object as long as the bound is the same: counters are compared by it.
    const rule = before?.max === max ? before.rule : max === null ? null : toRule(batch, max);
    const now = { version: batch.version, max, rule };
    known.set(batch.id, now);
    return now;
  }

  async function stop({ id, workspace_id: workspaceId }: BatchRow, max: string): Promise<void> {
    if (reaching.has(id)) return;
    reaching.add(id);
    try {
      const row = await deps.eventLog.transact(
        { workspaceId, streams: [id], model: batchModel, metadata: byWorker },
        async (unit) => {
          const batch = (await unit.load(batchModel, id)) as BatchRow;
          const events = decideBatch(batch, { type: 'reach_max_cost', max }, unit.now);
          if (events.length === 0) return batch;
          const after = await appendAndFollow(deps, unit, batch, events);
          return after.status === 'cancelling' ? await closeIfOver(deps, unit, after) : after;
        },
      );
      learn(row);
    } catch (error) {
      deps.logger.warn(
        { err: error, batch_id: id },
        'the batch could not be stopped at its max_cost, and its lines wait',
      );
    } finally {
      reaching.delete(id);
    }
  }

  return (batch) => {
    if (readBounds(batch)?.max_cost == null && !known.has(batch.id)) return null;
    return {
      rule: () => learn(batch).rule,
      onReached() {
        const { max } = learn(batch);
        if (max !== null) void stop(batch, max);
      },
    };
  };
}

function toRule(batch: BatchRow, max: string): LimitRule {
  const { id, workspace_id: workspaceId, created_at: createdAt, expires_at: expiresAt } = batch;
  const createdAtMs = createdAt.getTime();
  const record = {
    id,
    noun: 'batch',
    workspaceId,
    label: 'max_cost',
    createdAtMs,
    scope: { of: 'workspace' as const },
  };
  return budgetRule(record, id, {
    type: 'cost',
    credit_limit: new Big(max).times(100).toFixed(),
    conditions: [],
    group_by: [],
    // A period that ends after the batch, so that its counter is swept.
    periodic_reset_days: Math.ceil((expiresAt.getTime() - createdAtMs) / dayMs) + 2,
  });
}
