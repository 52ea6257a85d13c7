import { sql, type Kysely, type RawBuilder } from 'kysely';
import type { AnalyticsGroupQuery } from '#libs/contracts/logs/analytics.ts';
import type { Database } from '#libs/database/schema.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import {
  agentKey,
  and,
  logConditions,
  rollupConditions,
  sessionKey,
  workspaceCondition,
} from '#libs/request-log/read/call-conditions.ts';
import { userKey } from './aggregate-calls.ts';
import { dimensions } from './call-columns.ts';
import { callSource, isRolledUp, type CallsWanted } from './call-source.ts';
import { readGroupFeedback } from './feedback-graphs.ts';
import { toTotals, totalColumns, type Totals } from './read-totals.ts';
import { recordedIn } from './rollups/roll-up.ts';

type TotalsRow = Parameters<typeof toTotals>[0];

/** The properties by which calls can be grouped: the member that has the value, and the column of rollups. */
export const groupings = {
  users: { member: 'user', column: 'value', metadataKey: userKey },
  'ai-models': { member: 'ai_model', column: 'model' },
  model: { member: 'ai_model', column: 'model' },
  provider: { member: 'provider', column: 'provider' },
  ai_service: { member: 'ai_service', column: 'provider' },
  status_code: { member: 'status_code', column: 'status' },
  api_key: { member: 'api_key', column: 'key_id' },
  virtual_key: { member: 'virtual_key', column: 'virtual_key' },
  session: { member: 'session_id', column: 'value', metadataKey: sessionKey },
  agent: { member: 'agent_id', column: 'value', metadataKey: agentKey },
  config: { member: 'config', column: 'config' },
  prompt: { member: 'prompt', column: 'prompt_slug' },
  workspaces: { member: 'workspace_id', column: 'workspace_id' },
  workspace: { member: 'workspace_id', column: 'workspace_id' },
} as const satisfies Record<string, { member: string; column: string; metadataKey?: string }>;
export type GroupingName = keyof typeof groupings;

type Grouping = { member: string; column: string; metadataKey?: string };

const perRequest = (sum: number, requests: number): number =>
  requests === 0 ? 0 : Math.round((1e6 * sum) / requests) / 1e6;

/** The members of a group: how each is read from its totals, and by which column SQL sorts it. */
const columns: Readonly<Record<string, { read: (totals: Totals) => unknown; order: RawBuilder<unknown> }>> = {
  requests: { read: ({ requests }) => requests, order: sql`sum(requests)` },
  cost: { read: ({ cost }) => cost.toNumber(), order: sql`sum(cost)` },
  unpriced: { read: ({ unpriced }) => unpriced, order: sql`sum(unpriced)` },
  total_tokens: {
    read: ({ inputTokens, outputTokens }) => inputTokens + outputTokens,
    order: sql`sum(input_tokens + output_tokens)`,
  },
  cached_tokens: { read: ({ cachedTokens }) => cachedTokens, order: sql`sum(cached_tokens)` },
  cache_write_tokens: { read: ({ cacheWriteTokens }) => cacheWriteTokens, order: sql`sum(cache_write_tokens)` },
  prompt_cache_saved: {
    read: ({ promptCacheSaved }) => promptCacheSaved.toNumber(),
    order: sql`sum(prompt_cache_saved)`,
  },
  avg_tokens: {
    read: ({ inputTokens, outputTokens, requests }) => perRequest(inputTokens + outputTokens, requests),
    order: sql`sum(input_tokens + output_tokens) / sum(requests)`,
  },
  avg_input_tokens: {
    read: ({ inputTokens, requests }) => perRequest(inputTokens, requests),
    order: sql`sum(input_tokens) / sum(requests)`,
  },
  avg_output_tokens: {
    read: ({ outputTokens, requests }) => perRequest(outputTokens, requests),
    order: sql`sum(output_tokens) / sum(requests)`,
  },
  avg_latency: {
    read: ({ durationUs, requests }) => perRequest(durationUs / 1_000, requests),
    order: sql`sum(duration_us) / sum(requests)`,
  },
  total_latency: { read: ({ durationUs }) => durationUs / 1_000, order: sql`sum(duration_us)` },
  success_rate: {
    read: ({ requests, failed }) => perRequest(100 * (requests - failed), requests),
    order: sql`(sum(requests) - sum(failed_requests)) / sum(requests)`,
  },
  error_count: { read: ({ failed }) => failed, order: sql`sum(failed_requests)` },
  refused_count: { read: ({ refused }) => refused, order: sql`sum(refused_requests)` },
  provider_error_count: {
    read: ({ failed, refused }) => failed - refused,
    order: sql`sum(failed_requests - refused_requests)`,
  },
  cache_hit_rate: {
    read: ({ hits, requests }) => perRequest(100 * hits, requests),
    order: sql`sum(hits) / sum(requests)`,
  },
  first_seen: { read: ({ firstAt }) => firstAt?.toISOString(), order: sql`min(first_at)` },
  last_seen: { read: ({ lastAt }) => lastAt?.toISOString(), order: sql`max(last_at)` },
};
/** They need all histograms, so they are only present if they are requested. */
const quantiles: Readonly<Record<string, number>> = { p50_latency: 0.5, p95_latency: 0.95, p99_latency: 0.99 };

type GroupRow = TotalsRow & { value: string | number | null; other: boolean; groups: number };

export type GroupPage = { total: number; hasMore: boolean; data: Record<string, unknown>[] };

/** The name of the last group, which has the calls of all rare values, in addition to `is_other`. */
const otherValue = 'other';

/**
 * Groups calls by one of `groupings`, most requests first unless the query specifies something else. Throws
 * invalid_request.
 */
export async function readGroups(
  db: Kysely<Database>,
  wanted: CallsWanted,
  grouping: Grouping,
  query: Pick<AnalyticsGroupQuery, 'current_page' | 'page_size' | 'order_by' | 'order_by_type' | 'columns'>,
): Promise<GroupPage> {
  const shown = query.columns ?? Object.keys(columns);
  for (const name of shown) {
    if (!(name in columns) && !(name in quantiles)) throw unknownColumn('columns', name);
  }
  const { order_by: orderBy = 'requests' } = query;
  const order = columns[orderBy]?.order;
  if (order === undefined) throw unknownColumn('order_by', orderBy);
  const limit = query.page_size ?? 50;
  const skip = (query.current_page ?? 0) * limit;
  const withLatency = shown.some((name) => name in quantiles);
  const withTimes = [...shown, orderBy].some((name) => name === 'first_seen' || name === 'last_seen');
  const { metadataKey } = grouping;
  const asked = metadataKey === undefined ? wanted : { ...wanted, metadataKey };
  const reads = dimensions.filter((name) => name === grouping.column && name !== 'workspace_id');
  const direction = query.order_by_type === 'asc' ? sql`asc` : sql`desc`;
  const select = (from: CallsWanted, sums: RawBuilder<unknown>, where = sql`true`): RawBuilder<GroupRow> => sql`
    select ${sql.ref(grouping.column)} as value, other, ${sums}, count(*) over () as groups
    from (${callSource(from, { reads, withLatency })}) as call where ${where} group by 1, 2
    order by other, ${order} ${direction}, 1`;
  const totals = totalColumns({ withLatency, withTimes });
  const page = sql`limit ${limit} offset ${skip}`;
  // With thousands of users, all sums are computed only for those on the page.
  const isRanked = metadataKey !== undefined && isRolledUp(asked);
  const { rows: found } = await sql<GroupRow>`${select(asked, isRanked ? order : totals)} ${page}`.execute(db);
  const rows = isRanked ? await totalsOf(found, metadataKey) : found;
  const data = rows.map((row) => {
    const totals = toTotals(row);
    const members = shown.map((name) => [
      name,
      columns[name]?.read(totals) ?? totals.latency.quantile(quantiles[name] ?? 0),
    ]);
    const named = row.other ? { [grouping.member]: otherValue, is_other: true } : { [grouping.member]: row.value };
    return { ...named, ...Object.fromEntries(members) } as Record<string, unknown>;
  });
  const total = found[0]?.groups ?? (skip === 0 ? 0 : await countGroups(db, callSource(asked, { reads }), grouping));
  return { total, hasMore: skip + rows.length < total, data };

  async function totalsOf(ranked: readonly GroupRow[], key: string): Promise<GroupRow[]> {
    const values = ranked.flatMap(({ value, other }) => (other ? [] : [String(value)]));
    const { filters } = asked;
    const ofValues = { ...asked, filters: { ...filters, metadata: { ...filters.metadata, [key]: values } } };
    const { rows: named } = await select(ofValues, totals).execute(db);
    if (!ranked.some(({ other }) => other)) return named;
    const { rows: rest } = await select(asked, totals, sql`other`).execute(db);
    return [...named, ...rest];
  }
}

async function countGroups(db: Kysely<Database>, source: RawBuilder<unknown>, { column }: Grouping): Promise<number> {
  const { rows } = await sql<{ groups: number }>`
    select count(*) as groups from (select from (${source}) as call group by ${sql.ref(column)}, other) as found`.execute(
    db,
  );
  return rows[0]?.groups ?? 0;
}

/** Calls by the values of a metadata key, with the feedback on their traces. */
export async function readMetadataGroups(
  db: Kysely<Database>,
  wanted: CallsWanted,
  key: string,
  query: Parameters<typeof readGroups>[3],
): Promise<GroupPage> {
  const grouping = { member: 'metadata_value', column: 'value', metadataKey: key };
  const page = await readGroups(db, wanted, grouping, query);
  const values = page.data
    .filter((group) => group['is_other'] !== true)
    .map((group) => String(group['metadata_value']));
  const feedback = await readGroupFeedback(db, wanted, key, values);
  return {
    ...page,
    data: page.data.map((group) => {
      const found = group['is_other'] === true ? undefined : feedback.get(String(group['metadata_value']));
      return {
        ...group,
        avg_weighted_feedback: found?.weighted ?? 0,
        requests_with_feedback: found?.requests ?? 0,
      };
    }),
  };
}

/**
 * Calls by the agents of sessions, each with the agent that started it. The group of the main agents has the ID null.
 */
export async function readAgentGroups(
  db: Kysely<Database>,
  wanted: CallsWanted,
  query: Parameters<typeof readGroups>[3],
): Promise<GroupPage> {
  const page = await readGroups(db, wanted, groupings.agent, query);
  const { filters, workspaceId, range } = wanted;
  const ids = page.data.flatMap(({ agent_id: id }) => (id === '' ? [] : [String(id)]));
  const conditions = [
    ...workspaceCondition(workspaceId),
    ...rollupConditions(filters),
    ...logConditions(filters, workspaceId),
    recordedIn(range),
    sql`agent_id = any(${ids}::text[])`,
  ];
  const { rows } = await sql<{ agent: string; parent: string | null }>`
    select agent_id as agent, min(parent_agent_id) as parent from request_log where ${and(conditions)}
    group by agent_id`.execute(db);
  const parents = new Map(rows.map(({ agent, parent }) => [agent, parent]));
  const data = page.data.map((group) => {
    const id = group['agent_id'] === '' ? null : String(group['agent_id']);
    return { ...group, agent_id: id, parent_agent_id: id === null ? null : (parents.get(id) ?? null) };
  });
  return { ...page, data };
}

function unknownColumn(param: string, name: string): GatewayError {
  const known = param === 'columns' ? [...Object.keys(columns), ...Object.keys(quantiles)] : Object.keys(columns);
  const message = `Invalid '${param}': unknown column '${name.slice(0, 40)}'. Available columns: ${known.join(', ')}.`;
  return new GatewayError('invalid_request', 'invalid_value', message, { param });
}
