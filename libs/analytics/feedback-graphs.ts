import { sql, type Kysely, type RawBuilder } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import {
  and,
  logConditions,
  rollupConditions,
  weightedFeedback,
  workspaceCondition,
} from '#libs/request-log/read/call-conditions.ts';
import { utcDay } from '#libs/request-log/row/log-id.ts';
import { partitionName } from '#libs/request-log/write/log-partitions.ts';
import type { CallsWanted } from './call-source.ts';
import { pointStart } from './read-totals.ts';
import { recordedIn } from './rollups/roll-up.ts';
import type { TimeRange } from './time-ranges.ts';

// Feedback counts at the time when it was given. Filters apply to calls: feedback matches if a call of its trace
// matches.

type Scored = { count: number; weighted: number };

/**
 * How the calls of traces with feedback are found. `log`: the log is read once, which is faster while it is small.
 * `traces`: each trace is looked up in each day of the log, which takes the same time however large the days are.
 * Postgres itself chooses the first way for too long, because it overestimates how many rows of a day have one of the
 * traces.
 */
export type Way = 'log' | 'traces';

/**
 * How many rows of the log can be read in the time of one look-up of a trace in a day: about 1 µs. Measured with 30
 * days.
 */
const rowsOfLookup = 3;

/** Two workspaces can have a trace of the same ID. */
const traceColumns = sql`request_log.workspace_id, request_log.trace_id`;

/** Feedback that was given in a range, or at any time. */
const givenIn = ({ workspaceId }: CallsWanted, range: TimeRange | null): RawBuilder<unknown> =>
  and([
    ...(workspaceId === null ? [] : [sql`given.workspace_id = ${workspaceId}`]),
    ...(range === null
      ? []
      : [sql`given.created_at >= ${new Date(range.from)}`, sql`given.created_at < ${new Date(range.to)}`]),
  ]);

/**
 * Chooses the faster way for the calls of some feedback, by the sizes of both; `days`: the days of the log that are
 * read.
 */
async function chooseWay(
  db: Kysely<Database>,
  { filters }: CallsWanted,
  given: RawBuilder<unknown>,
  days: TimeRange | null,
): Promise<Way> {
  // That filter is a condition on all feedback, which would be computed for each trace.
  if (filters.weighted_feedback_min !== undefined || filters.weighted_feedback_max !== undefined) return 'log';
  const isRead = days === null ? sql`true` : partitionsIn(days);
  const { rows } = await sql<{ lookups: number; rows: number }>`
    select count(*) * (select count(*) from feedback as given where ${given}) as lookups,
      coalesce(sum(greatest(reltuples, 0)), 0)::float8 as rows
    from pg_inherits join pg_class on pg_class.oid = inhrelid
    where inhparent = 'request_log_row'::regclass and ${isRead}`.execute(db);
  const [{ lookups, rows: size } = { lookups: 0, rows: 0 }] = rows;
  return lookups * rowsOfLookup < size ? 'traces' : 'log';
}

/** The partitions of the log in a range. There is one for each day. */
const partitionsIn = ({ from, to }: TimeRange): RawBuilder<unknown> =>
  sql`relname between ${partitionName(utcDay(from))} and ${partitionName(utcDay(to - 1))}`;

/** Calls that match the filters, of traces that have such feedback: a relation with some of their columns. */
function callsOf(
  { workspaceId, filters }: CallsWanted,
  way: Way,
  {
    columns,
    given,
    recorded = sql`true`,
  }: Record<'columns' | 'given', RawBuilder<unknown>> & {
    recorded?: RawBuilder<unknown>;
  },
): RawBuilder<unknown> {
  const conditions = [
    ...(workspaceId === null ? [] : [sql`request_log.workspace_id = ${workspaceId}`]),
    recorded,
    ...rollupConditions(filters),
    ...logConditions(filters, workspaceId),
  ];
  if (way === 'log') {
    conditions.push(
      sql`(request_log.workspace_id, request_log.trace_id) in (select workspace_id, trace_id from feedback as given where ${given})`,
    );
    return sql`(select ${columns} from request_log where ${and(conditions)})`;
  }
  conditions.push(sql`request_log.workspace_id = trace.workspace_id`, sql`request_log.trace_id = trace.trace_id`);
  // `offset` prevents Postgres from turning it into a join of the whole log again.
  return sql`(
    select found.* from (select distinct workspace_id, trace_id from feedback as given where ${given}) as trace
    cross join lateral (select ${columns} from request_log where ${and(conditions)} offset 0) as found)`;
}

/** The condition on `feedback` for the wanted feedback. */
async function feedbackWanted(db: Kysely<Database>, wanted: CallsWanted, forced?: Way): Promise<RawBuilder<unknown>> {
  const { workspaceId, range, filters } = wanted;
  const conditions = [
    ...workspaceCondition(workspaceId),
    sql`feedback.created_at >= ${new Date(range.from)}`,
    sql`feedback.created_at < ${new Date(range.to)}`,
  ];
  const hasFilters = rollupConditions(filters).length + logConditions(filters, workspaceId).length > 0;
  if (hasFilters) {
    const given = givenIn(wanted, range);
    const way = forced ?? (await chooseWay(db, wanted, given, null));
    const calls = callsOf(wanted, way, { columns: traceColumns, given });
    conditions.push(sql`(workspace_id, trace_id) in (select workspace_id, trace_id from ${calls} as call)`);
  }
  return and(conditions);
}

/** The amount of feedback, and its Σ value·weight ÷ Σ weight: by point, and in total. */
export async function readFeedbackPoints(
  db: Kysely<Database>,
  wanted: CallsWanted & { stepMs: number },
  way?: Way,
): Promise<Scored & { points: Map<number, Scored> }> {
  const { rows } = await sql<Scored & { point: Date | null }>`
    select ${pointStart(sql`created_at`, wanted.stepMs)} as point, count(*) as count,
      coalesce(${weightedFeedback}, 0)::float8 as weighted
    from feedback where ${await feedbackWanted(db, wanted, way)} group by rollup (1)`.execute(db);
  const whole = rows.find(({ point }) => point === null);
  const points = rows.flatMap(({ point, ...scored }) => (point === null ? [] : [[point.getTime(), scored] as const]));
  return { points: new Map(points), count: whole?.count ?? 0, weighted: whole?.weighted ?? 0 };
}

/** How often each value was given, sorted from the lowest. */
export async function readFeedbackScores(
  db: Kysely<Database>,
  wanted: CallsWanted,
  way?: Way,
): Promise<{ score: number; total: number }[]> {
  const { rows } = await sql<{ score: number; total: number }>`
    select value::int as score, count(*) as total from feedback where ${await feedbackWanted(db, wanted, way)}
    group by 1 order by 1`.execute(db);
  return rows;
}

/**
 * Feedback by the models of its trace, most frequent first. A trace whose calls had several models counts for each of
 * them.
 */
export async function readFeedbackModels(
  db: Kysely<Database>,
  wanted: CallsWanted,
  way?: Way,
): Promise<(Scored & { model: string | null })[]> {
  const given = givenIn(wanted, wanted.range);
  const calls = callsOf(wanted, way ?? (await chooseWay(db, wanted, given, null)), {
    columns: sql`${traceColumns}, request_log.model`,
    given,
  });
  const { rows } = await sql<Scored & { model: string | null }>`
    select model, count(*) as count, coalesce(${weightedFeedback}, 0)::float8 as weighted
    from feedback join (select distinct workspace_id, trace_id, model from ${calls} as found) as call
      on call.workspace_id = feedback.workspace_id and call.trace_id = feedback.trace_id
    where ${and([
      ...(wanted.workspaceId === null ? [] : [sql`feedback.workspace_id = ${wanted.workspaceId}`]),
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
  way?: Way,
): Promise<Map<string, { requests: number; weighted: number }>> {
  const given = givenIn(wanted, null);
  const calls = callsOf(wanted, way ?? (await chooseWay(db, wanted, given, wanted.range)), {
    columns: sql`request_log.metadata ->> ${key} as value, ${traceColumns}`,
    given,
    recorded: sql`${recordedIn(wanted.range)} and metadata ->> ${key} = any(${[...values]}::text[])`,
  });
  const { rows } = await sql<{ value: string; requests: number; weighted: number }>`
    with call as (select value, workspace_id, trace_id from ${calls} as found), scored as (
      select call.value, sum(feedback.value * weight) / nullif(sum(weight), 0) as weighted
      from (select distinct value, workspace_id, trace_id from call) as call
        join feedback on feedback.workspace_id = call.workspace_id and feedback.trace_id = call.trace_id
      group by call.value
    )
    select call.value, count(*) as requests, coalesce(max(scored.weighted), 0)::float8 as weighted
    from call join scored on scored.value = call.value group by call.value`.execute(db);
  return new Map(rows.map(({ value, ...found }) => [value, found]));
}
