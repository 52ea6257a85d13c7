import document from './price-table.json' with { type: 'json' };
import { createPriceTable, PriceTableDocument } from './price-table.ts';

/** The price list of this release, from the public lists that it names, each with its date. */
export const builtInPrices = createPriceTable(PriceTableDocument.parse(document));
