import { sql, type RawBuilder } from 'kysely';
import { metadataValue, sessionKey } from '#libs/request-log/read/call-conditions.ts';
import { dimensions, selectRecords, valueColumns, type Records } from './call-columns.ts';
import type { TimeRange } from './time-ranges.ts';

export type Grain = 'minute' | 'ten_minutes' | 'hour' | 'day';
export const grainMs: Readonly<Record<Grain, number>> = {
  minute: 60_000,
  ten_minutes: 600_000,
  hour: 3_600_000,
  day: 86_400_000,
};

/**
 * The kinds of rollup rows. `call` (`call_rollup`): calls with the same values of all columns. `metadata`
 * (`metadata_rollup`): the same, for calls that also have a metadata value. `value` (`value_rollup`): all calls with
 * one value of one column or metadata key.
 */
export type Cube = 'call' | 'metadata' | 'value';
export const cubes: readonly Cube[] = ['call', 'metadata', 'value'];

/**
 * The finer grain from which the rows of a grain are made; undefined: they are made from the log, or the cube has no
 * rows of this grain.
 */
const finerGrains: Readonly<Record<'wide' | 'value', Partial<Record<Grain, Grain>>>> = {
  wide: { hour: 'minute', day: 'hour' },
  value: { ten_minutes: 'minute', hour: 'ten_minutes', day: 'hour' },
};
export const sourceGrain = (cube: Cube, grain: Grain): Grain | undefined =>
  finerGrains[cube === 'value' ? 'value' : 'wide'][grain];
/** The cubes that have rows of a grain. */
export const cubesWithGrain = (grain: Grain): readonly Cube[] => (grain === 'ten_minutes' ? ['value'] : cubes);

export const userKey = '_user';
/** The keys for which every workspace has rollups. They have more values than others. */
export const rolledUpKeys: readonly string[] = [userKey, sessionKey];

/** The `key` of rows of `value_rollup` is one of these, or the name of a column. */
export const allCallsKey = '';
export const metadataKeyPrefix = 'metadata.';

const list = (names: readonly string[]): RawBuilder<unknown> => sql.join(names.map((name) => sql.ref(name)));

/**
 * The columns that identify the rows of a cube, in addition to grain and bucket. Rows with `other` contain the calls
 * beyond a limit.
 */
const keysOf = (cube: Cube): readonly string[] =>
  ({
    call: [...dimensions, 'other'],
    metadata: ['key', 'value', ...dimensions, 'other'],
    value: ['workspace_id', 'key', 'value', 'other'],
  })[cube];

/** The sums in rows of wide cubes, with their types. */
const wideSums = {
  requests: 'bigint',
  refused_requests: 'bigint',
  input_tokens: 'numeric',
  cached_tokens: 'numeric',
  cache_write_tokens: 'numeric',
  output_tokens: 'numeric',
  cost: 'numeric',
  unpriced: 'bigint',
  saved_cost: 'numeric',
  prompt_cache_saved: 'numeric',
  duration_us: 'numeric',
} as const;

/** Sums of `value_rollup` that wide rows represent by columns, and how to compute them from a wide row. */
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
 * The last step of every aggregation: `parts` has a row for each latency bin of each result row. Bins are joined to the
 * text `bin:calls,…`, in the order of bins, so that equal calls result in equal rows.
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
  cube: Exclude<Cube, 'value'>;
  bucketMs: number;
  records: Records;
  /** Only for the cube `metadata`. Default: the keys for which the workspace of a call has rollups. */
  metadataKey?: string | undefined;
  /** The columns that identify rows; default: all of the cube. With few columns, there are far fewer rows. */
  keys?: readonly string[] | undefined;
  /**
   * The time that `records` allows, if it is known. If it is inside one bucket, the bucket of each record need not be
   * computed.
   */
  range?: TimeRange | undefined;
};

/** The bucket of a row of `logRows`. */
function logBucket({ bucketMs, range }: LogOptions): RawBuilder<unknown> {
  const begin = range === undefined ? Number.NaN : Math.floor(range.from / bucketMs);
  if (range === undefined || begin !== Math.floor((range.to - 1) / bucketMs)) {
    return bucketOf(sql`first_ms`, bucketMs);
  }
  return sql`to_timestamp(${sql.lit((begin * bucketMs) / 1_000)})`;
}

/** The records: each once, or once for each `key` and `value` that the cube has for it. */
function logRows({ cube, records, metadataKey }: LogOptions): RawBuilder<unknown> {
  const found = selectRecords(records);
  if (cube === 'call') return found;
  if (metadataKey !== undefined) {
    return sql`
      select found.*, ${metadataKey}::text as key, ${metadataValue(metadataKey)} as value
      from (${found}) as found where ${metadataValue(metadataKey)} is not null`;
  }
  return sql`
    select found.*, entry.key, entry.value
    from (${found}) as found
      cross join lateral jsonb_each_text(case when jsonb_typeof(metadata) = 'object' then metadata end) as entry
      join rollup_key on rollup_key.workspace_id = found.workspace_id and rollup_key.key = entry.key
    where entry.value is not null
    union all
    select found.*, ${sql.lit(sessionKey)}, session_id from (${found}) as found where session_id is not null`;
}

/** Aggregates records to rows of a wide cube, in buckets of `bucketMs`, without a limit on their number. */
export function aggregateLog(options: LogOptions): RawBuilder<unknown> {
  const { cube, keys = keysOf(cube) } = options;
  return joinBins(
    cube,
    sql`
    select ${logBucket(options)} as bucket, ${list(keys)}, bin, sum(binned) as binned,
      ${sql.join(Object.keys(wideSums).map((name) => sql`sum(${sql.ref(name)}) as ${sql.ref(name)}`))},
      to_timestamp(min(first_ms) / 1000.0) as first_at, to_timestamp(max(last_ms) / 1000.0) as last_at
    from (${logRows(options)}) as call
    group by 1, ${list(keys)}, bin`,
    keys,
  );
}

/** The same, with a row for each call. This is faster if the reader adds the rows up and needs no histogram. */
export function singleCalls(options: LogOptions & { keys: readonly string[] }): RawBuilder<unknown> {
  return sql`
    select ${logBucket(options)} as bucket, ${list(options.keys)},
      ${sql.join(Object.entries(wideSums).map(([name, type]) => sql`${sql.ref(name)}::${sql.raw(type)}`))},
      '' as latency, to_timestamp(first_ms / 1000.0) as first_at, to_timestamp(last_ms / 1000.0) as last_at
    from (${logRows(options)}) as call`;
}

/**
 * Aggregates rows of a cube to rows of another grain, or with fewer keys. The histograms are split into bins and joined
 * again.
 */
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
    from (${rows}) as finer
      cross join lateral unnest(string_to_array(latency, ',')) with ordinality as pair (text, place)
    group by 1, ${list(keysOf(cube))}, bin`,
  );

/**
 * The maximum of rows for a bucket and workspace: of one column or metadata key, of users and of sessions, and of
 * combinations of all columns.
 */
const rowsMax: Readonly<Record<Grain, { values: number; users: number; combinations: number }>> = {
  minute: { values: 200, users: 2_000, combinations: 500 },
  ten_minutes: { values: 500, users: 5_000, combinations: 0 },
  hour: { values: 1_000, users: 10_000, combinations: 2_000 },
  day: { values: 1_000, users: 10_000, combinations: 5_000 },
};
/** There are fewer statuses than this, so all of them have separate rows. */
const statusesMax = 1_000;

/**
 * Bounds the rows of a bucket. Those with the most calls stay, and the rest is added up in rows with `other`, so that
 * the sums of a bucket always include all of its calls.
 */
function bound(cube: Cube, grain: Grain, rows: RawBuilder<unknown>): RawBuilder<unknown> {
  const { values, users, combinations } = rowsMax[grain];
  const keys = rolledUpKeys.map((key) => sql.lit(cube === 'value' ? `${metadataKeyPrefix}${key}` : key));
  const max =
    cube === 'call'
      ? sql.lit(combinations)
      : sql`case when key in (${sql.join(keys)}) then ${sql.lit(users)} when key = 'status' then ${sql.lit(statusesMax)}
          else ${sql.lit(values)} end`;
  const within = cube === 'call' ? ['bucket', 'workspace_id', 'other'] : ['bucket', 'workspace_id', 'key', 'other'];
  const order = keysOf(cube).filter((name) => !within.includes(name));
  // Measures need failures and answers from the cache. All other columns are dropped.
  const kept: Readonly<Record<string, RawBuilder<unknown>>> = {
    workspace_id: sql`workspace_id`,
    key: sql`key`,
    failed: sql`failed`,
    cache_status: sql`case when ${isHit} then 'HIT' end`,
    retries: sql`0`,
    fallback: sql`false`,
    other: sql`true`,
  };
  const folded = keysOf(cube).map(
    (name) => sql`${kept[name] ?? sql`null::${sql.raw(valueColumns[name] ?? 'text')}`} as ${sql.ref(name)}`,
  );
  const sums = list([...sumsOf(cube).map(([name]) => name), 'latency', 'first_at', 'last_at']);
  return sql`
    with ranked as materialized (
      select *, not other and row_number() over (partition by ${list(within)} order by requests desc, ${list(order)}) <= ${max}
        as stays
      from (${rows}) as unbounded
    ), folded as (
      ${addUp(cube, grain, sql`select bucket, ${sql.join(folded)}, ${sums} from ranked where not stays`)}
    )
    select ${rollupColumns(cube)} from ranked where stays
    union all select ${rollupColumns(cube)} from folded`;
}

/** Aggregates rows of a cube to rows of a coarser grain, bounded. `where` is a condition on the cube's table. */
export const aggregateRollup = (cube: Cube, to: Grain, where: RawBuilder<unknown>): RawBuilder<unknown> =>
  bound(cube, to, addUp(cube, to, sql`select * from ${sql.table(`${cube}_rollup`)} where ${where}`));

/** Rows of the wide cubes for minutes, without a limit on their number. */
export type WideMinutes = Record<'call' | 'metadata', RawBuilder<unknown>>;

export const wideMinutes = (records: Records): WideMinutes => ({
  call: aggregateLog({ cube: 'call', bucketMs: grainMs.minute, records }),
  metadata: aggregateLog({ cube: 'metadata', bucketMs: grainMs.minute, records }),
});

/**
 * Makes the rows of a cube and grain from wide minutes, bounded. It goes through the finer grains, like the passes do.
 * Rows of single values are made from wide rows too, because there are far fewer of them than records.
 */
export function rollUpMinutes(cube: Cube, grain: Grain, wide: WideMinutes): RawBuilder<unknown> {
  const finer = sourceGrain(cube, grain);
  if (finer !== undefined) return bound(cube, grain, addUp(cube, grain, rollUpMinutes(cube, finer, wide)));
  return bound(cube, grain, cube === 'value' ? toValues(grain, wide.call, wide.metadata) : wide[cube]);
}

/** Converts rows of the wide cubes to rows of `value_rollup` of the same grain, without a limit on their number. */
function toValues(grain: Grain, calls: RawBuilder<unknown>, ofMetadata: RawBuilder<unknown>): RawBuilder<unknown> {
  const values = sql.join([
    sql`(${sql.lit(allCallsKey)}, '', false)`,
    ...Object.keys(valueColumns).map((column) => sql`(${sql.lit(column)}, ${sql.ref(column)}::text, call.other)`),
  ]);
  const rows = sql`
    select bucket, workspace_id, entry.key, entry.value, entry.other, ${measuresFrom('call')}
    from (${calls}) as call cross join lateral (values ${values}) as entry (key, value, other)
    union all
    select bucket, workspace_id, ${sql.lit(metadataKeyPrefix)} || key, value, other, ${measuresFrom('metadata')}
    from (${ofMetadata}) as call`;
  return addUp('value', grain, rows);
}

/**
 * The same for stored rows, bounded. `where` is a condition on their tables. The analytics bench uses it to write a
 * month of rollups without the calls.
 * @testOnly
 */
export const toValueRollups = (grain: Grain, where: RawBuilder<unknown>): RawBuilder<unknown> =>
  bound(
    'value',
    grain,
    toValues(grain, sql`select * from call_rollup where ${where}`, sql`select * from metadata_rollup where ${where}`),
  );
