import { listCandidateNames } from './model-names.ts';
import { contentHash } from './price-table.ts';
import { tokenRates, toRate, type ModelPrice, type Rate, type TokenKind } from './rates.ts';

/** The components of a price by their names in Portkey's control plane, with their names here. */
const componentKinds = {
  request_token: 'input',
  request_text_token: 'input',
  response_token: 'output',
  response_text_token: 'output',
  cache_read_input_token: 'cached_input',
  cache_read_text_input_token: 'cached_input',
  cache_write_input_token: 'cache_write',
  cache_write_text_input_token: 'cache_write',
  request_audio_token: 'audio_input',
  cache_read_audio_input_token: 'cached_audio_input',
  response_audio_token: 'audio_output',
  request_image_token: 'image_input',
  cache_read_image_input_token: 'cached_image_input',
  response_image_token: 'image_output',
  reasoning_token: 'reasoning',
} as const satisfies Record<string, TokenKind>;
export type PriceComponent = keyof typeof componentKinds;
export const priceComponents = Object.keys(componentKinds) as readonly PriceComponent[];

/**
 * How the prices of a workspace or an integration differ from the list. Decimals are texts. `multiplier.default`
 * applies to every component without its own multiplier. `models` has prices in cents per token that replace the
 * list's; they are multiplied as well.
 */
export type PricingAdjustments = {
  multiplier?: Readonly<Partial<Record<PriceComponent | 'default', string>>>;
  models?: Readonly<Record<string, Readonly<Partial<Record<PriceComponent, string>>>>>;
};

/** Adjustments ready for use. */
export type CompiledAdjustments = {
  /** A part of the version of every price that they change. */
  hash: string;
  /** The factor for a kind of token; undefined: none. */
  factorOf: (kind: TokenKind) => Rate | undefined;
  /** The factor for everything that is not a token. */
  defaultFactor: Rate | undefined;
  find: (model: string) => ModelPrice | null;
};

/** Names come from clients, so the number and the length of remembered ones are limited. */
const rememberedMax = 1_000;
const nameLengthMax = 200;

/** Prepares adjustments for use. Their decimals were already checked. */
export function compileAdjustments(adjustments: PricingAdjustments): CompiledAdjustments {
  const { multiplier = {}, models = {} } = adjustments;
  const defaultFactor = multiplier.default === undefined ? undefined : toRate(multiplier.default);
  const factors = new Map<TokenKind, Rate>();
  for (const component of priceComponents) {
    const factor = multiplier[component];
    if (factor !== undefined) factors.set(componentKinds[component], toRate(factor));
  }
  // As in a list, writing to the cache for an hour is priced like any write.
  const written = factors.get('cache_write');
  if (written) factors.set('cache_write_1h', written);
  const prices = new Map<string, ModelPrice>();
  for (const [model, components] of Object.entries(models)) {
    const listed: Partial<Record<TokenKind, string>> = {};
    for (const component of priceComponents) {
      const price = components[component];
      if (price !== undefined) listed[componentKinds[component]] = price;
    }
    const tokens = tokenRates(listed, toRate);
    prices.set(model.toLowerCase(), { tokens, tiers: [], serviceTiers: new Map(), units: {}, images: new Map() });
  }
  // A search costs 2 µs, and a call makes up to six.
  const found = new Map<string, ModelPrice | null>();
  return {
    hash: contentHash(adjustments),
    factorOf: (kind) => factors.get(kind) ?? defaultFactor,
    defaultFactor,
    find(model) {
      if (prices.size === 0) return null;
      const known = found.get(model);
      if (known !== undefined) return known;
      const name = listCandidateNames(model).find((each) => prices.has(each));
      const price = name === undefined ? null : (prices.get(name) ?? null);
      if (found.size >= rememberedMax) found.clear();
      if (model.length <= nameLengthMax) found.set(model, price);
      return price;
    },
  };
}

/** Price adjustments as answers have them: multipliers are numbers there, and exact texts where they are stored. */
export function shownAdjustments(adjustments: PricingAdjustments | null | undefined): object | null {
  if (adjustments === null || adjustments === undefined) return null;
  const { multiplier, ...rest } = adjustments;
  if (multiplier === undefined) return rest;
  const factors = Object.entries(multiplier).map(([component, factor]) => [component, Number(factor)]);
  return { ...rest, multiplier: Object.fromEntries(factors) as object };
}
