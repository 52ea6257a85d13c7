import { createHash } from 'node:crypto';
import { z } from 'zod';
import { listCandidateNames } from './model-names.ts';
import {
  dollarsToCents,
  centsPerToken,
  tokenKinds,
  tokenRates,
  toRate,
  unitKinds,
  type ModelPrice,
  type Rate,
} from './rates.ts';

const day = z.string().regex(/^20\d\d-\d\d-\d\d$/, 'expected a date like 2025-11-30');
/** Text, because a JSON number is read as a float. */
const dollars = z.string().regex(/^\d{1,7}(?:\.\d{1,8})?$/, 'expected dollars as text, such as "2.50"');
const modelName = z.string().min(1).max(200);
const optional = <Kind extends string>(kinds: readonly Kind[]) =>
  Object.fromEntries(kinds.map((kind) => [kind, dollars.optional()])) as Record<Kind, z.ZodOptional<typeof dollars>>;

const tokens = optional(tokenKinds);

/** The price of one model: in US dollars, for tokens per million. */
export const ModelPriceRow = z.strictObject({
  ...tokens,
  ...optional(unitKinds),
  per_image: z.record(z.string().max(100), dollars).optional(),
  tiers: z
    .array(z.strictObject({ above_input_tokens: z.int().min(1), ...tokens }))
    .max(10)
    .optional(),
  /** A factor on the prices above, or prices that replace some of them. */
  service_tiers: z.record(z.string().max(50), z.union([dollars, z.strictObject(tokens)])).optional(),
});
export type ModelPriceRow = z.output<typeof ModelPriceRow>;

const ModelRow = ModelPriceRow.extend({
  /** Other names of the model. */
  also: z.array(modelName).max(50).optional(),
});
export type ModelRow = z.output<typeof ModelRow>;

/**
 * A dated price list as written: in US dollars, for tokens per million. `*` as a model prices all others. `includes`
 * names providers whose models cost the same here.
 */
export const PriceTableDocument = z.strictObject({
  date: day,
  providers: z.record(
    z.string().max(100),
    z.strictObject({
      source: z.string().min(1).max(500),
      as_of: day,
      includes: z.array(z.string().max(100)).max(20).optional(),
      models: z.record(modelName, ModelRow),
    }),
  ),
});
export type PriceTableDocument = z.output<typeof PriceTableDocument>;

/** A price list that is ready for use. */
export type PriceTable = {
  /** Its date and a hash of its content. The same version always results in the same prices. */
  version: string;
  document: PriceTableDocument;
  /** Returns the price of a provider's model under any of its names; null: not known. */
  find: (provider: string, model: string) => ModelPrice | null;
  /** The row that contains it, and the name of the row. */
  rowOf: (price: ModelPrice) => { name: string; row: ModelRow } | null;
};

/** Names come from clients, so the number of remembered ones is limited. */
const rememberedMax = 10_000;

/** Prepares a list for use. Throws Error for one that contradicts itself. Its shape was already checked. */
export function createPriceTable(document: PriceTableDocument): PriceTable {
  const rows = new Map<string, ReadonlyMap<string, ModelPrice>>();
  const listed = new Map<ModelPrice, { name: string; row: ModelRow }>();
  for (const provider of Object.keys(document.providers)) rows.set(provider, rowsOf(document, provider, listed));
  const found = new Map<string, ModelPrice | null>();

  const search = (provider: string, model: string): ModelPrice | null => {
    const lists = [provider, ...(document.providers[provider]?.includes ?? [])].map((name) => rows.get(name));
    for (const name of listCandidateNames(model)) {
      for (const list of lists) {
        const price = list?.get(name);
        if (price !== undefined) return price;
      }
    }
    return rows.get(provider)?.get('*') ?? null;
  };

  return {
    version: `${document.date}.${contentHash(document)}`,
    document,
    find(provider, model) {
      const key = `${provider}\n${model}`;
      const known = found.get(key);
      if (known !== undefined) return known;
      if (found.size >= rememberedMax) found.clear();
      const price = search(provider, model);
      found.set(key, price);
      return price;
    },
    rowOf: (price) => listed.get(price) ?? null,
  };
}

function rowsOf(
  { providers }: PriceTableDocument,
  provider: string,
  listed: Map<ModelPrice, { name: string; row: ModelRow }>,
): ReadonlyMap<string, ModelPrice> {
  const { models = {}, includes = [] } = providers[provider] ?? {};
  for (const included of includes) {
    if (providers[included] === undefined) throw new Error(`${provider} includes ${included}, which has no prices`);
    if (providers[included].includes) throw new Error(`${provider} includes ${included}, which includes others itself`);
  }
  const rows = new Map<string, ModelPrice>();
  for (const [model, row] of Object.entries(models)) {
    const price = toModelPrice(row);
    listed.set(price, { name: model, row });
    for (const name of [model, ...(row.also ?? [])]) {
      const key = name.toLowerCase();
      if (rows.has(key)) throw new Error(`${provider} has two prices for ${name}`);
      rows.set(key, price);
    }
  }
  return rows;
}

/** A price that replaces the listed one, and the version of that price in records of calls. */
export type OwnPrice = { price: ModelPrice; version: string };

/** Prepares a price of a public model for use. */
export const createOwnPrice = (row: ModelPriceRow): OwnPrice => ({
  price: toModelPrice(row),
  version: `own.${contentHash(row)}`,
});

function toModelPrice({ tiers = [], service_tiers = {}, per_image = {}, ...row }: ModelPriceRow): ModelPrice {
  const units: Partial<Record<(typeof unitKinds)[number], Rate>> = {};
  for (const kind of unitKinds) if (row[kind] !== undefined) units[kind] = dollarsToCents(row[kind]);
  return {
    tokens: tokenRates(definedOnly(row), centsPerToken),
    tiers: tiers
      .map(({ above_input_tokens: aboveInputTokens, ...listed }) => ({
        aboveInputTokens,
        tokens: tokenRates({ ...definedOnly(row), ...definedOnly(listed) }, centsPerToken),
      }))
      .toSorted((a, b) => a.aboveInputTokens - b.aboveInputTokens),
    serviceTiers: new Map(
      Object.entries(service_tiers).map(([name, listed]) => [
        name,
        typeof listed === 'string'
          ? { factor: toRate(listed) }
          : { tokens: tokenRates({ ...definedOnly(row), ...definedOnly(listed) }, centsPerToken) },
      ]),
    ),
    units,
    images: new Map(Object.entries(per_image).map(([kind, listed]) => [kind, dollarsToCents(listed)])),
  };
}

/** The token prices that a row has. */
function definedOnly(
  row: Readonly<Partial<Record<string, unknown>>>,
): Partial<Record<(typeof tokenKinds)[number], string>> {
  return Object.fromEntries(tokenKinds.flatMap((kind) => (typeof row[kind] === 'string' ? [[kind, row[kind]]] : [])));
}

/** Twelve hexadecimal digits that only depend on the content, not on the order of its members. */
export function contentHash(content: unknown): string {
  const ordered = JSON.stringify(content, (_name, value: unknown) =>
    typeof value === 'object' && value !== null && !Array.isArray(value)
      ? Object.fromEntries(Object.entries(value).toSorted(([a], [b]) => (a < b ? -1 : 1)))
      : value,
  );
  return createHash('sha256').update(ordered).digest('hex').slice(0, 12);
}
