import { z } from 'zod';
import { columnList, type ColumnName, type Columns } from '#libs/request-log/columns.ts';
import { timestamp } from '../people/access-fields.ts';
import { wholeNumberText } from '../lists.ts';
import { addBreach, isStorable, text } from '../scalars.ts';

// Filters on calls in a query string, for lists and exports of the request log and for analytics alike.

const listItemsMax = 100;

/** A comma-separated list of a query, without empty items. */
export const textList = () =>
  text({ min: 1, max: 10_000 })
    .transform((given, context) => {
      const items = given
        .split(',')
        .map((item) => item.trim())
        .filter((item) => item !== '');
      if (items.length <= listItemsMax) return items;
      addBreach(context, {
        path: [],
        code: 'array_above_max_length',
        text: (name) =>
          `Invalid ${name()}: a list can have at most ${listItemsMax} items, but this one has ${items.length}.`,
      });
      return z.NEVER;
    })
    .optional();

/** A number of a query string, as it is written in JSON. It stays text, because exact costs are compared with it. */
const decimalText = ({ min, max }: { min: number; max: number }) =>
  text({ min: 1, max: 40 })
    .transform((given, context) => {
      if (/^-?\d{1,18}(?:\.\d{1,18})?$/.test(given) && Number(given) >= min && Number(given) <= max) return given;
      const expected = max === Infinity ? `a number of at least ${min}` : `a number from ${min} to ${max}`;
      addBreach(context, {
        path: [],
        code: 'invalid_value',
        text: (name) => `Invalid ${name()}: expected ${expected}, such as 5 or 0.25.`,
      });
      return z.NEVER;
    })
    .optional();

const amount = () => decimalText({ min: 0, max: Infinity });
const score = () => decimalText({ min: -10, max: 10 });

const statusList = () =>
  textList().transform((items, context) => {
    if (items === undefined || items.every((item) => /^[1-5]\d\d$/.test(item))) return items?.map(Number);
    addBreach(context, {
      path: [],
      code: 'invalid_value',
      text: (name) => `Invalid ${name()}: expected HTTP statuses from 100 to 599, separated by commas.`,
    });
    return z.NEVER;
  });

/** `{"team":"search"}`, or `{"team":["search","ads"]}` for any of several. */
const metadataFilter = () =>
  text({ min: 2, max: 10_000 })
    .transform((given, context) => {
      const parsed = MetadataFilter.safeParse(parseJson(given));
      if (parsed.success) return parsed.data;
      addBreach(context, {
        path: [],
        code: 'invalid_value',
        text: (name) =>
          `Invalid ${name()}: expected a JSON object whose values are strings or lists of strings without U+0000, such as {"team":"search"}.`,
      });
      return z.NEVER;
    })
    .optional();

const storable = () => z.string().refine(isStorable);
const metadataValue = z.union([storable(), z.number(), z.boolean()]).transform(String);
const MetadataFilter = z
  .record(storable().max(128), z.union([metadataValue.transform((value) => [value]), z.array(metadataValue).max(100)]))
  .refine((members) => Object.keys(members).length <= 16);

function parseJson(given: string): unknown {
  try {
    return JSON.parse(given) as unknown;
  } catch {
    return undefined;
  }
}

/** ISO 8601, or Unix seconds. */
export const moment = () =>
  z.preprocess(
    (value) => (typeof value === 'string' && /^\d{1,12}$/.test(value) ? wholeNumberText(value) : value),
    timestamp(),
  );

/** The workspace that a key of the organisation selects. */
export const workspaceChoice = {
  workspace_slug: text({ min: 1, max: 200 }).optional().describe('An ID or slug. Default: the workspace of the key.'),
  workspace_id: text({ min: 1, max: 200 }).optional().describe('The same as workspace_slug.'),
  organisation_id: text({ min: 1, max: 200 })
    .optional()
    .describe('The ID of this organisation. No other value is accepted.'),
};

/** The filters that accept a list of the values of a column. */
export type ListFilterName = Extract<Columns[ColumnName], { filter: { list: string } }>['filter']['list'];
const listFilters = Object.fromEntries(
  columnList.flatMap(([, { filter }]) => {
    if (filter?.list === undefined) return [];
    return [[filter.list, filter.description === undefined ? textList() : textList().describe(filter.description)]];
  }),
) as Record<ListFilterName, ReturnType<typeof textList>>;

/** The filters on calls, which must all match. */
export const callFilters = {
  total_units_min: amount().describe('Input and output tokens of a call.'),
  total_units_max: amount(),
  cost_min: amount().describe('US cents. Calls without a known price have no cost.'),
  cost_max: amount().describe('US cents'),
  prompt_token_min: amount(),
  prompt_token_max: amount(),
  completion_token_min: amount(),
  completion_token_max: amount(),
  weighted_feedback_min: score().describe('The weighted feedback of the trace of a call: Σ value·weight ÷ Σ weight.'),
  weighted_feedback_max: score(),
  status_code: statusList().describe('HTTP statuses, such as 200,429.'),
  metadata: metadataFilter().describe('A JSON object. All of its members must match.'),
  ai_org_model: textList().describe('A provider and model, such as openai__gpt-5, or only one of them.'),
  ...listFilters,
};

const CallFilters = z.object(callFilters);
/** The filters after they were checked. Absent ones match every call. */
export type CallFilters = Partial<z.output<typeof CallFilters>>;
