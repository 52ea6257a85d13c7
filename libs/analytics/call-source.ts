import { sql, type RawBuilder } from 'kysely';
import type { CallFilters } from '#libs/contracts/call-filters.ts';
import {
  and,
  filteredColumns,
  logConditions,
  needsLog,
  rollupConditions,
  workspaceCondition,
} from '#libs/request-log/call-conditions.ts';
import {
  aggregateLog,
  allCallsKey,
  measuresFrom,
  metadataKeyPrefix,
  rolledUpKeys,
  singleCalls,
} from './aggregate-calls.ts';
import { valueColumns, type Dimension } from './call-columns.ts';
import { segmentsOf, type Kept, type Segment } from './choose-buckets.ts';
import { bucketIn, recordedIn } from './roll-up.ts';
import type { TimeRange } from './time-ranges.ts';

/** The calls that an operation is about. */
export type CallsWanted = {
  filters: CallFilters;
  /** Null: of all workspaces. */
  workspaceId: string | null;
  range: TimeRange;
  kept: Kept;
  /** The longest buckets that may be read, because the answer has points; absent: any. */
  stepMs?: number;
  /** Calls that have this metadata, with its `key` and `value`. */
  metadataKey?: string;
};

export type SourceOptions = {
  /** The columns that the answer uses besides `bucket`, `workspace_id`, `value` and sums. Fewer are quicker. */
  reads?: readonly Dimension[];
  /** Without it, `latency` may be empty. */
  withLatency?: boolean;
};

/**
 * Rows that add up to the calls that are wanted: from rollups, or from the request log if it alone knows what is filtered
 * by. Hours and days of calls that only one column is asked of come from the narrow rows of `value_rollup`. One SELECT, for
 * a FROM clause: `bucket`, `workspace_id`, `value` (of the metadata key), the columns `reads`, and the measures.
 */
export function callSource(
  wanted: CallsWanted,
  { reads = [], withLatency = false }: SourceOptions = {},
): RawBuilder<unknown> {
  const { filters, workspaceId, range, kept, stepMs, metadataKey } = wanted;
  const { key, ofValue, isInRollups } = metadataOf(filters, metadataKey);
  const cube = key === null ? 'call' : 'metadata';
  const conditions = [...workspaceCondition(workspaceId), ...rollupConditions(filters)];
  const segments: Segment[] =
    isInRollups && !needsLog(filters)
      ? segmentsOf(range, kept, stepMs)
      : [{ from: Math.max(range.from, Math.min(kept.logFrom, range.to)), to: range.to, source: 'log' }];
  const columns = sql.join([
    sql`bucket, workspace_id`,
    ...(key === null ? [] : [sql`value`]),
    ...reads.map((name) => sql.ref(name)),
  ]);
  const wide = (rows: RawBuilder<unknown>): RawBuilder<unknown> =>
    sql`select ${columns}, ${measuresFrom(cube)} from ${rows}`;
  const narrowKey = narrowKeyOf([...reads, ...filteredColumns(filters)], key);
  const selects = segments.flatMap((segment) => {
    if (segment.source === 'log') {
      const where = and([...conditions, ...logConditions(filters, workspaceId), recordedIn(segment)]);
      const metadataKeys = key === null ? undefined : [key];
      // Adding up first pays where few rows come of it; users are many.
      const read = withLatency || key === null ? aggregateLog : singleCalls;
      // Which calls failed, and which were answered from the cache, is what `measuresFrom` adds up.
      const keys = ['workspace_id', ...(key === null ? [] : ['value']), ...reads, 'failed', 'cache_status'];
      const bucketMs = Math.min(stepMs ?? 86_400_000, 86_400_000);
      const rows = read({ cube, bucketMs, where, metadataKeys, keys: [...new Set(keys)], range: segment });
      return [wide(sql`(${rows}) as logged`)];
    }
    const where = (part: TimeRange): RawBuilder<unknown> =>
      and([sql`grain = ${sql.lit(segment.source)}`, ...conditions, ...ofValue, bucketIn(part)]);
    const hasNarrow = narrowKey !== undefined && segment.source !== 'minute';
    const narrowFrom = hasNarrow ? Math.min(Math.max(segment.from, kept.valuesFrom), segment.to) : segment.to;
    const parts: RawBuilder<unknown>[] = [];
    if (narrowFrom > segment.from) {
      const ofKey = key === null ? sql`` : sql`and key = ${key}`;
      parts.push(wide(sql`${sql.table(`${cube}_rollup`)} where ${where({ ...segment, to: narrowFrom })} ${ofKey}`));
    }
    if (narrowKey !== undefined && narrowFrom < segment.to) {
      const narrow = narrowRows(narrowKey);
      parts.push(
        sql`select ${columns}, ${measuresFrom('value')} from ${narrow} where ${where({ ...segment, from: narrowFrom })}`,
      );
    }
    return parts;
  });
  if (selects.length === 0) return wide(sql`${sql.table(`${cube}_rollup`)} where false`);
  return sql.join(
    selects.map((select) => sql`(${select})`),
    sql` union all `,
  );
}

/** The key of `value_rollup` whose rows say all that is asked of calls; undefined: they are asked of more than one column. */
function narrowKeyOf(columns: readonly string[], metadataKey: string | null): string | undefined {
  const [only, ...others] = new Set(columns);
  if (metadataKey !== null) return only === undefined ? `${metadataKeyPrefix}${metadataKey}` : undefined;
  if (only === undefined) return allCallsKey;
  return others.length === 0 && valueColumns.some((column) => column === only) ? only : undefined;
}

/** The rows of a key of `value_rollup`, with their value under the name of the column that it is of. */
function narrowRows(key: string): RawBuilder<unknown> {
  const column = valueColumns.find((name) => name === key);
  if (column === undefined) return sql`(select * from value_rollup where key = ${key}) as narrow`;
  // Conditions are checked in any order, so a value of another key must not fail to be a number.
  const value = column === 'status' ? sql`case when key = 'status' then value::int end` : sql`value`;
  return sql`(select *, ${value} as ${sql.ref(column)} from value_rollup where key = ${key}) as narrow`;
}

/** Whether rollups can say which metadata calls have: only one key of theirs at a time. */
function metadataOf({ metadata = {} }: CallFilters, wantedKey: string | undefined) {
  const filtered = Object.keys(metadata);
  const keys = [...new Set([...filtered, ...(wantedKey === undefined ? [] : [wantedKey])])];
  const [only] = keys;
  const isInRollups = keys.length === 0 || (keys.length === 1 && rolledUpKeys.includes(only ?? ''));
  const key = isInRollups ? (only ?? null) : (wantedKey ?? null);
  const values = key === null ? undefined : metadata[key];
  const ofValue: RawBuilder<unknown>[] = [];
  if (values !== undefined) {
    // By the hash, because that is what the index has.
    ofValue.push(
      sql`hashtextextended(value, 0) in (select hashtextextended(wanted, 0) from unnest(${values}::text[]) as wanted)`,
      sql`value = any(${values}::text[])`,
    );
  }
  return { key, ofValue, isInRollups };
}
