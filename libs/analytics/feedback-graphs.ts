import { sql, type Kysely, type RawBuilder } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import { and, logConditions, rollupConditions, weightedFeedback } from '#libs/request-log/call-conditions.ts';
import type { CallsWanted } from './call-source.ts';
import { pointOf } from './read-totals.ts';

// Feedback counts at the time when it was given. Filters are about calls: feedback passes them when a call of its trace does.

type Scored = { count: number; weighted: number };

/** The condition on `feedback` for what is wanted. */
function feedbackWanted(wanted: CallsWanted): RawBuilder<unknown> {
  const { workspaceId, range, filters } = wanted;
  const conditions = [
    sql`feedback.workspace_id = ${workspaceId}`,
    sql`feedback.created_at >= ${new Date(range.from)}`,
    sql`feedback.created_at < ${new Date(range.to)}`,
  ];
  const ofCalls = callConditions(wanted);
  const hasFilters = rollupConditions(filters).length + logConditions(filters, workspaceId).length > 0;
  // The traces of the calls, once: an `exists` would look each one up in every day of the log.
  if (hasFilters) conditions.push(sql`trace_id in (select trace_id from request_log where ${ofCalls})`);
  return and(conditions);
}

/** Calls that pass the filters, of traces that have feedback in the range. */
const callConditions = ({ workspaceId, filters, range }: CallsWanted): RawBuilder<unknown> =>
  and([
    sql`request_log.workspace_id = ${workspaceId}`,
    ...rollupConditions(filters),
    ...logConditions(filters, workspaceId),
    sql`request_log.trace_id in (
      select trace_id from feedback as given where given.workspace_id = ${workspaceId}
        and given.created_at >= ${new Date(range.from)} and given.created_at < ${new Date(range.to)})`,
  ]);

/** How much feedback there is, and Σ value·weight ÷ Σ weight of it: by point, and of all. */
export async function readFeedbackPoints(
  db: Kysely<Database>,
  wanted: CallsWanted & { stepMs: number },
): Promise<Scored & { points: Map<number, Scored> }> {
  const { rows } = await sql<Scored & { point: Date | null }>`
    select ${pointOf(sql`created_at`, wanted.stepMs)} as point, count(*) as count,
      coalesce(${weightedFeedback}, 0)::float8 as weighted
    from feedback where ${feedbackWanted(wanted)} group by rollup (1)`.execute(db);
  const whole = rows.find(({ point }) => point === null);
  const points = rows.flatMap(({ point, ...scored }) => (point === null ? [] : [[point.getTime(), scored] as const]));
  return { points: new Map(points), count: whole?.count ?? 0, weighted: whole?.weighted ?? 0 };
}

/** How often each value was given, from the lowest. */
export async function readFeedbackScores(
  db: Kysely<Database>,
  wanted: CallsWanted,
): Promise<{ score: number; total: number }[]> {
  const { rows } = await sql<{ score: number; total: number }>`
    select value::int as score, count(*) as total from feedback where ${feedbackWanted(wanted)}
    group by 1 order by 1`.execute(db);
  return rows;
}

/** Feedback by the models of its trace, most first; a trace whose calls had several models counts for each of them. */
export async function readFeedbackModels(
  db: Kysely<Database>,
  wanted: CallsWanted,
): Promise<(Scored & { model: string | null })[]> {
  const { rows } = await sql<Scored & { model: string | null }>`
    select model, count(*) as count, coalesce(${weightedFeedback}, 0)::float8 as weighted
    from feedback join (
      select distinct workspace_id, trace_id, model from request_log where ${callConditions(wanted)}
    ) as call on call.workspace_id = feedback.workspace_id and call.trace_id = feedback.trace_id
    where ${and([
      sql`feedback.workspace_id = ${wanted.workspaceId}`,
      sql`feedback.created_at >= ${new Date(wanted.range.from)}`,
      sql`feedback.created_at < ${new Date(wanted.range.to)}`,
    ])}
    group by model order by 2 desc, 1 limit 1000`.execute(db);
  return rows;
}

/** The feedback of groups of calls by a metadata key: calls with feedback on their trace, and its weighted value. */
export async function readGroupFeedback(
  db: Kysely<Database>,
  wanted: CallsWanted,
  key: string,
  values: readonly string[],
  recorded: RawBuilder<unknown>,
): Promise<Map<string, { requests: number; weighted: number }>> {
  const { workspaceId, filters } = wanted;
  const { rows } = await sql<{ value: string; requests: number; weighted: number }>`
    with call as (
      select metadata ->> ${key} as value, trace_id from request_log
      where ${and([
        sql`workspace_id = ${workspaceId}`,
        recorded,
        ...rollupConditions(filters),
        ...logConditions(filters, workspaceId),
        sql`metadata ->> ${key} = any(${[...values]}::text[])`,
        sql`trace_id in (select trace_id from feedback as given where given.workspace_id = ${workspaceId})`,
      ])}
    ), scored as (
      select call.value, sum(feedback.value * weight) / nullif(sum(weight), 0) as weighted
      from (select distinct value, trace_id from call) as call join feedback on feedback.trace_id = call.trace_id
        and feedback.workspace_id = ${workspaceId}
      group by call.value
    )
    select call.value, count(*) as requests, coalesce(max(scored.weighted), 0)::float8 as weighted
    from call join scored on scored.value = call.value group by call.value`.execute(db);
  return new Map(rows.map(({ value, ...found }) => [value, found]));
}
