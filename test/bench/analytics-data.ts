import { sql, type Kysely, type RawBuilder } from 'kysely';
import { aggregateRollup, rollupColumns, toValueRollups, type Grain } from '#libs/analytics/aggregate-calls.ts';
import { bucketIn } from '#libs/analytics/rollups/roll-up.ts';
import type { TimeRange } from '#libs/analytics/time-ranges.ts';
import type { Database } from '#libs/database/schema.ts';
import { ensureLogPartition } from '#libs/request-log/write/log-partitions.ts';
import { utcDay } from '#libs/request-log/row/log-id.ts';

// A month of a workspace with 50 million calls: 20 keys, 6 models, 2,000 users, 20 teams. Its rollups are inserted directly,
// without calls, and of the buckets that a query reads at its ends only those. One day has calls: that of the month's beginning,
// because queries read a part of a minute of it, or of an hour.

export const calls = 50_000_000;
export const days = 30;
export const minuteMs = 60_000;
export const hourMs = 60 * minuteMs;
export const dayMs = 24 * hourMs;
export const workspaceId = 'ws_bench';
const feedbackItems = 100_000;

/** `now` in epoch milliseconds; `logMs`: how long from the month's beginning on there are calls. */
export async function writeMonth(db: Kysely<Database>, { now, logMs }: { now: number; logMs: number }): Promise<void> {
  const from = Math.floor(now / dayMs - days) * dayMs;
  const hoursUntil = Math.floor(now / hourMs) * hourMs;
  const tensUntil = Math.floor(now / (10 * minuteMs)) * 10 * minuteMs;
  const daysUntil = Math.floor(now / dayMs) * dayMs;
  const minutesFrom = hoursUntil - dayMs;
  const firstHour = Math.floor((now - days * dayMs) / hourMs) * hourMs;
  // For each grain: rows per bucket by calls and by users, and bins of their histograms.
  await writeGrain(db, 'day', { from, to: daysUntil, stepMs: dayMs, rows: 300, bins: 100, users: 8_000 });
  await writeGrain(db, 'hour', { from, to: hoursUntil, stepMs: hourMs, rows: 200, bins: 70, users: 1_600 });
  const ofMinute = { stepMs: minuteMs, rows: 60, bins: 15, users: 700 };
  await writeGrain(db, 'minute', { ...ofMinute, from: minutesFrom, to: now });
  await writeGrain(db, 'minute', { ...ofMinute, from: firstHour, to: firstHour + hourMs });

  await writeValues(db, 'day', { from, to: daysUntil });
  await writeValues(db, 'hour', { from, to: from + dayMs });
  await writeValues(db, 'hour', { from: daysUntil, to: hoursUntil });
  for (const range of [
    { from: firstHour, to: firstHour + hourMs },
    { from: hoursUntil, to: now },
  ]) {
    await writeValues(db, 'minute', range);
    const finer = sql`grain = 'minute' and ${bucketIn(range)}`;
    await insertValues(db, 'ten_minutes', aggregateRollup('value', 'ten_minutes', finer));
  }
  for (const table of ['call_rollup_minute', 'metadata_rollup_minute', 'value_rollup_minute']) {
    await sql`delete from ${sql.table(table)} where bucket < ${new Date(minutesFrom)}`.execute(db);
  }
  await sql`delete from value_rollup_ten_minutes where bucket >= ${new Date(tensUntil)}`.execute(db);
  await sql`insert into rollup_key (workspace_id, key, from_at, seen_on)
    select ${workspaceId}, unnest(array['_user', 'team']), '-infinity', now()`.execute(db);
  await sql`update rollup_state set minutes_from = ${new Date(minutesFrom)}, tens_until = ${new Date(tensUntil)},
    hours_until = ${new Date(hoursUntil)}, days_until = ${new Date(daysUntil)}`.execute(db);

  await writeCalls(db, { from: firstHour, to: firstHour + logMs });
  await sql`
    insert into feedback (id, workspace_id, trace_id, value, weight, source, created_at, updated_at)
    select gen_random_uuid(), ${workspaceId}, 'trace_' || n, n % 21 - 10, 1, 'api',
      ${new Date(from)}::timestamptz + n * interval '25 seconds', now()
    from generate_series(1, ${feedbackItems}) as n`.execute(db);
  for (const table of [
    'call_rollup',
    'metadata_rollup',
    'value_rollup',
    'request_log_row',
    'request_log_pack',
    'feedback',
  ]) {
    await sql`vacuum analyze ${sql.table(table)}`.execute(db);
  }
}

const callsPerHour = Math.round(calls / days / 24);

/** Calls at equal distances, in the order in which they are recorded. */
export async function writeCalls(db: Kysely<Database>, { from, to }: TimeRange): Promise<void> {
  for (let at = from; at < to; at += hourMs) {
    await ensureLogPartition(db, utcDay(at));
    await sql`
      insert into request_log_row (process_id, sequence, recorded_on, id, workspace_id, key_id, kind, operation, request_id, trace_id,
        metadata, provider, virtual_key, model, stream, status, attempts, started_at, duration_ms, input_tokens, output_tokens, cost)
      select gen_random_uuid(), n, ${utcDay(at)}, (lpad(to_hex(${at}::bigint + n * ${hourMs}::bigint / ${callsPerHour}::bigint),
          12, '0') || '7000' || '8' || lpad(to_hex(n), 15, '0'))::uuid,
        ${workspaceId}, 'key_' || n % 20, 'live', 'chat', 'req', 'trace_' || n,
        jsonb_build_object('_user', 'user_' || n % 2000, 'team', 'team_' || n % 20),
        'provider_' || n % 3, 'main', 'model_' || n % 6, false, 200, 1, now(), 500 + n % 5000, 100, 50, 0.25
      from generate_series(0, ${callsPerHour - 1}) as n`.execute(db);
  }
}

async function writeGrain(
  db: Kysely<Database>,
  grain: 'minute' | 'hour' | 'day',
  size: { from: number; to: number; stepMs: number; rows: number; bins: number; users: number },
): Promise<void> {
  const { from, to, stepMs, rows, bins, users } = size;
  const callsPerBucket = (callsPerHour * stepMs) / hourMs;
  const columns = sql`grain, bucket, workspace_id, provider, model, status, failed, key_id, virtual_key, config, cache_status,
    retries, fallback, requests, input_tokens, output_tokens, cost, unpriced, saved_cost, duration_us, latency, first_at, last_at`;
  const values = (
    each: RawBuilder<unknown>,
    requests: number,
    latency: RawBuilder<unknown>,
  ): RawBuilder<unknown> => sql`
    ${grain}, bucket, ${workspaceId}, 'provider_' || ${each} % 3, 'model_' || ${each} % 6,
    case when ${each} % 20 = 0 then 429 else 200 end, ${each} % 20 = 0, 'key_' || ${each} % 20, 'main', 'routing',
    case ${each} % 3 when 0 then 'HIT' when 1 then 'MISS' end, 0, false, ${requests}, ${requests * 100}, ${requests * 50},
    ${requests} * 0.251, 0, 0, ${requests} * 1500000::numeric, ${latency}, bucket, bucket + interval '1 second'`;
  const buckets = sql`generate_series(${new Date(from)}, ${new Date(to - 1)}, ${stepMs} * interval '1 millisecond') as bucket`;
  const histogram = sql`
    histogram as materialized (
      select n, (select string_agg((150 + bin) || ':' || 1 + (bin * 7 + n) % 90, ',') from generate_series(1, ${bins}) as bin) as latency
      from generate_series(1, ${rows}) as n
    )`;
  const ofRow = Math.round(callsPerBucket / rows);
  await sql`
    with ${histogram} insert into call_rollup (${columns})
    select ${values(sql`n`, ofRow, sql`latency`)} from ${buckets}, histogram`.execute(db);
  await sql`
    with ${histogram} insert into metadata_rollup (key, value, ${columns})
    select 'team', 'team_' || n % 20, ${values(sql`n`, ofRow, sql`latency`)} from ${buckets}, histogram`.execute(db);
  const hash = sql`abs(hashint4(n) % 2000)`;
  await sql`
    insert into metadata_rollup (key, value, ${columns})
    select '_user', 'user_' || (${hash} + extract(epoch from bucket)::bigint / 60) % 2000,
      ${values(sql`n`, Math.max(1, Math.round(callsPerBucket / users)), sql`'200:20,201:23'`)}
    from ${buckets}, generate_series(1, ${users}) as n`.execute(db);
}

/** Rows of single values from those of all columns, an hour or a day at a time. */
async function writeValues(db: Kysely<Database>, grain: Grain, { from, to }: TimeRange): Promise<void> {
  const stepMs = grain === 'day' ? dayMs : hourMs;
  for (let at = from; at < to; at += stepMs) {
    const where = sql`grain = ${sql.lit(grain)} and ${bucketIn({ from: at, to: Math.min(at + stepMs, to) })}`;
    await insertValues(db, grain, toValueRollups(grain, where));
  }
}

async function insertValues(db: Kysely<Database>, grain: Grain, rows: RawBuilder<unknown>): Promise<void> {
  await sql`
    insert into value_rollup (grain, ${rollupColumns('value')})
    select ${sql.lit(grain)}, ${rollupColumns('value')} from (${rows}) as rolled_up order by workspace_id, key`.execute(
    db,
  );
}
