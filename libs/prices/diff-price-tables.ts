import { isDeepStrictEqual } from 'node:util';
import type { ModelRow, PriceTableDocument } from './price-table.ts';

/** A model whose price differs between two tables; null: one of them does not have it. */
export type PriceChange = { provider: string; model: string; before: ModelRow | null; after: ModelRow | null };

/** Returns the differences between two tables, by provider and model. */
export function diffPriceTables(before: PriceTableDocument, after: PriceTableDocument): PriceChange[] {
  const providers = new Set([...Object.keys(before.providers), ...Object.keys(after.providers)]);
  return [...providers].toSorted().flatMap((provider) => {
    const [old, fresh] = [before.providers[provider]?.models ?? {}, after.providers[provider]?.models ?? {}];
    const models = [...new Set([...Object.keys(old), ...Object.keys(fresh)])].toSorted();
    return models.flatMap((model): PriceChange[] => {
      const change = { provider, model, before: old[model] ?? null, after: fresh[model] ?? null };
      return isDeepStrictEqual(change.before, change.after) ? [] : [change];
    });
  });
}
