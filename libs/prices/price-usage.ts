import { Big } from 'big.js';
import type { CompiledAdjustments } from './adjustments.ts';
import type { PriceTable } from './price-table.ts';
import type { ModelPrice, TokenKind, TokenRates, UnitKind } from './rates.ts';
import { standardTiers, type Units, type Usage } from './usage.ts';

/** The exact cost of a call, and the version of the prices. The same version always results in the same cents. */
export type Price = { cents: Big; version: string };

/** The purchased usage. */
export type Purchase = {
  /** Registry id of the provider. */
  provider: string;
  /** The model by all its names, the most reliable first: the one that answered, then the one that was requested. */
  models: readonly (string | null)[];
  /** null: not known. */
  usage: Usage | null;
  units?: Units | null | undefined;
};

/** Decimals of a cent. Only seconds of audio, priced by the hour, have to be rounded. */
const decimals = 12;
const secondsPerHour = 3_600;
const charactersPerPrice = 1_000_000;
const zero = new Big(0);

/**
 * Returns the cost of a purchase in cents; null: its price or its usage is not known. `adjustments`: those of the
 * integration before those of the workspace. The first price that replaces a model's listed one is used, and all
 * multipliers apply.
 */
export function priceUsage(
  table: PriceTable,
  purchase: Purchase,
  adjustments: readonly CompiledAdjustments[] = [],
): Price | null {
  const price = findPrice(table, purchase, adjustments);
  if (price === null) return null;
  const inTokens = centsOfTokens(price, purchase.usage, adjustments);
  const inUnits = inTokens === null ? null : centsOfUnits(price, purchase);
  if (inTokens === null || inUnits === null) return null;
  const cents = adjustments.reduce(
    (sum, { defaultFactor }) => (defaultFactor === undefined ? sum : sum.times(defaultFactor)),
    inUnits,
  );
  const version = [table.version, ...adjustments.map(({ hash }) => hash)].join('+');
  return { cents: inTokens.plus(cents).round(decimals), version };
}

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
): Big | null {
  if (price.tokens.input === undefined && price.tokens.output === undefined) return zero;
  if (usage === null) return null;
  const { serviceTier } = usage;
  let rates: TokenRates = price.tokens;
  for (const tier of price.tiers) if (usage.inputTokens > tier.aboveInputTokens) rates = tier.tokens;
  let discount: Big | undefined;
  if (serviceTier !== undefined && !standardTiers.has(serviceTier)) {
    const tier = price.serviceTiers.get(serviceTier);
    if (tier === undefined) return null;
    if ('factor' in tier) discount = tier.factor;
    else rates = tier.tokens;
  }
  let sum = zero;
  let isKnown = true;
  countTokens(usage, (kind, count) => {
    const rate = rates[kind];
    if (rate === undefined) {
      isKnown = false;
      return;
    }
    let cents = rate.times(count);
    for (const { factorOf } of adjustments) {
      const factor = factorOf(kind);
      if (factor !== undefined) cents = cents.times(factor);
    }
    sum = sum.plus(cents);
  });
  if (!isKnown) return null;
  return discount === undefined ? sum : sum.times(discount);
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
function centsOfUnits({ units: rates, images, tokens }: ModelPrice, { units, usage }: Purchase): Big | null {
  let sum = rates.per_call ?? zero;
  const isPaidByPiece = tokens.input === undefined && tokens.output === undefined;
  const paid = (kind: UnitKind, count: number | undefined, per = 1): boolean => {
    const rate = rates[kind];
    if (rate === undefined) return true;
    // If tokens are charged too, a call that reports no searches made none.
    if (count === undefined) return !isPaidByPiece;
    sum = sum.plus(per === 1 ? rate.times(count) : rate.times(count).div(per));
    return true;
  };
  if (!paid('per_search', units?.searches ?? usage?.searches)) return null;
  if (!paid('per_hour', units?.seconds, secondsPerHour)) return null;
  if (!paid('per_million_characters', units?.characters, charactersPerPrice)) return null;
  if (images.size === 0) return sum;
  const made = units?.images;
  const rate = made && (images.get(made.kind) ?? images.get('any'));
  return made === undefined || rate === undefined ? null : sum.plus(rate.times(made.count));
}
