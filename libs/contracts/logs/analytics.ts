import { z } from 'zod';
import { callFilters, moment, textList, workspaceChoice } from './call-filters.ts';
import { optionalInteger } from '../lists.ts';
import { text } from '../scalars.ts';

// GET /analytics/…: figures about the calls of a workspace, from its request log.

/** The query of every operation: the time range, and filters that must all match. */
export const AnalyticsQuery = z.object({
  ...workspaceChoice,
  workspace_slug: workspaceChoice.workspace_slug.describe(
    'An ID or slug. Default: all workspaces for an organisation key, otherwise the workspace of the key.',
  ),
  time_of_generation_min: moment().describe('Recorded at or after this time, in ISO 8601 or Unix seconds.'),
  time_of_generation_max: moment().describe('Recorded at or before this time.'),
  ...callFilters,
});
export type AnalyticsQuery = z.output<typeof AnalyticsQuery>;

const page = {
  current_page: optionalInteger({ min: 0, max: 1_000_000 }),
  page_size: optionalInteger({ min: 1, max: 1_000 }),
  order_by: text({ min: 1, max: 40 }).optional().describe('The column to sort by. Default: `requests`.'),
  order_by_type: z.enum(['asc', 'desc']).optional(),
};

/** Clients also send the page to graphs, where it has no effect. */
export const AnalyticsGraphQuery = AnalyticsQuery.extend(page);

export const AnalyticsGroupQuery = AnalyticsQuery.extend({
  ...page,
  columns: textList().describe('The columns of each group. Default: all.'),
  include_total: z.enum(['true', 'false']).optional().describe('Accepted. The answer always contains the total.'),
});
export type AnalyticsGroupQuery = z.output<typeof AnalyticsGroupQuery>;

const graph = <Summary extends z.ZodType, Point extends z.ZodType>(summary: Summary, point: Point) =>
  z.object({ object: z.literal('analytics-graph'), summary, data_points: z.array(point) });
const timestampOf = { timestamp: z.string().describe('The start of this interval, in ISO 8601.') };
const number = z.number();
const cents = () => z.number().describe('US cents');
const promptCache = {
  prompt_tokens: z.int(),
  cached_tokens: z.int().describe('Prompt tokens that were read from a cache.'),
  cache_write_tokens: z.int().describe('Prompt tokens that were written to a cache, as far as providers report them.'),
  cached_rate: z.number().describe('The percentage of prompt tokens that were read from a cache.'),
  saved: cents().describe(
    'US cents: the price of the same tokens without a cache, minus what was paid. Negative if writing cost more than reading saved.',
  ),
};

/** The answers, by operation. */
export const AnalyticsAnswers = {
  total: graph(z.object({ total: number }), z.object({ ...timestampOf, total: number })),
  errors: graph(
    z.object({ total: number, refused: number.describe('Rejected by this gateway.'), at_provider: number }),
    z.object({ ...timestampOf, total: number, refused: number, at_provider: number }),
  ),
  cost: graph(
    z.object({ total: cents(), avg: cents(), unpriced: z.int().describe('Calls without a known price.') }),
    z.object({ ...timestampOf, total: cents(), avg: cents(), unpriced: z.int() }),
  ),
  promptCache: graph(z.object(promptCache), z.object({ ...timestampOf, ...promptCache })),
  tokens: graph(z.object({ total: number, avg: number }), z.object({ ...timestampOf, total: number, avg: number })),
  latency: graph(
    z.object({ avg: number, p50: number, p90: number, p99: number }),
    z.object({ ...timestampOf, avg: number, p50: number, p90: number, p99: number }),
  ),
  usersRequests: graph(
    z.object({ total: number, unique: number, avg: number }),
    z.object({ ...timestampOf, total: number, unique: number, avg: number }),
  ),
  rate: graph(z.object({ rate: number }), z.object({ ...timestampOf, rate: number })),
  stacks: graph(
    z.object({ total: number }),
    z.object({
      ...timestampOf,
      stats: z.array(z.object({ response_status_code: z.int().describe('0 if no answer was sent.'), count: z.int() })),
    }),
  ),
  statusCodes: graph(
    z.object({ total_errors: z.int(), unique_error_codes: z.int() }),
    z.object({ status_code: z.int(), count: z.int() }),
  ),
  rescued: graph(
    z.object({ retry: z.int(), fallback: z.int() }),
    z.object({
      ...timestampOf,
      retry: z.array(z.object({ retry_success_count: z.int(), count: z.int() })),
      fallback: z.int(),
    }),
  ),
  hitRate: graph(
    z.object({ total: number, rate: number }),
    z.object({
      ...timestampOf,
      simple_hits: z.int(),
      semantic_hits: z.int(),
      rate: number,
      cumulative_simple_cache_savings: number,
      cumulative_semantic_cache_savings: number,
    }),
  ),
  average: graph(z.object({ avg: number }), z.object({ ...timestampOf, avg: number })),
  scores: graph(z.object({ total: number }), z.object({ score: z.int(), total: number })),
  feedbackModels: graph(
    z.looseObject({}),
    z.object({ ai_model: z.string().nullable(), total: number, avg_weighted_feedback: number }),
  ),
  cacheSummary: z.object({
    object: z.literal('analytics-summary'),
    summary: z.object({ hits: number, avg_latency: number, total_requests: number, cache_speedup: number }),
  }),
  groups: z.object({
    object: z.literal('list'),
    total: z.int(),
    data: z.array(z.looseObject({ object: z.literal('analytics-group') })),
    has_more: z.boolean(),
  }),
} as const;
