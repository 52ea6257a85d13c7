import type { CompiledAdjustments } from './adjustments.ts';
import type { PriceTable } from './price-table.ts';
import { priceUsage, type Price, type Purchase } from './price-usage.ts';

/** Who made a purchase. Prices may differ by workspace, and by the integration that holds the credential. */
export type Buyer = { workspaceId: string; integration: string | null };

/** The prices in use. */
export type Pricing = {
  /** Like `priceUsage`, with the current table and the adjustments of the buyer. */
  priceOf: (buyer: Buyer, purchase: Purchase) => Price | null;
  table: () => PriceTable;
};

export function createPricing(deps: {
  table: () => PriceTable;
  /** Those of the integration before those of the workspace. Default: none. */
  adjustmentsOf?: (buyer: Buyer) => readonly CompiledAdjustments[];
}): Pricing {
  const { table, adjustmentsOf = () => none } = deps;
  return { priceOf: (buyer, purchase) => priceUsage(table(), purchase, adjustmentsOf(buyer)), table };
}

const none: readonly CompiledAdjustments[] = [];
