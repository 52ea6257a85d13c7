import { Big } from 'big.js';
import { sql, type Kysely, type RawBuilder } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import { callSource, type CallsWanted } from './call-source.ts';
import { createLatencyHistogram, type LatencyHistogram } from './latency-histogram.ts';

/** Sums over calls. Costs are exact US cents. */
export type Totals = {
  requests: number;
  /** Calls without a successful answer. */
  failed: number;
  /** The number of them that this gateway refused. */
  refused: number;
  inputTokens: number;
  /** Input tokens that were read from prompt caches of providers, or written to them. */
  cachedTokens: number;
  cacheWriteTokens: number;
  outputTokens: number;
  cost: Big;
  /** Calls that were paid for at an unknown price. */
  unpriced: number;
  durationUs: number;
  /** Calls answered from the cache, their durations, and the cost that they avoided. */
  hits: number;
  hitDurationUs: number;
  savedCost: Big;
  /** What prompt caches saved; can be negative. */
  promptCacheSaved: Big;
  latency: LatencyHistogram;
  firstAt: Date | null;
  lastAt: Date | null;
};

type TotalsRow = {
  requests: number;
  failed: number;
  refused: number;
  input_tokens: number;
  cached_tokens: number;
  cache_write_tokens: number;
  output_tokens: number;
  cost: string;
  unpriced: number;
  duration_us: number;
  hits: number;
  hit_duration_us: number;
  saved_cost: string;
  prompt_cache_saved: string;
  latency: string;
  first_at: Date | null;
  last_at: Date | null;
};

/**
 * The sums in SQL. `withLatency` reads the histograms of all rows, which are far larger than the numbers; `withTimes`
 * reads the times of all rows of the log.
 */
export const totalColumns = ({ withLatency = false, withTimes = false }): RawBuilder<unknown> => sql`
  sum(requests)::bigint as requests, sum(failed_requests)::bigint as failed,
  sum(refused_requests)::bigint as refused,
  sum(cached_tokens)::bigint as cached_tokens, sum(cache_write_tokens)::bigint as cache_write_tokens,
  sum(prompt_cache_saved)::text as prompt_cache_saved,
  sum(input_tokens)::bigint as input_tokens, sum(output_tokens)::bigint as output_tokens, sum(cost)::text as cost,
  sum(unpriced)::bigint as unpriced, sum(duration_us)::bigint as duration_us,
  sum(hits)::bigint as hits, sum(hit_duration_us)::bigint as hit_duration_us,
  sum(saved_cost)::text as saved_cost, ${withLatency ? sql`string_agg(latency, ',')` : sql`''`} as latency,
  ${withTimes ? sql`min(first_at)` : sql`null`} as first_at, ${withTimes ? sql`max(last_at)` : sql`null`} as last_at`;

export function toTotals(row: TotalsRow): Totals {
  const latency = createLatencyHistogram();
  if (row.latency !== '') latency.add(row.latency);
  return {
    requests: row.requests,
    failed: row.failed,
    refused: row.refused,
    inputTokens: row.input_tokens,
    cachedTokens: row.cached_tokens,
    cacheWriteTokens: row.cache_write_tokens,
    outputTokens: row.output_tokens,
    cost: new Big(row.cost),
    unpriced: row.unpriced,
    durationUs: row.duration_us,
    hits: row.hits,
    hitDurationUs: row.hit_duration_us,
    savedCost: new Big(row.saved_cost),
    promptCacheSaved: new Big(row.prompt_cache_saved),
    latency,
    firstAt: row.first_at,
    lastAt: row.last_at,
  };
}

export const noCalls = (): Totals => ({
  requests: 0,
  failed: 0,
  refused: 0,
  inputTokens: 0,
  cachedTokens: 0,
  cacheWriteTokens: 0,
  outputTokens: 0,
  cost: new Big(0),
  unpriced: 0,
  durationUs: 0,
  hits: 0,
  hitDurationUs: 0,
  savedCost: new Big(0),
  promptCacheSaved: new Big(0),
  latency: createLatencyHistogram(),
  firstAt: null,
  lastAt: null,
});

/**
 * The beginning of the point of a graph that contains a time, in SQL. Points begin at multiples of the step since 1970,
 * in UTC.
 */
export const pointStart = (column: RawBuilder<unknown>, stepMs: number): RawBuilder<Date> =>
  sql`date_bin(${sql.lit(`${stepMs / 1_000} s`)}::interval, ${column}, to_timestamp(0))`;

/** The beginnings (epoch ms) of all points of a range. */
export function listPoints({ range, stepMs }: { range: { from: number; to: number }; stepMs: number }): number[] {
  const first = Math.floor(range.from / stepMs) * stepMs;
  return Array.from({ length: Math.ceil((range.to - first) / stepMs) }, (_, index) => first + index * stepMs);
}

/** The totals of each point that has calls, by its beginning. */
export async function readPoints(
  db: Kysely<Database>,
  wanted: CallsWanted & { stepMs: number },
  withLatency = false,
): Promise<Map<number, Totals>> {
  const { rows } = await sql<TotalsRow & { point: Date }>`
    select ${pointStart(sql`bucket`, wanted.stepMs)} as point, ${totalColumns({ withLatency })}
    from (${callSource(wanted, { withLatency })}) as call group by 1`.execute(db);
  return new Map(rows.map((row) => [row.point.getTime(), toTotals(row)]));
}

export function addTotals(all: Iterable<Totals>): Totals {
  const sum = noCalls();
  for (const totals of all) {
    sum.requests += totals.requests;
    sum.failed += totals.failed;
    sum.refused += totals.refused;
    sum.inputTokens += totals.inputTokens;
    sum.cachedTokens += totals.cachedTokens;
    sum.cacheWriteTokens += totals.cacheWriteTokens;
    sum.outputTokens += totals.outputTokens;
    sum.cost = sum.cost.plus(totals.cost);
    sum.unpriced += totals.unpriced;
    sum.durationUs += totals.durationUs;
    sum.hits += totals.hits;
    sum.hitDurationUs += totals.hitDurationUs;
    sum.savedCost = sum.savedCost.plus(totals.savedCost);
    sum.promptCacheSaved = sum.promptCacheSaved.plus(totals.promptCacheSaved);
    sum.latency.merge(totals.latency);
  }
  return sum;
}

/** How calls are counted, and which of them. A call that failed was not rescued, whatever was tried. */
const counts = {
  status: { counted: sql`failed_requests`, where: sql`failed_requests > 0` },
  retries: { counted: sql`requests`, where: sql`retries > 0` },
  fallback: { counted: sql`requests - failed_requests`, where: sql`fallback and failed_requests < requests` },
} as const;

/** Counts failed calls by status, or rescued ones by retries or fallback, by point. */
export async function countByPoint(
  db: Kysely<Database>,
  wanted: CallsWanted & { stepMs: number },
  column: keyof typeof counts,
): Promise<{ point: number; value: number; requests: number }[]> {
  const { counted, where } = counts[column];
  const { rows } = await sql<{ point: Date; value: number | null; requests: number }>`
    select ${pointStart(sql`bucket`, wanted.stepMs)} as point, ${sql.ref(column)}::int as value, sum(${counted})::bigint as requests
    from (${callSource(wanted, { reads: [column] })}) as call where ${where} group by 1, 2 order by 1, 2 nulls first`.execute(
    db,
  );
  // A call without a status got no answer, because its client had left.
  return rows.map(({ point, value, requests }) => ({ point: point.getTime(), value: value ?? 0, requests }));
}

/**
 * The distinct values of the wanted metadata key and their calls, by point, and over the whole range. Combined rare
 * values do not count as values, but their calls count.
 */
export async function countValues(
  db: Kysely<Database>,
  wanted: CallsWanted & { stepMs: number },
): Promise<{ points: Map<number, { values: number; requests: number }>; values: number; requests: number }> {
  const { rows } = await sql<{ point: Date | null; values: number; requests: number }>`
    with by_value as materialized (
      select ${pointStart(sql`bucket`, wanted.stepMs)} as point, value, sum(requests)::bigint as requests
      from (${callSource(wanted)}) as call group by 1, 2
    )
    select point, count(value) as values, sum(requests)::bigint as requests from by_value group by point
    union all
    select null, count(value), coalesce(sum(requests), 0)::bigint
    from (select value, sum(requests) as requests from by_value group by value) as whole`.execute(db);
  const whole = rows.find(({ point }) => point === null);
  const points = rows.flatMap(({ point, ...counts }) => (point === null ? [] : [[point.getTime(), counts] as const]));
  return { points: new Map(points), values: whole?.values ?? 0, requests: whole?.requests ?? 0 };
}
