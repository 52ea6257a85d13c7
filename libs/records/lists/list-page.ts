import type { Request, Response } from 'express';
import type { z } from 'zod';
import type { ResourceListQuery } from '#libs/contracts/lists.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { StoreDeps } from '#libs/records/kit.ts';
import type { ResourcePage } from '#libs/records/resource-row.ts';

type PageQuery = Partial<Record<keyof z.output<typeof ResourceListQuery>, unknown>>;

/**
 * Reads both styles of paging: `after` and `limit`, or `current_page` (from 0) and `page_size`. Throws if a request mixes
 * them. A page has 20 items by default. A bare list has 100, because it cannot say that there are more.
 */
export function pageOf(
  query: PageQuery,
  isBare = false,
): { after: string | null; skip: number; limit: number; isNumbered: boolean } {
  const { after, limit, currentPage, pageSize, ...own } = query as Record<string, string & number>;
  const { current_page: page = currentPage, page_size: size = pageSize } = own;
  if (after !== undefined && page !== undefined) {
    const message = "Invalid 'current_page': it cannot be combined with 'after'. Send only one of them.";
    throw new GatewayError('invalid_request', 'invalid_value', message, { param: 'current_page' });
  }
  const count = size ?? limit ?? (isBare ? 100 : 20);
  return { after: after ?? null, skip: (page ?? 0) * count, limit: count, isNumbered: page !== undefined };
}

/** Reads a page within the memory budget of the process, if it has one. */
export async function readPage<Row>(
  { recordPages }: Pick<StoreDeps, 'recordPages'>,
  request: Request,
  response: Response,
  read: (limits: { bytesMax?: number }) => Promise<ResourcePage<Row>>,
): Promise<ResourcePage<Row>> {
  if (recordPages === undefined) return await read({});
  return await recordPages.forAnswer(request, response, () => read({ bytesMax: recordPages.bytesMax }));
}
