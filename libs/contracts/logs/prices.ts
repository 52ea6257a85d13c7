import { z } from 'zod';
import { priceComponents } from '#libs/prices/adjustments.ts';
import { PriceTableDocument } from '#libs/prices/price-table.ts';
import { text } from '../scalars.ts';

// Price tables of the organisation, and how prices of a workspace or an integration differ from them.

/** Members of the body of POST /admin/price-tables. */
export const priceTableFields = { table: PriceTableDocument };

export const PriceTableObject = z.object({
  id: z.string(),
  object: z.literal('price-table'),
  version: z.string().describe('The date of the table and a hash of its content, as in price_version of log records.'),
  date: z.string(),
  table: PriceTableDocument,
  created_at: z.string(),
  last_updated_at: z.string(),
});

/** Not negative. A number is stored as the decimal that it was written as, so that sums stay exact. */
export const amount = () =>
  z.preprocess(
    (value) => (typeof value === 'number' ? decimalOf(value) : value),
    z.string().regex(/^\d{1,9}(?:\.\d{1,15})?$/),
  );

const amounts = <Name extends string>(names: readonly Name[]) =>
  z.strictObject(
    Object.fromEntries(names.map((name) => [name, amount().optional()])) as Record<
      Name,
      z.ZodOptional<ReturnType<typeof amount>>
    >,
  );

/**
 * `pricing_adjustments` of a workspace or an integration: factors on listed prices, and own prices in cents per token.
 */
export const pricingAdjustments = () =>
  z.strictObject({
    multiplier: amounts(['default', ...priceComponents]).optional(),
    models: z
      .record(text({ min: 1, max: 200 }), amounts(priceComponents))
      .refine((models) => Object.keys(models).length <= modelsMax, `At most ${modelsMax} models.`)
      .optional(),
  });

const modelsMax = 500;

/** Preserves the spelling of small numbers, which JavaScript would write with an exponent. */
const decimalOf = (value: number): string =>
  Number.isFinite(value) && /e/.test(String(value)) ? value.toFixed(15).replace(/\.?0+$/, '') : String(value);
