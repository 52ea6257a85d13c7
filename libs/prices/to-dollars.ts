import { Big } from 'big.js';

/** Costs are stored as exact US cents, and shown as exact US dollars in our own formats. */
export function toDollars(cents: string | Big): string {
  return new Big(cents).times('0.01').toFixed();
}
