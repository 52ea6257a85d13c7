import { sql, type Kysely } from 'kysely';
import type { Request } from 'express';
import { z } from 'zod';
import { toQueryRange, chooseStep, type Kept } from '#libs/analytics/choose-buckets.ts';
import type { CallsWanted } from '#libs/analytics/call-source.ts';
import { graphs, readCacheSummary, type GraphName } from '#libs/analytics/graphs.ts';
import {
  groupings,
  readAgentGroups,
  readGroups,
  readMetadataGroups,
  type GroupingName,
  type GroupPage,
} from '#libs/analytics/groups.ts';
import type { RunQuery } from '#libs/analytics/run-query.ts';
import {
  AnalyticsAnswers,
  AnalyticsGraphQuery,
  AnalyticsGroupQuery,
  type AnalyticsQuery,
} from '#libs/contracts/logs/analytics.ts';
import type { Database } from '#libs/database/schema.ts';
import { refuseForeignOrganisation } from '#libs/http/rights.ts';
import { getCaller } from '#libs/http/request-context.ts';
import { withInput, type Route } from '#libs/http/route.ts';
import { namesOfKeys } from '#libs/resources/api-keys/key-names.ts';
import { chosenWorkspaces } from '#libs/records/choose-workspace.ts';
import { workspaceErrors } from '../document-texts.ts';

type Deps = { db: Kysely<Database>; runQuery: RunQuery };

/** Each graph with its content, its answer, and its additional names in clients of the interface. */
const graphRoutes: Readonly<
  Record<GraphName, { shows: string; answer: keyof typeof AnalyticsAnswers; aliases?: readonly string[] }>
> = {
  requests: { shows: 'calls', answer: 'total' },
  cost: { shows: 'costs in US cents', answer: 'cost' },
  latency: { shows: 'durations in milliseconds', answer: 'latency' },
  tokens: { shows: 'tokens, input and output', answer: 'tokens' },
  'prompt-cache': {
    shows: 'prompt tokens read from and written to caches of providers, and what that saved',
    answer: 'promptCache',
  },
  users: { shows: 'distinct users (metadata _user)', answer: 'total' },
  'users/requests': { shows: 'calls of each user', answer: 'usersRequests', aliases: ['users-requests'] },
  errors: { shows: 'calls that this gateway rejected or that failed at their provider', answer: 'errors' },
  'errors/rate': { shows: 'the percentage of failed calls', answer: 'rate', aliases: ['errors-rate'] },
  'errors/stacks': { shows: 'failed calls by status', answer: 'stacks', aliases: ['errors-stack', 'errors-stacks'] },
  'errors/status-codes': {
    shows: 'the statuses of failed calls',
    answer: 'statusCodes',
    aliases: ['errors-status-code', 'errors-status-codes'],
  },
  'requests/rescued': {
    shows: 'calls that succeeded after a retry or a fallback',
    answer: 'rescued',
    aliases: ['requests-rescued'],
  },
  'cache/hit-rate': { shows: 'answers from the cache', answer: 'hitRate', aliases: ['cache-hit-rate'] },
  'cache/latency': { shows: 'durations of answers from the cache', answer: 'average', aliases: ['cache-latency'] },
  feedbacks: { shows: 'feedback', answer: 'total' },
  'feedbacks/scores': { shows: 'feedback by value', answer: 'scores', aliases: ['feedbacks/score'] },
  'feedbacks/weighted': { shows: 'weighted feedback', answer: 'average' },
  'feedbacks/ai-models': { shows: 'feedback by model', answer: 'feedbackModels' },
};

/**
 * Runs a query about the requested calls. Queries about all workspaces take turns as those of the key's own
 * workspace.
 */
function createRunFor({ db, runQuery }: Deps) {
  /** The workspace whose calls are requested; null for all of them. Throws not_found. */
  const workspaceOf = async (request: Request, query: AnalyticsQuery): Promise<string | null> => {
    refuseForeignOrganisation(query.organisation_id);
    return await chosenWorkspaces(db, getCaller(request), query.workspace_slug ?? query.workspace_id);
  };

  const wantedOf = (workspaceId: string | null, query: AnalyticsQuery, kept: Kept): CallsWanted => ({
    filters: query,
    workspaceId,
    range: toQueryRange(query),
    kept,
  });

  return async <Answer>(
    request: Request,
    query: AnalyticsQuery,
    read: (tx: Kysely<Database>, wanted: CallsWanted) => Promise<Answer>,
  ): Promise<{ workspaceId: string | null; answer: Answer }> => {
    toQueryRange(query); // An invalid time is refused before any wait.
    const workspaceId = await workspaceOf(request, query);
    const answer = await runQuery(workspaceId ?? getCaller(request).workspaceId, (tx, kept) =>
      read(tx, wantedOf(workspaceId, query, kept)),
    );
    return { workspaceId, answer };
  };
}

/** GET /v1/analytics/…. Errors: invalid_request, not_found (workspace), rate_limited. */
export function analyticsRoutes(deps: Deps): Route[] {
  const { db } = deps;
  const runFor = createRunFor(deps);

  const graph = (name: GraphName, path: string): Route => ({
    ...describe(
      `graphs/${path}`,
      `Graph of ${graphRoutes[name].shows}${path === name ? '' : ` (the same as ${name})`}`,
      graphText(name),
    ),
    ...(path === name ? {} : { deprecated: true, operationId: `${describe(`graphs/${path}`, '').operationId}Alias` }),
    responses: { 200: { description: 'The graph.', schema: AnalyticsAnswers[graphRoutes[name].answer] } },
    ...withInput({ query: AnalyticsGraphQuery }, async ({ query }, request, response) => {
      const { answer } = await runFor(request, query, (tx, wanted) =>
        graphs[name](tx, { ...wanted, stepMs: chooseStep(wanted.range, wanted.kept) }),
      );
      response.json({ object: 'analytics-graph', ...answer });
    }),
  });

  const groupResponses = { 200: { description: 'A page of groups.', schema: AnalyticsAnswers.groups } };

  const group = (name: GroupingName): Route => ({
    ...describe(
      `groups/${name}`,
      `Calls by ${groupings[name].member.replaceAll('_', ' ')}`,
      groupText,
      notesOfGroup(name),
    ),
    responses: groupResponses,
    ...withInput({ query: AnalyticsGroupQuery }, async ({ query }, request, response) => {
      const { workspaceId, answer: page } = await runFor(request, query, (tx, wanted) =>
        name === 'agent' ? readAgentGroups(tx, wanted, query) : readGroups(tx, wanted, groupings[name], query),
      );
      const data =
        groupings[name].column === 'workspace_id'
          ? await withWorkspaceNames(db, page.data)
          : name === 'api_key'
            ? await withKeyNames(db, workspaceId, page.data)
            : page.data.map(asTexts(name));
      response.json(groupPage({ ...page, data }));
    }),
  });

  const metadataGroup: Route = {
    ...describe(
      'groups/metadata/:metadataKey',
      'Calls by the values of a metadata key, with their feedback',
      groupText,
    ),
    responses: groupResponses,
    ...withInput(
      { params: z.object({ metadataKey: z.string().min(1).max(128) }), query: AnalyticsGroupQuery },
      async ({ params, query }, request, response) => {
        const { answer } = await runFor(request, query, (tx, wanted) =>
          readMetadataGroups(tx, wanted, params.metadataKey, query),
        );
        response.json(groupPage(answer));
      },
    ),
  };

  const cacheSummary: Route = {
    ...describe('summary/cache', 'Summary of the response cache', 'Returns one object for the whole period.'),
    responses: { 200: { description: 'The summary.', schema: AnalyticsAnswers.cacheSummary } },
    ...withInput({ query: AnalyticsGraphQuery }, async ({ query }, request, response) => {
      const { answer: summary } = await runFor(request, query, readCacheSummary);
      response.json({ object: 'analytics-summary', summary });
    }),
  };

  return [
    ...Object.entries(graphRoutes).flatMap(([name, { aliases = [] }]) =>
      [name, ...aliases].map((path) => graph(name as GraphName, path)),
    ),
    cacheSummary,
    ...Object.keys(groupings).map((name) => group(name as GroupingName)),
    metadataGroup,
  ];
}

const groupPage = ({ total, hasMore, data }: GroupPage) => ({
  object: 'list',
  total,
  data: data.map((group) => ({ ...group, object: 'analytics-group' })),
  has_more: hasMore,
});

const errors = {
  invalid_value: 'a filter is invalid, or the period is missing or too long; `param` is its name',
  ...workspaceErrors,
  query_too_broad: 'the query takes too long: choose a shorter period or fewer filters',
  too_many_queries: 'the workspace has reached its limit of concurrent queries',
};

const periodText =
  'Requires `time_of_generation_min` and `time_of_generation_max`, at most 400 days apart. All filters must match. Read from ' +
  'rollups of the request log, which are a few seconds old.';
const groupText =
  'Returns requests, costs, tokens, errors and durations for each value, most requests first or by `order_by`, in pages of ' +
  '`page_size`. `columns` selects columns and adds quantiles (`p50_latency`, `p95_latency`, `p99_latency`). Values that are not ' +
  'counted individually are combined in the last entry (`is_other`).';

/** Graphs with a point for each value instead of each time. */
const withoutTimes: ReadonlySet<GraphName> = new Set([
  'errors/status-codes',
  'feedbacks/scores',
  'feedbacks/ai-models',
]);

const graphText = (name: GraphName): string =>
  withoutTimes.has(name)
    ? 'Returns a summary, and an entry in `data_points` for each value.'
    : 'Returns a summary and points in time, each with its `timestamp`. Points without calls are zero.';

const notesOfGroup = (name: GroupingName): string =>
  name === 'users' || name === 'ai-models'
    ? '`requests` and `cost` are strings here.'
    : name === 'agent'
      ? 'An `agent_id` of null stands for the main agents. Read from the calls themselves, so select one session with `session_id`.'
      : name.startsWith('workspace')
        ? 'Organisation keys see all workspaces unless the query selects one.'
        : '';

/** `graphs/errors/rate` becomes the operation `graphErrorsRate`. */
const describe = (path: string, summary: string, ...texts: readonly string[]) =>
  ({
    method: 'GET',
    path: `/v1/analytics/${path}`,
    operationId: `read${path.replaceAll(/(?:^|[/:_-]+)(\w)/g, (_match, letter: string) => letter.toUpperCase())}`,
    summary,
    description: [...texts, periodText].filter((text) => text !== '').join(' '),
    errors,
    tag: 'Analytics',
    scope: 'analytics.read',
  }) as const;

/** For these two, the interface has texts instead of numbers. */
const asTexts =
  (name: GroupingName) =>
  (group: Record<string, unknown>): Record<string, unknown> => {
    if (name !== 'users' && name !== 'ai-models') return group;
    const texts = (['requests', 'cost'] as const).filter((member) => member in group);
    return { ...group, ...Object.fromEntries(texts.map((member) => [member, String(group[member])])) };
  };

/** Adds `api_key_name`: null if the caller cannot see the key, such as a key of the organisation. */
async function withKeyNames(
  db: Kysely<Database>,
  workspaceId: string | null,
  groups: readonly Record<string, unknown>[],
): Promise<Record<string, unknown>[]> {
  const names = await namesOfKeys(
    db,
    workspaceId,
    groups.map((group) => String(group['api_key'])),
  );
  return groups.map((group) => ({ ...group, api_key_name: names.get(String(group['api_key'])) ?? null }));
}

async function withWorkspaceNames(
  db: Kysely<Database>,
  groups: readonly Record<string, unknown>[],
): Promise<Record<string, unknown>[]> {
  const ids = groups.map((group) => String(group['workspace_id']));
  const { rows } = await sql<{ id: string; slug: string | null; name: string | null }>`
    select id, slug, data ->> 'name' as name from resource where kind = 'workspace' and id = any(${ids}::text[])`.execute(
    db,
  );
  const byId = new Map(rows.map((row) => [row.id, row]));
  return groups.map((group) => {
    const found = byId.get(String(group['workspace_id']));
    return { ...group, workspace_slug: found?.slug ?? null, workspace_name: found?.name ?? null };
  });
}
