import type { Request, Response } from 'express';
import { z } from 'zod';
import { listOf, type ResourceListQuery } from '#libs/contracts/lists.ts';
import { toListResponse } from '#libs/http/answers/list-response.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { StoreDeps } from '#libs/records/kit.ts';
import { totalMax } from './list-resources.ts';
import type { ResourcePage } from '#libs/records/resource-row.ts';

/** `answerData`: of a kind whose answers also say `success`. */
type ListForm = { listsBare?: boolean; answerData?: unknown };
type PageQuery = Partial<Record<keyof z.output<typeof ResourceListQuery>, unknown>>;

/**
 * Both habits of paging: `after` and `limit`, or `current_page` (from 0) and `page_size`. Throws for a mix of them. A page
 * has 20 items unless the query says otherwise; of a bare list, which cannot say that there are more, 100.
 */
export function pageOf(
  query: PageQuery,
  isBare = false,
): { after: string | null; skip: number; limit: number; isNumbered: boolean } {
  const { after, limit, currentPage, pageSize, ...own } = query as Record<string, string & number>;
  const { current_page: page = currentPage, page_size: size = pageSize } = own;
  if (after !== undefined && page !== undefined) {
    const message = "Invalid 'current_page': a page is chosen by 'after' or by 'current_page', not by both.";
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

/**
 * Answers with a page from up to `limit + 1` items, in the form of the kind's lists. Throws invalid_request (`page_too_large`) for
 * a numbered page that was cut: the next one would not begin where it ends.
 */
export function sendList(
  { listsBare, answerData }: ListForm,
  response: Response,
  items: readonly { id: string }[],
  { limit, total, isCut, isNumbered }: { limit: number; total: number; isCut: boolean; isNumbered: boolean },
): void {
  if (isCut && isNumbered) throw pageTooLarge(items.length);
  const page = toListResponse(items, isCut ? items.length : limit, isCut || items.length > limit);
  response.json(listsBare ? page.data : { ...page, total, ...(answerData ? { success: true } : {}) });
}

const pageTooLarge = (fitting: number): GatewayError =>
  new GatewayError(
    'invalid_request',
    'page_too_large',
    `This page is larger than a page may be: its first ${fitting} records fit. Choose a 'page_size' of at most ${fitting}, or page by 'after' instead of 'current_page'.`,
    { param: 'page_size' },
  );

const total = z.int().describe(`Exact up to ${totalMax}, which also stands for more.`);

/** The schema of `sendList`. */
export const listSchemaOf = ({ listsBare, answerData }: ListForm, item: z.ZodObject): z.ZodType =>
  listsBare ? z.array(item) : listOf(item).extend({ total, ...(answerData ? { success: z.literal(true) } : {}) });
