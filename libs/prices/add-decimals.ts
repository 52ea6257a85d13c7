import { Big } from 'big.js';
import { formatAmount, isAmount, parseAmount } from '#libs/kernel/amount.ts';

/**
 * Returns the exact sum of two decimals as text; null counts as 0. Costs of early releases can have more decimals than an
 * amount.
 */
export function addDecimals(one: string | null, other: string): string {
  if (one === null) return other;
  const areAmounts = isAmount(one) && isAmount(other);
  return areAmounts ? formatAmount(parseAmount(one) + parseAmount(other)) : new Big(one).plus(other).toFixed();
}
