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
import {
  aggregateLog,
  allCallsKey,
  measuresFrom,
  metadataKeyPrefix,
  rolledUpKeys,
  singleCalls,
} from './aggregate-calls.ts';
import { valueColumns, type Dimension } from './call-columns.ts';
import { divideIntoSegments, type Kept, type Segment } from './choose-buckets.ts';
import { bucketIn, recordedIn } from './rollups/roll-up.ts';
import type { TimeRange } from './time-ranges.ts';

/** The calls that an operation analyses. */
export type CallsWanted = {
  filters: CallFilters;
  /** null: those of all workspaces. */
  workspaceId: string | null;
  range: TimeRange;
  kept: Kept;
  /** The longest buckets that can be read, because the answer has points; absent: any. */
  stepMs?: number;
  /** Calls that have this metadata, with its `key` and `value`. */
  metadataKey?: string;
};

export type SourceOptions = {
  /** The columns that the answer uses in addition to `bucket`, `workspace_id`, `value` and sums. Fewer are faster. */
  reads?: readonly Dimension[];
  /** Without it, `latency` can be empty. */
  withLatency?: boolean;
};

/**
 * Returns rows that add up to the wanted calls: from rollups, or from the request log if only that has the filtered
 * columns. If only one column or metadata key is involved, the narrow rows of `value_rollup` are used. The result is
 * one SELECT, for a FROM clause: `bucket`, `workspace_id`, `value` (of the metadata key), `other` (whether the row
 * combines rare values), the columns `reads`, and the measures.
 */
export function callSource(
  wanted: CallsWanted,
  { reads = [], withLatency = false }: SourceOptions = {},
): RawBuilder<unknown> {
  const { filters, workspaceId, range, kept, stepMs } = wanted;
  const { key, values, rolledUpFrom } = getCallMetadata(wanted);
  const cube = key === null ? 'call' : 'metadata';
  const conditions = [...workspaceCondition(workspaceId), ...rollupConditions(filters)];
  const columns = sql.join([
    sql`bucket, workspace_id, other`,
    ...(key === null ? [] : [sql`value`]),
    ...reads.map((name) => sql.ref(name)),
  ]);

  const fromLog = (segment: TimeRange): RawBuilder<unknown> => {
    const where = and([...conditions, ...logConditions(filters, workspaceId), recordedIn(segment)]);
    // `measuresFrom` adds up which calls failed, and which were answered from the cache.
    const own = ['workspace_id', 'other', ...(key === null ? [] : ['value']), ...reads, 'failed', 'cache_status'];
    const rows = (withLatency ? aggregateLog : singleCalls)({
      cube,
      bucketMs: Math.min(stepMs ?? 86_400_000, 86_400_000),
      records: { where },
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
    divideIntoSegments(part, kept, { stepMs, hasTens: narrowKey !== undefined }).map((segment) =>
      segment.source === 'log' ? fromLog(segment) : fromRollup(segment, narrowKey),
    );

  const narrowKey = narrowKeyOf([...reads, ...filteredColumns(filters)], key);
  // Earlier calls are read from the log.
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

/** Whether rollups contain everything that is wanted, so that another query for a part of it is fast. */
export const isRolledUp = (wanted: CallsWanted): boolean =>
  !needsLog(wanted.filters) && getCallMetadata(wanted).rolledUpFrom <= wanted.range.from;

const within = ({ from, to }: TimeRange, at: number): number => Math.min(Math.max(from, at), to);

/**
 * The key of `value_rollup` whose rows contain everything that is needed; undefined if more than one column is needed.
 */
function narrowKeyOf(columns: readonly string[], metadataKey: string | null): string | undefined {
  const [only, ...others] = new Set(columns);
  if (metadataKey !== null) return only === undefined ? `${metadataKeyPrefix}${metadataKey}` : undefined;
  if (only === undefined) return allCallsKey;
  return others.length === 0 && only in valueColumns ? only : undefined;
}

/**
 * The rollups of some values of a metadata key, found by an index on hashes, because a long value would not fit an
 * index page.
 */
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
  // The policy of the table would prevent Postgres from using that index. The function checks the workspace itself.
  return sql`${sql.ref(`${table}_of`)}(${workspaceId}, ${segment.source}, ${key}, ${values},
    ${new Date(segment.from)}, ${new Date(segment.to)}) as of_values`;
}

/** The rows of a key of `value_rollup`, with their value under the name of its column. */
function narrowRows(key: string): RawBuilder<unknown> {
  const column = Object.entries(valueColumns).find(([name]) => name === key);
  if (column === undefined) return sql`(select * from value_rollup where key = ${key}) as narrow`;
  const [name, type] = column;
  // Conditions are checked in any order, so converting a value of another key to a number must not fail.
  const value = type === 'text' ? sql`value` : sql`case when key = ${key} then value::${sql.raw(type)} end`;
  return sql`(select *, ${value} as ${sql.ref(name)} from value_rollup where key = ${key}) as narrow`;
}

/**
 * The single metadata key that is used, its values (undefined: all), and since when rollups contain it (epoch
 * milliseconds). Rollups support only one key per query, and only users and sessions across all workspaces.
 */
function getCallMetadata({
  filters: { metadata = {} },
  metadataKey: wantedKey,
  workspaceId,
  kept,
  range,
}: CallsWanted) {
  const keys = new Set([...Object.keys(metadata), ...(wantedKey === undefined ? [] : [wantedKey])]);
  const [only = null] = keys;
  if (keys.size > 1) return { key: wantedKey ?? null, values: undefined, rolledUpFrom: range.to };
  // Users and sessions have been in rollups since the first release.
  const hasAlways = only === null || rolledUpKeys.includes(only);
  const from = hasAlways ? 0 : workspaceId === null ? undefined : kept.keys.get(only);
  if (from === undefined) return { key: wantedKey ?? null, values: undefined, rolledUpFrom: range.to };
  const values = only === null ? undefined : metadata[only];
  return { key: only, values, rolledUpFrom: from };
}
