import { groupings, type GroupingName } from '#libs/analytics/groups.ts';
import { AnalyticsAnswers } from '#libs/contracts/analytics.ts';
import type { OperationTexts } from '#libs/http/openapi.ts';
import type { Route } from '#libs/http/route.ts';
import { providers } from '#libs/providers/provider-list.ts';

const { id: provider = '' } = providers[0] ?? {};

const errors = {
  invalid_value: 'a filter is wrong, or the time is missing or too long; `param` names it',
  workspace_not_found: 'the query names none that the key may use',
  query_too_broad: 'it takes too long: choose a shorter time or fewer filters',
  too_many_queries: 'the workspace asks too much at once',
};
const period =
  'Needs `time_of_generation_min` and `time_of_generation_max`, at most 400 days apart; all filters must match. Read from rollups that ' +
  'are some seconds old, equal to the rows of the request log.';

const graph = (summary: object, ...points: object[]): object => ({
  object: 'analytics-graph',
  summary,
  data_points: points,
});
const timestamp = '2026-11-23T12:00:00.000Z';

/** An answer in each form; costs are in US cents, durations in milliseconds, rates in per cent. */
const answers: Readonly<Record<Exclude<keyof typeof AnalyticsAnswers, 'groups'>, object>> = {
  total: graph({ total: 25 }, { timestamp, total: 25 }),
  errors: graph({ total: 1, refused: 1, at_provider: 0 }, { timestamp, total: 1, refused: 1, at_provider: 0 }),
  cost: graph({ total: 12.5, avg: 0.5, unpriced: 0 }, { timestamp, total: 12.5, avg: 0.5, unpriced: 0 }),
  tokens: graph({ total: 8_000, avg: 320 }, { timestamp, total: 8_000, avg: 320 }),
  latency: graph(
    { avg: 840, p50: 790, p90: 1_400, p99: 2_100 },
    { timestamp, avg: 840, p50: 790, p90: 1_400, p99: 2_100 },
  ),
  usersRequests: graph({ total: 25, unique: 5, avg: 5 }, { timestamp, total: 25, unique: 5, avg: 5 }),
  rate: graph({ rate: 4 }, { timestamp, rate: 4 }),
  stacks: graph({ total: 1 }, { timestamp, stats: [{ response_status_code: 429, count: 1 }] }),
  statusCodes: graph({ total_errors: 1, unique_error_codes: 1 }, { status_code: 429, count: 1 }),
  rescued: graph({ retry: 2, fallback: 1 }, { timestamp, retry: [{ retry_success_count: 1, count: 2 }], fallback: 1 }),
  hitRate: graph(
    { total: 25, rate: 20 },
    {
      timestamp,
      simple_hits: 5,
      semantic_hits: 0,
      rate: 20,
      cumulative_simple_cache_savings: 2.5,
      cumulative_semantic_cache_savings: 0,
    },
  ),
  average: graph({ avg: 0.9 }, { timestamp, avg: 0.9 }),
  scores: graph({ total: 3 }, { score: 1, total: 3 }),
  feedbackModels: graph({}, { ai_model: 'gpt-5-mini', total: 3, avg_weighted_feedback: 0.9 }),
  cacheSummary: {
    object: 'analytics-summary',
    summary: { hits: 5, avg_latency: 12, total_requests: 25, cache_speedup: 70 },
  },
};
const named = new Map<unknown, object>(
  Object.entries(answers).map(([name, answer]) => [AnalyticsAnswers[name as keyof typeof answers], answer]),
);

/** Graphs whose points are values instead of times. */
const withoutTimes = new Set<unknown>([
  AnalyticsAnswers.statusCodes,
  AnalyticsAnswers.scores,
  AnalyticsAnswers.feedbackModels,
]);

/** What an operation of analytics says: all of them take the same filters. Undefined: it is none. */
export function analyticsText({ path, responses }: Route): OperationTexts[string] | undefined {
  const [, kind, name = ''] = /^\/v1\/analytics\/(\w+)\/(.+)$/.exec(path) ?? [];
  if (kind === undefined) return undefined;
  if (kind === 'groups') return groupText(name);
  const schema = responses[200]?.schema;
  const answer = named.get(schema);
  const what =
    kind === 'summary'
      ? 'One object for the whole time.'
      : withoutTimes.has(schema)
        ? 'A summary, and in `data_points` one entry for each value.'
        : 'A summary and points in time, each with its `timestamp`; points without calls are zero.';
  return { description: `${what} ${period}`, errors, ...(answer === undefined ? {} : { answer }) };
}

function groupText(name: string): OperationTexts[string] {
  const asText = name === 'users' || name === 'ai-models';
  const more = asText
    ? 'Here `requests` and `cost` are texts.'
    : name.startsWith('workspace')
      ? 'A key of the organisation that names no workspace sees all of them.'
      : '';
  const grouping = groupings[name as GroupingName] as (typeof groupings)[GroupingName] | undefined;
  const group = {
    ...members[grouping?.member ?? 'metadata_value'],
    requests: asText ? '25' : 25,
    cost: asText ? '12.5' : 12.5,
    unpriced: 0,
    total_tokens: 8_000,
    avg_tokens: 320,
    avg_input_tokens: 200,
    avg_output_tokens: 120,
    avg_latency: 840,
    success_rate: 96,
    error_count: 1,
    refused_count: 1,
    provider_error_count: 0,
    cache_hit_rate: 20,
    first_seen: timestamp,
    last_seen: '2026-11-23T12:40:00.000Z',
    ...(grouping === undefined ? { avg_weighted_feedback: 0.9, requests_with_feedback: 3 } : {}),
    object: 'analytics-group',
  };
  return {
    description:
      'Requests, costs, tokens, errors and durations of each value, most requests first or by `order_by`, in pages of `page_size`; ' +
      '`columns` chooses among them, and adds quantiles (`p50_latency`, `p95_latency`, `p99_latency`). Values that are not counted one ' +
      `by one are together in the last one (\`is_other\`). ${[more, period].join(' ').trim()}`,
    errors,
    answer: { object: 'list', total: 1, data: [group], has_more: false },
  };
}

/** The members that name a group, by what calls are grouped by. */
const members: Readonly<Record<string, object>> = {
  user: { user: 'ada' },
  ai_model: { ai_model: 'gpt-5-mini' },
  provider: { provider },
  ai_service: { ai_service: provider },
  status_code: { status_code: 200 },
  api_key: { api_key: 'key_abc', api_key_name: 'search service' },
  virtual_key: { virtual_key: 'main' },
  config: { config: 'support' },
  prompt: { prompt: 'support-reply' },
  workspace_id: { workspace_id: 'ws_abc', workspace_slug: 'search', workspace_name: 'Search' },
  metadata_value: { metadata_value: 'search' },
};
