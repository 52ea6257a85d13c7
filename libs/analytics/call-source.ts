import { sql, type RawBuilder } from 'kysely';
import type { CallFilters } from '#libs/contracts/logs/call-filters.ts';
import {
  and,
  filteredColumns,
  logConditions,
  needsLog,
  rollupConditions,
  workspaceCondition,
} from '#libs/request-log/read/call-conditions.ts';
import { aggregateLog, allCallsKey, measuresFrom, metadataKeyPrefix, singleCalls, userKey } from './aggregate-calls.ts';
import { valueColumns, type Dimension } from './call-columns.ts';
import { segmentsOf, type Kept, type Segment } from './choose-buckets.ts';
import { bucketIn, recordedIn } from './rollups/roll-up.ts';
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
 * by. Calls that only one column or metadata key is asked of come from the narrow rows of `value_rollup`. One SELECT, for
 * a FROM clause: `bucket`, `workspace_id`, `value` (of the metadata key), `other` (whether values are those of rare calls,
 * which are not told apart), the columns `reads`, and the measures.
 */
export function callSource(
  wanted: CallsWanted,
  { reads = [], withLatency = false }: SourceOptions = {},
): RawBuilder<unknown> {
  const { filters, workspaceId, range, kept, stepMs } = wanted;
  const { key, values, rolledUpFrom } = metadataOf(wanted);
  const cube = key === null ? 'call' : 'metadata';
  const conditions = [...workspaceCondition(workspaceId), ...rollupConditions(filters)];
  const columns = sql.join([
    sql`bucket, workspace_id, other`,
    ...(key === null ? [] : [sql`value`]),
    ...reads.map((name) => sql.ref(name)),
  ]);

  const fromLog = (segment: TimeRange): RawBuilder<unknown> => {
    const where = and([...conditions, ...logConditions(filters, workspaceId), recordedIn(segment)]);
    // Which calls failed, and which were answered from the cache, is what `measuresFrom` adds up.
    const own = ['workspace_id', 'other', ...(key === null ? [] : ['value']), ...reads, 'failed', 'cache_status'];
    const rows = (withLatency ? aggregateLog : singleCalls)({
      cube,
      bucketMs: Math.min(stepMs ?? 86_400_000, 86_400_000),
      where,
      metadataKey: key ?? undefined,
      keys: [...new Set(own)],
      range: segment,
    });
    return sql`select ${columns}, ${measuresFrom(cube)} from (${rows}) as logged`;
  };
  const fromRollup = (segment: Segment, narrowKey: string | undefined): RawBuilder<unknown> => {
    const where = and([sql`grain = ${sql.lit(segment.source)}`, ...conditions, bucketIn(segment)]);
    const table = narrowKey === undefined ? `${cube}_rollup` : 'value_rollup';
    const measures = measuresFrom(narrowKey === undefined ? cube : 'value');
    const keyOfRows = narrowKey ?? key;
    if (values !== undefined && keyOfRows !== null) {
      const rows = rowsOfValues(table, { workspaceId, segment, key: keyOfRows, values });
      return sql`select ${columns}, ${measures} from ${rows} where ${where}`;
    }
    if (narrowKey !== undefined)
      return sql`select ${columns}, ${measures} from ${narrowRows(narrowKey)} where ${where}`;
    const ofKey = key === null ? sql`` : sql`and key = ${key}`;
    return sql`select ${columns}, ${measures} from ${sql.table(table)} where ${where} ${ofKey}`;
  };
  const fromRollups = (part: TimeRange, narrowKey?: string): RawBuilder<unknown>[] =>
    segmentsOf(part, kept, { stepMs, hasTens: narrowKey !== undefined }).map((segment) =>
      segment.source === 'log' ? fromLog(segment) : fromRollup(segment, narrowKey),
    );

  const narrowKey = narrowKeyOf([...reads, ...filteredColumns(filters)], key);
  // Earlier calls come from the log.
  const rollupsFrom = within(range, needsLog(filters) ? range.to : rolledUpFrom);
  const logFrom = Math.max(range.from, kept.logFrom);
  const selects = [
    ...(logFrom < rollupsFrom ? [fromLog({ from: logFrom, to: rollupsFrom })] : []),
    ...fromRollups({ from: rollupsFrom, to: range.to }, narrowKey),
  ];
  if (selects.length === 0) {
    return sql`select ${columns}, ${measuresFrom(cube)} from ${sql.table(`${cube}_rollup`)} where false`;
  }
  return sql.join(
    selects.map((select) => sql`(${select})`),
    sql` union all `,
  );
}

/** Whether rollups have all that is wanted, so that it is quick to ask again for a part of it. */
export const isRolledUp = (wanted: CallsWanted): boolean =>
  !needsLog(wanted.filters) && metadataOf(wanted).rolledUpFrom <= wanted.range.from;

const within = ({ from, to }: TimeRange, at: number): number => Math.min(Math.max(from, at), to);

/** The key of `value_rollup` whose rows say all that is asked of calls; undefined: they are asked of more than one column. */
function narrowKeyOf(columns: readonly string[], metadataKey: string | null): string | undefined {
  const [only, ...others] = new Set(columns);
  if (metadataKey !== null) return only === undefined ? `${metadataKeyPrefix}${metadataKey}` : undefined;
  if (only === undefined) return allCallsKey;
  return others.length === 0 && only in valueColumns ? only : undefined;
}

/** The rollups of some values of a metadata key, found by an index on hashes: a long value would not fit an index page. */
function rowsOfValues(
  table: string,
  wanted: { workspaceId: string | null; segment: Segment; key: string; values: readonly string[] },
): RawBuilder<unknown> {
  const { workspaceId, segment, key } = wanted;
  const values = sql`${[...wanted.values]}::text[]`;
  if (workspaceId === null) {
    return sql`(select * from ${sql.table(table)} where key = ${key} and value = any(${values})
      and hashtextextended(value, 0) in (select hashtextextended(wanted, 0) from unnest(${values}) as wanted)) as of_values`;
  }
  // The policy of the table would keep Postgres from using that index; the function has a check of its own.
  return sql`${sql.ref(`${table}_of`)}(${workspaceId}, ${segment.source}, ${key}, ${values},
    ${new Date(segment.from)}, ${new Date(segment.to)}) as of_values`;
}

/** The rows of a key of `value_rollup`, with their value under the name of the column that it is of. */
function narrowRows(key: string): RawBuilder<unknown> {
  const column = Object.entries(valueColumns).find(([name]) => name === key);
  if (column === undefined) return sql`(select * from value_rollup where key = ${key}) as narrow`;
  const [name, type] = column;
  // Conditions are checked in any order, so a value of another key must not fail to be a number.
  const value = type === 'text' ? sql`value` : sql`case when key = ${key} then value::${sql.raw(type)} end`;
  return sql`(select *, ${value} as ${sql.ref(name)} from value_rollup where key = ${key}) as narrow`;
}

/**
 * The one metadata key that is asked for, its values (undefined: all), and since when rollups know it (epoch milliseconds):
 * of two keys at a time they know nothing, and of all workspaces together only of users.
 */
function metadataOf({ filters: { metadata = {} }, metadataKey: wantedKey, workspaceId, kept, range }: CallsWanted) {
  const keys = new Set([...Object.keys(metadata), ...(wantedKey === undefined ? [] : [wantedKey])]);
  const [only = null] = keys;
  if (keys.size > 1) return { key: wantedKey ?? null, values: undefined, rolledUpFrom: range.to };
  // Users have been in rollups from the first release on.
  const hasAlways = only === null || only === userKey;
  const from = hasAlways ? 0 : workspaceId === null ? undefined : kept.keys.get(only);
  if (from === undefined) return { key: wantedKey ?? null, values: undefined, rolledUpFrom: range.to };
  const values = only === null ? undefined : metadata[only];
  return { key: only, values, rolledUpFrom: from };
}
