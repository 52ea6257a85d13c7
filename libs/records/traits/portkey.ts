import type { Response } from 'express';
import { z } from 'zod';
import { listOf } from '#libs/contracts/lists.ts';
import { anyObject } from '#libs/contracts/scalars.ts';
import { toListResponse } from '#libs/http/answers/list-response.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { totalMax } from '../resource-row.ts';

/** Adapts a kind's answers to the form that Portkey's clients expect. */
export type Portkey = {
  /** The list is a bare array (LIST-3). */
  listsBare?: boolean;
  /**
   * For clients that read `{success, data}` from the answer about one record: returns `data` from the public form. The
   * answer also keeps the members of the record.
   */
  data?: (view: Record<string, unknown>) => object;
};

/** The answer about one record. */
export const toCachedAnswer = ({ data }: Portkey, view: object): object =>
  data ? { ...view, success: true, data: data(view as Record<string, unknown>) } : view;

/** The schema of `toCachedAnswer`. */
export const answerSchemaOf = ({ data }: Portkey, view: z.ZodObject): z.ZodObject =>
  data ? view.extend({ success: z.literal(true), data: anyObject() }) : view;

/**
 * Answers with a page of up to `limit + 1` items. Throws invalid_request (`page_too_large`) for a numbered page that was
 * cut, because the next page would not begin where this one ends.
 */
export function sendList(
  { listsBare, data }: Portkey,
  response: Response,
  items: readonly { id: string }[],
  { limit, total, isCut, isNumbered }: { limit: number; total: number; isCut: boolean; isNumbered: boolean },
): void {
  if (isCut && isNumbered) throw pageTooLarge(items.length);
  const page = toListResponse(items, isCut ? items.length : limit, isCut || items.length > limit);
  response.json(listsBare ? page.data : { ...page, total, ...(data ? { success: true } : {}) });
}

const pageTooLarge = (fitting: number): GatewayError =>
  new GatewayError(
    'invalid_request',
    'page_too_large',
    `This page is too large: only its first ${fitting} records fit. Use a 'page_size' of at most ${fitting}, or 'after' instead of 'current_page'.`,
    { param: 'page_size' },
  );

const total = z.int().describe(`Exact below ${totalMax}. Larger totals are reported as ${totalMax}.`);

/** The schema of `sendList`. */
export const listSchemaOf = ({ listsBare, data }: Portkey, item: z.ZodObject): z.ZodType =>
  listsBare ? z.array(item) : listOf(item).extend({ total, ...(data ? { success: z.literal(true) } : {}) });

export const describePages = ({ listsBare }: Portkey): string =>
  listsBare
    ? 'A bare array of up to `page_size` records (100 by default), from page `current_page`, starting at 0.'
    : 'Pages start after the ID in `after` and have up to `limit` records, or are selected by `current_page` (starting at 0) and `page_size`, with `total`.';
