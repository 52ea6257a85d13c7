import { sql, type RawBuilder } from 'kysely';
import { columnList, type NamesWith } from '#libs/request-log/columns.ts';
import { hasNotSucceeded, wasRefused } from '#libs/request-log/row/call-outcome.ts';

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

/** Milliseconds since 1970 of the record: the first 48 bits of its UUIDv7 (uuid_extract_timestamp is new in Postgres 18). */
const recordedMs = sql`('x' || substr(id::text, 1, 8) || substr(id::text, 10, 4))::bit(48)::bigint`;

/** The columns that `aggregateLog` reads from the request log. */
export const logColumns: RawBuilder<unknown> = sql`
  ${recordedMs} as recorded_ms, workspace_id, ${sql.join(rolledUp.map(([name]) => sql.ref(name)))},
  ${hasNotSucceeded} as failed, ${wasRefused} as refused, case when ${hasNotSucceeded} then 0 else retries end as retries,
  fallbacks > 0 as fallback, coalesce(input_tokens, 0) as input_tokens,
  coalesce(output_tokens, 0) as output_tokens, cost, saved_cost, duration_ms`;
