import type { PricingAdjustments } from '#libs/prices/adjustments.ts';

/** Price adjustments as answers have them: multipliers are numbers there, and exact texts where they are stored. */
export function shownAdjustments(adjustments: PricingAdjustments | null | undefined): object | null {
  if (adjustments === null || adjustments === undefined) return null;
  const { multiplier, ...rest } = adjustments;
  if (multiplier === undefined) return rest;
  const factors = Object.entries(multiplier).map(([component, factor]) => [component, Number(factor)]);
  return { ...rest, multiplier: Object.fromEntries(factors) as object };
}
