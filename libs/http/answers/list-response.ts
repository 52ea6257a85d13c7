/** The list envelope that SDKs page through: without `has_more` they stop after one page (LIST-1). */
export type ListResponse<Item> = {
  object: 'list';
  data: Item[];
  first_id: string | null;
  last_id: string | null;
  has_more: boolean;
};

/** A page from up to `limit + 1` items. The extra one only shows that there are more; `hasMore` replaces it. */
export function toListResponse<Item extends { id: string }>(
  items: readonly Item[],
  limit: number,
  hasMore = items.length > limit,
): ListResponse<Item> {
  const data = items.slice(0, limit);
  return {
    object: 'list',
    data,
    first_id: data[0]?.id ?? null,
    last_id: data.at(-1)?.id ?? null,
    has_more: hasMore,
  };
}
