import { hash } from 'node:crypto';
import type { PlanCall, Sticky, WeightedOption } from './plan.ts';

/**
 * Returns the option that a caller or conversation stays with: rendezvous hashing by weight, so that every process chooses the same
 * one, and adding or removing a target moves as few callers as possible. null when the call has none of the fields.
 *
 * With a `ttl` the choice is made again in each period. The periods of different callers begin at different times.
 */
export function chooseSticky(
  options: readonly WeightedOption[],
  { fields, ttlMs }: Sticky,
  call: PlanCall,
  now: number,
): WeightedOption | null {
  const values = fields.map((read) => read(call) ?? null);
  if (values.every((value) => value === null)) return null;
  const caller = hash('sha256', JSON.stringify(values));
  const period = ttlMs === null ? 0 : Math.floor((now + (Number.parseInt(caller.slice(0, 12), 16) % ttlMs)) / ttlMs);
  let best: WeightedOption | null = null;
  let bestScore = Number.NEGATIVE_INFINITY;
  for (const option of options) {
    // -w / ln(u), u uniform in (0, 1): each option has the highest score with a probability in proportion to its
    // weight.
    const score = -option.weight / Math.log(toUnit(hash('sha256', `${caller}:${period}:${option.key}`)));
    if (score > bestScore) {
      best = option;
      bestScore = score;
    }
  }
  return best;
}

const unitSteps = 2 ** 52;

/** Converts 52 bits of a digest to a number between 0 and 1, both excluded. */
const toUnit = (digest: string): number => (Number.parseInt(digest.slice(0, 13), 16) + 0.5) / unitSteps;
