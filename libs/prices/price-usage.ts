import { Big } from 'big.js';
import { amountDecimals, divide, toSteps, type Amount } from '#libs/kernel/amount.ts';
import type { CompiledAdjustments } from './adjustments.ts';
import type { OwnPrice, PriceTable } from './price-table.ts';
import {
  rateDecimals,
  toRate,
  type ModelPrice,
  type Rate,
  type TokenKind,
  type TokenRates,
  type UnitKind,
} from './rates.ts';
import { standardTiers, type Units, type Usage } from './usage.ts';

/** The cost of a call, and the version of the prices. The same version always results in the same cents. */
export type Price = {
  cents: Amount;
  version: string;
  /**
   * How much less the call cost because of the provider's prompt cache, in cents: the price of its tokens as uncached
   * ones, minus what was paid. Negative if writing to the cache cost more than reading from it saved. Absent if no
   * token was read or written.
   */
  promptCacheSaved?: Amount;
};

/** The purchased usage. */
export type Purchase = {
  /** Registry id of the provider. */
  provider: string;
  /** The model by all its names, the most reliable first: the one that answered, then the one that was requested. */
  models: readonly (string | null)[];
  /** The price of the public model that was called, which replaces the listed ones. */
  ownPrice?: OwnPrice | null | undefined;
  /** null: not known. */
  usage: Usage | null;
  units?: Units | null | undefined;
};

/** Cents before they are rounded: an integer in steps of 10^-`decimals`. */
type Exact = { steps: bigint; decimals: number };

const nothing: Exact = { steps: 0n, decimals: rateDecimals };
const factorOne: Rate = toRate('1');

/**
 * Returns the cost of a purchase in cents; null: its price or its usage is not known. It is exact until it is rounded
 * once, at the end. `adjustments`: those of the integration before those of the workspace. The first price that
 * replaces a model's listed one is used, and all multipliers apply.
 */
export function priceUsage(
  table: PriceTable,
  purchase: Purchase,
  adjustments: readonly CompiledAdjustments[] = [],
): Price | null {
  const { ownPrice } = purchase;
  const price = ownPrice?.price ?? findPrice(table, purchase, adjustments);
  if (price === null) return null;
  const ofTokens = centsOfTokens(price, purchase.usage, adjustments);
  let ofUnits = ofTokens === null ? null : centsOfUnits(price, purchase);
  if (ofTokens === null || ofUnits === null) return null;
  let { version } = ownPrice ?? table;
  for (const { defaultFactor, hash } of adjustments) {
    ofUnits = times(ofUnits, defaultFactor);
    version += `+${hash}`;
  }
  const result: Price = { cents: toCents(plus(ofTokens, ofUnits)), version };
  const uncached = withoutPromptCache(purchase.usage);
  const ofUncached = uncached === null ? null : centsOfTokens(price, uncached, adjustments);
  if (ofUncached !== null) result.promptCacheSaved = toCents(ofUncached) - toCents(ofTokens);
  return result;
}

/** The same usage if the provider had no prompt cache; null: no token was read from it or written to it. */
function withoutPromptCache(usage: Usage | null): Usage | null {
  if (usage === null) return null;
  const { cachedTokens, cacheWriteTokens = 0 } = usage;
  if (cachedTokens === 0 && cacheWriteTokens === 0) return null;
  return { ...usage, cachedTokens: 0, cachedAudioTokens: 0, cacheWriteTokens: 0, cacheWriteHourTokens: 0 };
}

const plus = (a: Exact, b: Exact): Exact => {
  if (a.steps === 0n) return b;
  if (b.steps === 0n) return a;
  if (a.decimals < b.decimals) return plus(b, a);
  return { steps: a.steps + b.steps * 10n ** BigInt(a.decimals - b.decimals), decimals: a.decimals };
};

const times = ({ steps, decimals }: Exact, factor: Rate | undefined): Exact =>
  factor === undefined ? { steps, decimals } : { steps: steps * factor, decimals: decimals + rateDecimals };

const toCents = ({ steps, decimals }: Exact): Amount =>
  divide(steps, decimals === rateDecimals ? stepsPerAmount : 10n ** BigInt(decimals - amountDecimals));

const stepsPerAmount = 10n ** BigInt(rateDecimals - amountDecimals);

function findPrice(
  table: PriceTable,
  { provider, models }: Purchase,
  adjustments: readonly CompiledAdjustments[],
): ModelPrice | null {
  for (const { find } of adjustments) {
    for (const model of models) {
      const own = model === null ? null : find(model);
      if (own !== null) return own;
    }
  }
  for (const model of models) {
    const listed = model === null ? null : table.find(provider, model);
    if (listed !== null) return listed;
  }
  return null;
}

/** null: some of the tokens have no price, or tokens that have a price were not counted. */
function centsOfTokens(
  price: ModelPrice,
  usage: Usage | null,
  adjustments: readonly CompiledAdjustments[],
): Exact | null {
  if (price.tokens.input === undefined && price.tokens.output === undefined) return nothing;
  if (usage === null) return null;
  const { serviceTier } = usage;
  let rates: TokenRates = price.tokens;
  for (const tier of price.tiers) if (usage.inputTokens > tier.aboveInputTokens) rates = tier.tokens;
  let discount: Rate | undefined;
  if (serviceTier !== undefined && !standardTiers.has(serviceTier)) {
    const tier = price.serviceTiers.get(serviceTier);
    if (tier === undefined) return null;
    if ('factor' in tier) discount = tier.factor;
    else rates = tier.tokens;
  }
  let steps = 0n;
  let isKnown = true;
  countTokens(usage, (kind, count) => {
    const rate = rates[kind];
    if (rate === undefined) {
      isKnown = false;
      return;
    }
    let cents = rate * BigInt(count);
    for (const { factorOf } of adjustments) cents *= factorOf(kind) ?? factorOne;
    steps += cents;
  });
  return isKnown ? times({ steps, decimals: rateDecimals * (adjustments.length + 1) }, discount) : null;
}

/** Calls `add` with every kind of token that was used, each token once. */
function countTokens(usage: Usage, add: (kind: TokenKind, count: number) => void): void {
  const { inputTokens, cachedTokens, outputTokens, reasoningTokens } = usage;
  const { cacheWriteTokens = 0, cacheWriteHourTokens = 0, audioInputTokens = 0, cachedAudioTokens = 0 } = usage;
  const { imageInputTokens = 0, audioOutputTokens = 0, imageOutputTokens = 0 } = usage;
  const each = (kind: TokenKind, count: number): void => {
    if (count > 0) add(kind, count);
  };
  const audio = audioInputTokens - cachedAudioTokens;
  each('input', inputTokens - cachedTokens - cacheWriteTokens - audio - imageInputTokens);
  each('cached_input', cachedTokens - cachedAudioTokens);
  each('cached_audio_input', cachedAudioTokens);
  each('cache_write', cacheWriteTokens - cacheWriteHourTokens);
  each('cache_write_1h', cacheWriteHourTokens);
  each('audio_input', audio);
  each('image_input', imageInputTokens);
  each('output', outputTokens - reasoningTokens - audioOutputTokens - imageOutputTokens);
  each('reasoning', reasoningTokens);
  each('audio_output', audioOutputTokens);
  each('image_output', imageOutputTokens);
}

/** null: something is charged per unit, and the number of units is not known. */
function centsOfUnits({ units: rates, images, tokens }: ModelPrice, { units, usage }: Purchase): Exact | null {
  let sum: Exact = rates.per_call === undefined ? nothing : exactly(rates.per_call);
  const isPaidByPiece = tokens.input === undefined && tokens.output === undefined;
  const paid = (kind: UnitKind, count: number | undefined, cost: (rate: Rate, count: number) => Exact): boolean => {
    const rate = rates[kind];
    if (rate === undefined) return true;
    // If tokens are charged too, a call that reports no searches made none.
    if (count === undefined) return !isPaidByPiece;
    sum = plus(sum, cost(rate, count));
    return true;
  };
  if (!paid('per_search', units?.searches ?? usage?.searches, costOfPieces)) return null;
  if (!paid('per_hour', units?.seconds, costOfSeconds)) return null;
  if (!paid('per_million_characters', units?.characters, costOfCharacters)) return null;
  if (images.size === 0) return sum;
  const made = units?.images;
  const rate = made && (images.get(made.kind) ?? images.get('any'));
  return made === undefined || rate === undefined ? null : plus(sum, costOfPieces(rate, made.count));
}

const exactly = (steps: bigint, decimals = rateDecimals): Exact => ({ steps, decimals });

const costOfPieces = (rate: Rate, count: number): Exact => exactly(rate * BigInt(count));
/** The price is that of a million. */
const costOfCharacters = (rate: Rate, count: number): Exact => exactly(rate * BigInt(count), rateDecimals + 6);

/** Seconds are fractions with any number of decimals, priced by the hour, so this quotient is not exact. */
const costOfSeconds = (rate: Rate, seconds: number): Exact => {
  const cents = new Big(rate.toString()).times(seconds).div(`3600e${rateDecimals}`);
  return exactly(toSteps(cents, secondDecimals), secondDecimals);
};
/** The decimals of a quotient of big.js. */
const secondDecimals = 20;
