import type { BatchBounds, BoundName } from '#libs/contracts/batches/batches.ts';
import { Big } from 'big.js';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { BatchTable } from '#libs/database/schema.ts';
import type { Selectable } from 'kysely';

// The model of batches uses these functions, so they do not know it.
type Row = Selectable<BatchTable>;

/** New bounds of a batch. Absent: unchanged; null: none. */
export type NewBounds = { max_cost?: string | null; max_error_rate?: number | null };

type Bounded = Pick<Row, 'gateway_options' | 'bound_reached'>;

const errorRateAfterDefault = 100;

/** The bounds that a batch was created or resumed with; null if it has none. */
export function readBounds({ gateway_options: options, bound_reached: reached }: Bounded): BatchBounds | null {
  const { max_cost: cost, max_error_rate: rate, max_error_rate_after: after, on_bound: action } = options;
  if (cost === undefined && rate === undefined && reached === null) return null;
  return {
    max_cost: typeof cost === 'string' ? cost : null,
    max_error_rate: typeof rate === 'number' ? rate : null,
    max_error_rate_after: typeof after === 'number' ? after : errorRateAfterDefault,
    on_bound: action === 'cancel' ? 'cancel' : 'pause',
    reached,
  };
}

/** The options of a batch with new bounds. */
export function withBounds(options: Row['gateway_options'], bounds: NewBounds): Row['gateway_options'] {
  return Object.fromEntries(Object.entries({ ...options, ...bounds }).filter(([, value]) => value !== null));
}

/** Whether further results bring a running batch above its error rate. */
export function exceedsErrorRate(
  batch: Bounded & Pick<Row, 'status' | 'paused_at' | 'completed' | 'failed'>,
  further: { completed: number; failed: number },
): boolean {
  const bounds = readBounds(batch);
  if (bounds === null || bounds.max_error_rate === null) return false;
  if (batch.status !== 'in_progress' || batch.paused_at !== null) return false;
  const failed = batch.failed + further.failed;
  const settled = failed + batch.completed + further.completed;
  return settled >= bounds.max_error_rate_after && failed > bounds.max_error_rate * settled;
}

/** Throws `conflict` for a batch that a bound has paused, unless the bound is raised or removed. */
export function requireRaised(batch: Bounded, given: NewBounds): void {
  const bounds = readBounds(batch);
  if (bounds === null || bounds.reached === null) return;
  const { reached } = bounds;
  const [before, wanted] = [bounds[reached], given[reached]];
  if (before === null || wanted === null) return;
  if (wanted !== undefined && new Big(wanted).gt(before)) return;
  const message = `The batch has reached its ${describeBound(reached, bounds)}. To resume it, send a higher '${reached}', or null to remove it.`;
  throw new GatewayError('conflict', 'bound_reached', message, { param: reached });
}

/** Names a bound in a sentence. */
export const describeBound = (bound: BoundName, bounds: BatchBounds): string =>
  bound === 'max_cost' ? `max_cost of $${bounds.max_cost}` : `max_error_rate of ${bounds.max_error_rate}`;
