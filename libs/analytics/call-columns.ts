import { sql, type RawBuilder } from 'kysely';
import { hasNotSucceeded, wasRefused } from '#libs/request-log/row/call-outcome.ts';

// What a rollup keeps of calls, and how each of it is read from a row of the request log. `call_rollup` and
// `metadata_rollup` have all of these columns.

/** Calls that differ in one of these are in different rows of a rollup. Filters and groups go by them. */
export const dimensions = [
  'workspace_id',
  'provider',
  'model',
  'status',
  'failed',
  'key_id',
  'virtual_key',
  'config',
  'prompt_slug',
  'cache_status',
  'retries',
  'fallback',
] as const;
export type Dimension = (typeof dimensions)[number];

/** The columns whose values have rows of their own in `value_rollup`, and their types: there, all values are texts. */
export const valueColumns = {
  provider: 'text',
  model: 'text',
  status: 'int',
  key_id: 'text',
  virtual_key: 'text',
  config: 'text',
  prompt_slug: 'text',
  cache_status: 'text',
  retries: 'int',
  fallback: 'boolean',
} as const satisfies Partial<Record<Dimension, string>>;

/** Milliseconds since 1970 of the record: the first 48 bits of its UUIDv7 (uuid_extract_timestamp is new in Postgres 18). */
const recordedMs = sql`('x' || substr(id::text, 1, 8) || substr(id::text, 10, 4))::bit(48)::bigint`;

/** What `aggregateLog` reads of a row of the request log. Columns that a call has no value for are null. */
export const logColumns: RawBuilder<unknown> = sql`
  ${recordedMs} as recorded_ms, workspace_id, provider, model, status, ${hasNotSucceeded} as failed, ${wasRefused} as refused, key_id, virtual_key,
  config, prompt_slug, cache_status, case when ${hasNotSucceeded} then 0 else greatest(coalesce(retries, attempts - 1), 0) end as retries,
  coalesce(fallbacks, 0) > 0 as fallback, coalesce(input_tokens, 0) as input_tokens,
  coalesce(output_tokens, 0) as output_tokens, cost, saved_cost, duration_ms`;
