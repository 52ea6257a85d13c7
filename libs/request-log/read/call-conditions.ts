import { sql, type RawBuilder } from 'kysely';
import type { CallFilters, ListFilterName } from '#libs/contracts/logs/call-filters.ts';
import { columnList } from '../columns.ts';

// The filters on calls as SQL, for the request log and for its rollups.

/** Σ value·weight ÷ Σ weight of the rows of a group; null where all weights are 0. */
export const weightedFeedback: RawBuilder<unknown> = sql`(sum(value * weight) / nullif(sum(weight), 0))`;

export const and = (conditions: readonly RawBuilder<unknown>[]): RawBuilder<unknown> =>
  conditions.length === 0 ? sql`true` : sql.join(conditions, sql` and `);

export const workspaceCondition = (workspaceId: string | null): RawBuilder<unknown>[] =>
  workspaceId === null ? [] : [sql`workspace_id = ${workspaceId}`];

/**
 * Lists of texts, by the column that must be one of them: columns that rollups also have, or columns of the log only.
 */
const textLists = (filters: CallFilters, isRolledUp: boolean): [column: string, values: readonly string[]][] =>
  columnList.flatMap(([name, { filter, ...column }]) => {
    const values = filter?.list === undefined ? undefined : filters[filter.list as ListFilterName];
    return values === undefined || (column.isRolledUp === true) !== isRolledUp ? [] : [[name, values]];
  });

const listConditions = (filters: CallFilters, isRolledUp: boolean): RawBuilder<unknown>[] =>
  textLists(filters, isRolledUp).map(([column, values]) => sql`${sql.ref(column)} = any(${[...values]}::text[])`);

/** The columns that `rollupConditions` filters. */
export const filteredColumns = (filters: CallFilters): string[] => [
  ...textLists(filters, true).map(([column]) => column),
  ...(filters.status_code === undefined ? [] : ['status']),
  ...(filters.ai_org_model === undefined ? [] : ['provider', 'model']),
];

/** Filters on columns that rollups and the log both have. */
export function rollupConditions(filters: CallFilters): RawBuilder<unknown>[] {
  const { status_code, ai_org_model } = filters;
  const conditions = listConditions(filters, true);
  if (status_code !== undefined) conditions.push(sql`status = any(${status_code}::int[])`);
  if (ai_org_model !== undefined) {
    const pairs = ai_org_model.map((name) => {
      const [, provider, model] = /^(.*?)__(.*)$/s.exec(name) ?? [];
      return provider === undefined
        ? sql`(provider = ${name} or model = ${name})`
        : sql`(provider = ${provider} and model = ${model})`;
    });
    conditions.push(sql`(${sql.join(pairs, sql` or `)})`);
  }
  return conditions;
}

/** Whether a filter needs columns that only rows of the log have. */
export function needsLog(filters: CallFilters): boolean {
  return textLists(filters, false).length > 0 || rangesOf(filters).length > 0 || hasScore(filters);
}

const hasScore = ({ weighted_feedback_min, weighted_feedback_max }: CallFilters): boolean =>
  weighted_feedback_min !== undefined || weighted_feedback_max !== undefined;

const input = sql`coalesce(input_tokens, 0)`;
const output = sql`coalesce(output_tokens, 0)`;

/** Filters on usage and cost. */
export function rangesOf(filters: CallFilters): RawBuilder<unknown>[] {
  const ranges: [RawBuilder<unknown>, string | undefined, string | undefined][] = [
    [sql`${input} + ${output}`, filters.total_units_min, filters.total_units_max],
    [sql`cost`, filters.cost_min, filters.cost_max],
    [input, filters.prompt_token_min, filters.prompt_token_max],
    [output, filters.completion_token_min, filters.completion_token_max],
  ];
  return ranges.flatMap(([value, min, max]) => [
    ...(min === undefined ? [] : [sql`${value} >= ${min}::numeric`]),
    ...(max === undefined ? [] : [sql`${value} <= ${max}::numeric`]),
  ]);
}

/**
 * Names of metadata that stand for columns in analytics: the agent session of a call, and its sub-agent, which is empty
 * for the main agent. Calls cannot have metadata of these names, because they begin with an underscore.
 */
export const sessionKey = '_session';
export const agentKey = '_agent';

/** The value of a metadata key of a row of the log; null if the call has none. */
export const metadataValue = (key: string): RawBuilder<unknown> => {
  if (key === sessionKey) return sql`session_id`;
  if (key === agentKey) return sql`case when session_id is not null then coalesce(agent_id, '') end`;
  return sql`metadata ->> ${key}`;
};

/** Filters that only the log supports, and those on metadata, for rows of the log. */
export const logConditions = (filters: CallFilters, workspaceId: string | null): RawBuilder<unknown>[] => [
  ...rangesOf(filters),
  ...sharedLogConditions(filters, workspaceId),
];

/** Those of `logConditions` that all lines of a pack meet, or none. The others are `rangesOf`. */
export function sharedLogConditions(filters: CallFilters, workspaceId: string | null): RawBuilder<unknown>[] {
  const { metadata = {}, weighted_feedback_min: min, weighted_feedback_max: max } = filters;
  const conditions = [...listConditions(filters, false)];
  for (const [key, values] of Object.entries(metadata))
    conditions.push(sql`${metadataValue(key)} = any(${values}::text[])`);
  if (hasScore(filters)) {
    conditions.push(sql`(workspace_id, trace_id) in (
      select workspace_id, trace_id from feedback where ${and(workspaceCondition(workspaceId))} group by 1, 2
      having ${weightedFeedback} >= ${min ?? '-10'}::numeric and ${weightedFeedback} <= ${max ?? '10'}::numeric)`);
  }
  return conditions;
}
