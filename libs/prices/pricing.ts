import type { CompiledAdjustments } from './adjustments.ts';
import type { PriceTable } from './price-table.ts';
import { priceUsage, type Price, type Purchase } from './price-usage.ts';

/** The buyer of a purchase. Prices can differ by workspace, and by the integration that has the credential. */
export type Buyer = { workspaceId: string; integration: string | null };

/** The prices in use. */
export type Pricing = {
  /** Like `priceUsage`, with the current table and the adjustments of the buyer. */
  priceOf: (buyer: Buyer, purchase: Purchase) => Price | null;
  table: () => PriceTable;
};

export function createPricing(deps: {
  table: () => PriceTable;
  /** The adjustments of the integration before those of the workspace. Default: none. */
  adjustmentsOf?: (buyer: Buyer) => readonly CompiledAdjustments[];
}): Pricing {
  const { table, adjustmentsOf = () => none } = deps;
  return { priceOf: (buyer, purchase) => priceUsage(table(), purchase, adjustmentsOf(buyer)), table };
}

const none: readonly CompiledAdjustments[] = [];
