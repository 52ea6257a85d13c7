import { refuse } from './checks.ts';

type Limits = { limitDefault: number; limitMax: number };

/** One page of a list, `after` the item with this ID. Throws Refusal (400) for a limit out of bounds. */
export function pageOf<Item extends { id: string }>(
  items: readonly Item[],
  query: string,
  { limitDefault, limitMax }: Limits,
): { page: Item[]; hasMore: boolean } {
  const parameters = new URLSearchParams(query);
  const limit = Number(parameters.get('limit') ?? limitDefault);
  if (!Number.isInteger(limit) || limit < 1 || limit > limitMax) {
    refuse(`Invalid 'limit': expected an integer from 1 to ${limitMax}.`, 'limit', 'invalid_value');
  }
  const after = parameters.get('after');
  const from = after === null ? 0 : items.findIndex(({ id }) => id === after) + 1;
  if (after !== null && from === 0) refuse(`No item found with id '${after}'.`, 'after', 'invalid_value');
  const page = items.slice(from, from + limit);
  return { page, hasMore: from + page.length < items.length };
}
