import { z } from 'zod';
import { integer, text } from './scalars.ts';

/**
 * Converts text that is a whole number to that number, for query strings and form fields; returns anything else
 * unchanged.
 */
export const wholeNumberText = (value: unknown): unknown =>
  typeof value === 'string' && /^-?\d{1,15}$/.test(value) ? Number(value) : value;

/** A whole number of a query string. Other text is left to the integer's own message. */
export const queryInteger = (bounds: { min: number; max: number; fallback: number }) =>
  z.preprocess(wholeNumberText, integer({ min: bounds.min, max: bounds.max }).default(bounds.fallback));

export const optionalInteger = (bounds: { min: number; max: number }) =>
  z.preprocess(wholeNumberText, integer(bounds).optional());

/** The cursor of a list: the ID of the last item of the previous page. */
export const cursor = () => text({ min: 1, max: 200 }).optional();

/** `?after&limit` of GET /batches and of our own lists. The route table refuses other parameters. */
export const ListQuery = z.object({
  after: cursor(),
  limit: queryInteger({ min: 1, max: 100, fallback: 20 }),
});
export type ListQuery = z.output<typeof ListQuery>;

const pageNumber = () => optionalInteger({ min: 0, max: 1_000_000 });
const pageSize = () => optionalInteger({ min: 1, max: 100 });

/**
 * The query of a list of libs/resources (LIST-2): `after` and `limit`, or `current_page` (from 0) and `page_size`, which some
 * operations of Portkey's clients spell `currentPage` and `pageSize`.
 */
export const ResourceListQuery = z.object({
  after: cursor(),
  limit: pageSize(),
  current_page: pageNumber(),
  page_size: pageSize(),
  currentPage: pageNumber(),
  pageSize: pageSize(),
});

/** A page of a list. SDKs page by `has_more` and the last item's id; `first_id` and `last_id` are null when empty. */
export const listOf = <Item extends z.ZodType>(item: Item) =>
  z.object({
    object: z.literal('list'),
    data: z.array(item),
    first_id: z.string().nullable(),
    last_id: z.string().nullable(),
    has_more: z.boolean(),
  });
