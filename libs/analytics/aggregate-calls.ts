import { sql, type RawBuilder } from 'kysely';
import { dimensions, logColumns, valueColumns } from './call-columns.ts';
import { latencyBin } from './latency-histogram.ts';
import type { TimeRange } from './time-ranges.ts';

export type Grain = 'minute' | 'hour' | 'day';
export const grainMs: Readonly<Record<Grain, number>> = { minute: 60_000, hour: 3_600_000, day: 86_400_000 };

/**
 * Rows of calls with the same values of all columns (`call_rollup`), of those that have a metadata value too
 * (`metadata_rollup`), or of all calls with one value of one column or metadata key (`value_rollup`; hours and days only).
 */
export type Cube = 'call' | 'metadata' | 'value';
type WideCube = Exclude<Cube, 'value'>;

/** The metadata keys that have rollups; groups and filters of others read the request log. */
export const rolledUpKeys: readonly string[] = ['_user'];

/** The `key` of rows of `value_rollup` is one of these, or the name of a column. */
export const allCallsKey = '';
export const metadataKeyPrefix = 'metadata.';

const list = (names: readonly string[]): RawBuilder<unknown> => sql.join(names.map((name) => sql.ref(name)));

/** The columns that rows of a cube are kept apart by, besides grain and bucket. */
const keysOf = (cube: Cube): readonly string[] =>
  ({ call: dimensions, metadata: ['key', 'value', ...dimensions], value: ['workspace_id', 'key', 'value'] })[cube];

/** What rows of wide cubes add up, and the type of the sum. */
const wideSums = {
  requests: 'bigint',
  input_tokens: 'numeric',
  output_tokens: 'numeric',
  cost: 'numeric',
  unpriced: 'bigint',
  saved_cost: 'numeric',
  duration_us: 'numeric',
} as const;

/** What wide rows know by their columns, and `value_rollup` has as sums: how it is read from a wide row. */
const isHit = sql`cache_status = 'HIT'`;
const ofColumns = {
  failed_requests: sql`case when failed then requests else 0 end`,
  hits: sql`case when ${isHit} then requests else 0 end`,
  hit_duration_us: sql`case when ${isHit} then duration_us else 0 end`,
} as const;
const valueSums = { ...wideSums, failed_requests: 'bigint', hits: 'bigint', hit_duration_us: 'numeric' } as const;

const sumsOf = (cube: Cube): [name: string, type: string][] => Object.entries(cube === 'value' ? valueSums : wideSums);

/** The columns of a cube's rows without the grain, in the order of the selects of this file. */
export const rollupColumns = (cube: Cube): RawBuilder<unknown> =>
  list(['bucket', ...keysOf(cube), ...sumsOf(cube).map(([name]) => name), 'latency', 'first_at', 'last_at']);

/** The measures of `value_rollup`, in one order, from rows of any cube. */
export const measuresFrom = (cube: Cube): RawBuilder<unknown> =>
  sql.join([
    list(Object.keys(wideSums)),
    ...Object.entries(ofColumns).map(([name, read]) =>
      cube === 'value' ? sql.ref(name) : sql`${read} as ${sql.ref(name)}`,
    ),
    list(['latency', 'first_at', 'last_at']),
  ]);

/**
 * The last step of every aggregation: `parts` has a row for each latency bin of each result row. Bins become the text
 * `bin:calls,…`, in the order of bins, so that equal calls give equal rows.
 */
const joinBins = (
  cube: Cube,
  parts: RawBuilder<unknown>,
  keys: readonly string[] = keysOf(cube),
): RawBuilder<unknown> => sql`
  select bucket, ${list(keys)},
    ${sql.join(sumsOf(cube).map(([name, type]) => sql`sum(${sql.ref(name)})::${sql.raw(type)} as ${sql.ref(name)}`))},
    string_agg(bin || ':' || binned, ',' order by bin) as latency, min(first_at) as first_at, max(last_at) as last_at
  from (${parts}) as part group by bucket, ${list(keys)}`;

/** The bucket of a number of milliseconds; buckets begin at multiples of their length since 1970, in UTC. */
const bucketOf = (milliseconds: RawBuilder<unknown>, lengthMs: number): RawBuilder<unknown> =>
  sql`to_timestamp((${milliseconds} / ${sql.lit(lengthMs)}) * ${sql.lit(lengthMs / 1_000)})`;

type LogOptions = {
  cube: WideCube;
  bucketMs: number;
  /** A condition on `request_log`. */
  where: RawBuilder<unknown>;
  /** Of the cube `metadata`; default: those that have rollups. */
  metadataKeys?: readonly string[] | undefined;
  /** The columns by which rows are kept apart; default: all of the cube. Far fewer rows for who reads few of them. */
  keys?: readonly string[] | undefined;
  /** The time that `where` allows, if it is known: where it is in one bucket, that of each row need not be computed. */
  range?: TimeRange | undefined;
};

/** The bucket of a row of `logRows`. */
function logBucket({ bucketMs, range }: LogOptions): RawBuilder<unknown> {
  const begin = range === undefined ? Number.NaN : Math.floor(range.from / bucketMs);
  if (range === undefined || begin !== Math.floor((range.to - 1) / bucketMs)) {
    return bucketOf(sql`recorded_ms`, bucketMs);
  }
  return sql`to_timestamp(${sql.lit((begin * bucketMs) / 1_000)})`;
}

/** Rows of the request log, with the latency bin of each and, in the cube `metadata`, once for each key that it has. */
function logRows({ cube, where, metadataKeys = rolledUpKeys }: LogOptions): RawBuilder<unknown> {
  const entries = sql`
    cross join lateral (
      select named.key, metadata ->> named.key as value from unnest(${[...metadataKeys]}::text[]) as named (key)
      where metadata ->> named.key is not null
    ) as entry`;
  const isByMetadata = cube === 'metadata';
  return sql`
    select ${logColumns}, ${latencyBin} as bin ${isByMetadata ? sql`, key, value` : sql``}
    from request_log ${isByMetadata ? entries : sql``} where ${where}`;
}

/** Rows of the request log as rows of a cube, in buckets of `bucketMs`. */
export function aggregateLog(options: LogOptions): RawBuilder<unknown> {
  const { cube, keys = keysOf(cube) } = options;
  return joinBins(
    cube,
    sql`
    select ${logBucket(options)} as bucket, ${list(keys)}, bin, count(*) as binned,
      count(*) as requests, sum(input_tokens) as input_tokens, sum(output_tokens) as output_tokens,
      coalesce(sum(cost), 0) as cost, count(*) filter (where cost is null and not failed) as unpriced,
      coalesce(sum(saved_cost), 0) as saved_cost, sum((duration_ms * 1000)::bigint) as duration_us,
      to_timestamp(min(recorded_ms) / 1000.0) as first_at, to_timestamp(max(recorded_ms) / 1000.0) as last_at
    from (${logRows(options)}) as call
    group by 1, ${list(keys)}, bin`,
    keys,
  );
}

/** The same, with a row for each call: quicker where whoever reads them adds them up and needs no histogram. */
export function singleCalls(options: LogOptions): RawBuilder<unknown> {
  const { cube, keys = keysOf(cube) } = options;
  return sql`
    select ${logBucket(options)} as bucket, ${list(keys)}, 1::bigint as requests,
      input_tokens::numeric, output_tokens::numeric, coalesce(cost, 0) as cost,
      case when cost is null and not failed then 1 else 0 end::bigint as unpriced, coalesce(saved_cost, 0) as saved_cost,
      (duration_ms * 1000)::bigint::numeric as duration_us, '' as latency,
      to_timestamp(recorded_ms / 1000.0) as first_at, to_timestamp(recorded_ms / 1000.0) as last_at
    from (${logRows(options)}) as call`;
}

/** Rows of a cube, or what was made from them, as rows of `to`: each histogram taken apart, and joined again. */
const addUp = (cube: Cube, to: Grain, rows: RawBuilder<unknown>): RawBuilder<unknown> =>
  joinBins(
    cube,
    sql`
    select ${bucketOf(sql`extract(epoch from bucket)::bigint * 1000`, grainMs[to])} as bucket, ${list(keysOf(cube))},
      split_part(pair.text, ':', 1)::int as bin, sum(split_part(pair.text, ':', 2)::bigint) as binned,
      ${sql.join(
        sumsOf(cube).map(
          ([name]) => sql`coalesce(sum(${sql.ref(name)}) filter (where pair.place = 1), 0) as ${sql.ref(name)}`,
        ),
      )},
      min(first_at) as first_at, max(last_at) as last_at
    from ${rows} cross join lateral unnest(string_to_array(latency, ',')) with ordinality as pair (text, place)
    group by 1, ${list(keysOf(cube))}, bin`,
  );

/** Rows of a cube as rows of a coarser grain. `where` is a condition on the cube's table. */
export const aggregateRollup = (cube: Cube, to: Grain, where: RawBuilder<unknown>): RawBuilder<unknown> =>
  addUp(cube, to, sql`(select * from ${sql.table(`${cube}_rollup`)} where ${where}) as finer`);

/** Rows of the wide cubes as rows of `value_rollup` of the same grain. `where` is a condition on their tables. */
export function aggregateValues(grain: Grain, where: RawBuilder<unknown>): RawBuilder<unknown> {
  const values = sql.join([
    sql`(${sql.lit(allCallsKey)}, '')`,
    ...valueColumns.map((column) => sql`(${sql.lit(column)}, ${sql.ref(column)}::text)`),
  ]);
  return addUp(
    'value',
    grain,
    sql`(
      select bucket, workspace_id, key, value, ${measuresFrom('call')}
      from call_rollup cross join lateral (values ${values}) as entry (key, value) where ${where}
      union all
      select bucket, workspace_id, ${sql.lit(metadataKeyPrefix)} || key, value, ${measuresFrom('metadata')}
      from metadata_rollup where ${where}
    ) as wide`,
  );
}
