import { sql, type RawBuilder } from 'kysely';
import { columnList, type NamesWith } from '#libs/request-log/columns.ts';
import { hasNotSucceeded, wasRefused } from '#libs/request-log/row/call-outcome.ts';
import { latencyBin } from '#libs/request-log/row/latency-bin.ts';

// The columns of calls in rollups, and how each is read from a row of the request log. `call_rollup` and
// `metadata_rollup` have all of these columns.

const rolledUp = columnList.filter(([, { isRolledUp }]) => isRolledUp === true);

/**
 * The columns whose values have separate rows in `value_rollup`, and their types. In that table, all values are texts.
 */
export const valueColumns: Readonly<Record<string, 'text' | 'int' | 'boolean'>> = {
  ...Object.fromEntries(rolledUp.map(([name, { type }]) => [name, type === 'integer' ? 'int' : 'text'])),
  retries: 'int',
  fallback: 'boolean',
};

/** Calls that differ in one of these are in different rows of a rollup. Filters and groups use them. */
export type Dimension = NamesWith<{ isRolledUp: true }> | 'workspace_id' | 'failed' | 'retries' | 'fallback';
export const dimensions = ['workspace_id', 'failed', ...Object.keys(valueColumns)] as Dimension[];

/** Milliseconds since 1970 of a record: the first 48 bits of its UUIDv7 (uuid_extract_timestamp is new in Postgres 18). */
const recordedMs = (id: string): RawBuilder<unknown> =>
  sql`('x' || substr(${sql.ref(id)}::text, 1, 8) || substr(${sql.ref(id)}::text, 10, 4))::bit(48)::bigint`;

const dimensionColumns = sql`
  workspace_id, ${sql.join(rolledUp.map(([name]) => sql.ref(name)))}, ${hasNotSucceeded} as failed,
  case when ${hasNotSucceeded} then 0 else retries end as retries, fallbacks > 0 as fallback, false as other`;

/** The columns that aggregations read from one record of the log: what it adds to sums, and its latency bin. */
const recordColumns = sql`
  ${dimensionColumns}, ${recordedMs('id')} as first_ms, ${recordedMs('id')} as last_ms, 1 as requests,
  ${wasRefused}::int as refused_requests, coalesce(input_tokens, 0) as input_tokens,
  coalesce(cached_tokens, 0) as cached_tokens, coalesce(cache_write_tokens, 0) as cache_write_tokens,
  coalesce(output_tokens, 0) as output_tokens, coalesce(cost, 0) as cost,
  (cost is null and not ${hasNotSucceeded})::int as unpriced, coalesce(saved_cost, 0) as saved_cost,
  coalesce(prompt_cache_saved, 0) as prompt_cache_saved,
  (duration_ms * 1000)::bigint as duration_us, ${latencyBin} as bin, 1 as binned`;

/** The same of a pack: a row for each of its bins (`pair`), the first of which has the sums. */
const packColumns = sql`
  ${dimensionColumns}, ${recordedMs('first_id')} as first_ms, ${recordedMs('last_id')} as last_ms,
  case when place = 1 then lines else 0 end as requests,
  case when place = 1 and ${wasRefused} then lines else 0 end as refused_requests,
  case when place = 1 then sum_input_tokens else 0 end as input_tokens,
  case when place = 1 then sum_cached_tokens else 0 end as cached_tokens,
  case when place = 1 then sum_cache_write_tokens else 0 end as cache_write_tokens,
  case when place = 1 then sum_output_tokens else 0 end as output_tokens,
  case when place = 1 then sum_cost else 0 end as cost,
  case when place = 1 and not ${hasNotSucceeded} then pack.unpriced else 0 end as unpriced,
  case when place = 1 then sum_saved_cost else 0 end as saved_cost,
  case when place = 1 then sum_prompt_cache_saved else 0 end as prompt_cache_saved,
  case when place = 1 then sum_duration_us else 0 end as duration_us,
  split_part(pair.text, ':', 1)::int as bin, split_part(pair.text, ':', 2)::int as binned`;

/**
 * Which records: a condition on `request_log`, or on its rows and its packs. Whole packs are read from their sums, so
 * the conditions must be the same for all of their lines.
 */
export type Records = { where: RawBuilder<unknown> } | RowsAndPacks;
export type RowsAndPacks = Record<'rows' | 'packs', RawBuilder<unknown>>;

/** The columns that `metadataValue` reads. */
const labels = sql`metadata, session_id, agent_id`;

/** The records of a query, and their metadata. */
export const selectRecords = (records: Records): RawBuilder<unknown> =>
  'where' in records
    ? sql`select ${recordColumns}, ${labels} from request_log where ${records.where}`
    : sql`
      select ${recordColumns}, ${labels} from request_log_row where ${records.rows}
      union all
      select ${packColumns}, ${labels} from request_log_pack as pack
        cross join lateral unnest(string_to_array(latency, ',')) with ordinality as pair (text, place)
      where ${records.packs}`;
