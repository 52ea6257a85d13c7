import { Big } from 'big.js';

/** Returns the exact sum of two decimals as text; null counts as 0. */
export const addDecimals = (one: string | null, other: string): string =>
  one === null ? other : new Big(one).plus(other).toFixed();
