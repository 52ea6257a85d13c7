import { Big } from 'big.js';
import { toSteps } from '#libs/kernel/amount.ts';

/** The kinds of tokens. Each has its own price, or that of a simpler kind. */
export const tokenKinds = [
  'input',
  'cached_input',
  'cache_write',
  'cache_write_1h',
  'audio_input',
  'cached_audio_input',
  'image_input',
  'cached_image_input',
  'output',
  'reasoning',
  'audio_output',
  'image_output',
] as const;
export type TokenKind = (typeof tokenKinds)[number];

/** Usage that is charged per unit. */
export const unitKinds = ['per_call', 'per_search', 'per_hour', 'per_million_characters'] as const;
export type UnitKind = (typeof unitKinds)[number];

/**
 * Prices and factors are integers in steps of 10^-15, the most decimals that one can be written with, so that all
 * products are exact.
 */
export type Rate = bigint;
export const rateDecimals = 15;
export const toRate = (decimal: string | Big): Rate => toSteps(decimal, rateDecimals);

/** Cents per token, by kind. Absent: such tokens have no price. */
export type TokenRates = Readonly<Partial<Record<TokenKind, Rate>>>;

/** The price of one model, in cents. */
export type ModelPrice = {
  tokens: TokenRates;
  /** The last tier whose limit the input exceeds applies to the whole call. In ascending order. */
  tiers: readonly { aboveInputTokens: number; tokens: TokenRates }[];
  /** By class of service: other prices, or a factor on those above. */
  serviceTiers: ReadonlyMap<string, { factor: Rate } | { tokens: TokenRates }>;
  units: Readonly<Partial<Record<UnitKind, Rate>>>;
  /** By quality and size; `any` for all others. Empty: images have no price. */
  images: ReadonlyMap<string, Rate>;
};

/** The kind whose price is used for a kind without its own price. */
const likeKind: Readonly<Partial<Record<TokenKind, TokenKind>>> = {
  cached_input: 'input',
  cache_write: 'input',
  cache_write_1h: 'cache_write',
  audio_input: 'input',
  image_input: 'input',
  cached_audio_input: 'cached_input',
  cached_image_input: 'cached_input',
  reasoning: 'output',
  audio_output: 'output',
  image_output: 'output',
};

/** Fills in the kinds that are priced like another one. `centsOf` converts the numbers of a list. */
export function tokenRates(
  listed: Readonly<Partial<Record<TokenKind, string>>>,
  centsOf: (listed: string) => Rate,
): TokenRates {
  const rates: Partial<Record<TokenKind, Rate>> = {};
  // In the order of `tokenKinds`, where each kind follows the one whose price it uses.
  for (const kind of tokenKinds) {
    const own = listed[kind];
    const like = likeKind[kind];
    const rate = own === undefined ? (like === undefined ? undefined : rates[like]) : centsOf(own);
    if (rate !== undefined) rates[kind] = rate;
  }
  return rates;
}

/** Lists contain dollars per million tokens. */
export const centsPerToken = (dollarsPerMillion: string): Rate => toRate(new Big(dollarsPerMillion).times('0.0001'));
export const dollarsToCents = (dollars: string): Rate => toRate(new Big(dollars).times(100));
