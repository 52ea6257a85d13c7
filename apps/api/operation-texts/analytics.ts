import { AnalyticsAnswers } from '#libs/contracts/analytics.ts';
import type { OperationTexts } from '#libs/http/openapi.ts';
import type { Route } from '#libs/http/route.ts';

const errors = {
  invalid_value: 'a filter is wrong, or the time is missing or too long; `param` names it',
  workspace_not_found: 'the query names none that the key may use',
  query_too_broad: 'it takes too long: choose a shorter time or fewer filters',
  too_many_queries: 'the workspace asks too much at once',
};
const period =
  'Needs `time_of_generation_min` and `time_of_generation_max`, at most 400 days apart; all filters must match. Read from rollups that ' +
  'are some seconds old, equal to the rows of the request log.';

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
  const what =
    kind === 'summary'
      ? 'One object for the whole time.'
      : withoutTimes.has(schema)
        ? 'A summary, and in `data_points` one entry for each value.'
        : 'A summary and points in time, each with its `timestamp`; points without calls are zero.';
  return { description: `${what} ${period}`, errors };
}

function groupText(name: string): OperationTexts[string] {
  const asText = name === 'users' || name === 'ai-models';
  const more = asText
    ? 'Here `requests` and `cost` are texts.'
    : name.startsWith('workspace')
      ? 'A key of the organisation that names no workspace sees all of them.'
      : '';
  return {
    description:
      'Requests, costs, tokens, errors and durations of each value, most requests first or by `order_by`, in pages of `page_size`; ' +
      '`columns` chooses among them, and adds quantiles (`p50_latency`, `p95_latency`, `p99_latency`). Values that are not counted one ' +
      `by one are together in the last one (\`is_other\`). ${[more, period].join(' ').trim()}`,
    errors,
  };
}
