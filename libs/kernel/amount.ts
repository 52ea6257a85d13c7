import { Big } from 'big.js';

/**
 * US cents, tokens or requests, counted in 10^-12 of one. Prices, budgets and rates are computed with these integers,
 * which become decimals only where they are stored or shown. They are bigints: safe integers end at 9,007 cents, and
 * budgets add up calls.
 */
export type Amount = bigint;

/** The decimals of a stored amount. */
export const amountDecimals = 12;
/** One cent, token or request. */
export const one: Amount = 10n ** BigInt(amountDecimals);

/** Returns a decimal as an integer in steps of 10^-`decimals`. Further decimals are rounded like those of `divide`. */
export const toSteps = (decimal: string | number | Big, decimals: number): bigint =>
  BigInt(new Big(decimal).toFixed(decimals, Big.roundHalfUp).replace('.', ''));

/** Further decimals than those of an amount are rounded like those of `divide`. */
export function parseAmount(decimal: string | number | Big): Amount {
  // A Big for each takes twice as long.
  if (typeof decimal !== 'string' || !isAmount(decimal)) return toSteps(decimal, amountDecimals);
  const [whole = '', fraction = ''] = decimal.split('.');
  return BigInt(whole + fraction.padEnd(amountDecimals, '0'));
}

/** Whether a decimal is an amount that needs no rounding. Those that are stored are. */
export const isAmount = (decimal: string): boolean => plainDecimal.test(decimal);

const plainDecimal = new RegExp(`^-?\\d{1,30}(?:\\.\\d{1,${amountDecimals}})?$`);

/** `count` must be whole. */
export const wholeAmount = (count: number): Amount => BigInt(count) * one;

/** Returns an amount as the shortest decimal, such as `0.25`. */
export function formatAmount(amount: Amount): string {
  if (amount < 0n) return `-${formatAmount(-amount)}`;
  const digits = amount.toString().padStart(amountDecimals + 1, '0');
  const point = digits.length - amountDecimals;
  let end = digits.length;
  while (end > point && digits.charCodeAt(end - 1) === zeroCode) end -= 1;
  const whole = digits.slice(0, point);
  return end === point ? whole : `${whole}.${digits.slice(point, end)}`;
}

const zeroCode = 48;

/** Returns the number that is closest to an amount, for people and averages. */
export const amountToNumber = (amount: Amount): number => Number(formatAmount(amount));

/** The only rounding rule: to the nearest integer, and halves up. Neither argument can be negative. */
export const divide = (dividend: bigint, divisor: bigint): bigint => (2n * dividend + divisor) / (2n * divisor);

export const smaller = (a: Amount, b: Amount): Amount => (a < b ? a : b);
export const larger = (a: Amount, b: Amount): Amount => (a > b ? a : b);
