type Page<Row> = { data: Row[]; has_more: boolean; last_id: string | null; total?: number };

/** More records of one kind than a person looks through. The API has the rest. */
const pagesMax = 10;

/**
 * Reads a list of records to its end, page by page, up to 1,000 of them: if only the first page were read, the other records
 * would seem not to exist. `total` is the number of records, including those that were not read.
 */
export async function allPages<Row>(
  read: (query: { limit: number; after?: string }) => Promise<Page<Row>>,
): Promise<{ data: Row[]; total: number }> {
  const data: Row[] = [];
  let after: string | null = null;
  let total = 0;
  for (let pages = 0; pages < pagesMax; pages += 1) {
    const page = await read({ limit: 100, ...(after === null ? {} : { after }) });
    data.push(...page.data);
    total = page.total ?? 0;
    after = page.last_id;
    if (!page.has_more || after === null) break;
  }
  return { data, total: Math.max(total, data.length) };
}
