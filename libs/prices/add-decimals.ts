import { formatAmount, parseAmount } from '#libs/kernel/amount.ts';

/** Returns the sum of two amounts of US cents as decimals; null counts as 0. */
export const addDecimals = (one: string | null, other: string): string =>
  one === null ? other : formatAmount(parseAmount(one) + parseAmount(other));
