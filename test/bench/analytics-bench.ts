import { performance } from 'node:perf_hooks';
import { sql, type Kysely, type RawBuilder } from 'kysely';
import { aggregateValues, rollupColumns } from '#libs/analytics/aggregate-calls.ts';
import { rangeOf, stepOf, type Kept } from '#libs/analytics/choose-buckets.ts';
import { graphs, type GraphName } from '#libs/analytics/graphs.ts';
import { groupings, readGroups } from '#libs/analytics/groups.ts';
import { createRunQuery } from '#libs/analytics/run-query.ts';
import type { CallsWanted } from '#libs/analytics/call-source.ts';
import { bucketIn } from '#libs/analytics/roll-up.ts';
import type { TimeRange } from '#libs/analytics/time-ranges.ts';
import { createDatabase, createPool } from '#libs/database/pool.ts';
import type { Database } from '#libs/database/schema.ts';
import { createLogger } from '#libs/kernel/logger.ts';
import { ensureLogPartition } from '#libs/request-log/log-partitions.ts';
import { utcDay } from '#libs/request-log/log-id.ts';
import { percentile } from './statistics.ts';

export type AnalyticsFigures = {
  calls: number;
  rollupRows: number;
  queries: number;
  p50Ms: number;
  p95Ms: number;
  maxMs: number;
  /** The operation with the highest median, and that median. */
  slowest: string;
  slowestMs: number;
};

const calls = 50_000_000;
const days = 30;
const minuteMs = 60_000;
const hourMs = 60 * minuteMs;
const dayMs = 24 * hourMs;
const workspaceId = 'ws_bench';

/**
 * Queries over a month of a workspace with 50 million calls: 20 keys, 6 models, 2,000 users. Its rollups are inserted
 * directly, without calls. Only the hour at the beginning of the month has calls, because queries read a part of it.
 */
export async function measureAnalytics(
  connectionString: string,
  { rounds }: { rounds: number },
  onProgress: (text: string) => void,
): Promise<AnalyticsFigures> {
  const logger = createLogger({ name: 'bench', level: 'error' });
  const pool = createPool(
    { connectionString, applicationName: 'sluice-bench', statementTimeoutMs: 0, transactionTimeoutMs: 0 },
    logger,
  );
  const db = createDatabase(pool);
  try {
    const now = Math.floor(Date.now() / dayMs) * dayMs + 13 * hourMs + 17 * minuteMs + 12_345;
    onProgress('analytics: rollups of 50 million calls');
    await writeRollups(db, now);
    const { rows } = await sql<{ rows: number }>`
      select (select count(*) from call_rollup) + (select count(*) from metadata_rollup)
        + (select count(*) from value_rollup) as rows`.execute(db);
    const runQuery = createRunQuery({
      db,
      now: () => now,
      limits: { timeoutMs: 10_000, runningMax: 4, waitingMax: 64 },
    });
    const times = new Map<string, number[]>();
    for (let round = -1; round < rounds; round += 1) {
      onProgress(`analytics: round ${round + 1} of ${rounds}`);
      // A period that ends now and begins at any second of a minute, as dashboards ask for it.
      const range = rangeOf({
        time_of_generation_min: new Date(now - days * dayMs + round * 1_234),
        time_of_generation_max: new Date(now),
      });
      for (const [name, read] of Object.entries(operations)) {
        const startedMs = performance.now();
        await runQuery(workspaceId, (tx, kept) => read(tx, { filters: {}, workspaceId, range, kept }));
        const durationMs = performance.now() - startedMs;
        if (round >= 0) times.set(name, [...(times.get(name) ?? []), durationMs]); // the first one warms up
      }
    }
    const all = [...times.values()].flat().toSorted((a, b) => a - b);
    const medians = [...times].map(([name, found]) => ({
      name,
      ms: percentile(
        found.toSorted((a, b) => a - b),
        0.5,
      ),
    }));
    const [slowest] = medians.toSorted((a, b) => b.ms - a.ms);
    return {
      calls,
      rollupRows: rows[0]?.rows ?? 0,
      queries: all.length,
      p50Ms: percentile(all, 0.5),
      p95Ms: percentile(all, 0.95),
      maxMs: all.at(-1) ?? Number.NaN,
      slowest: slowest?.name ?? '',
      slowestMs: slowest?.ms ?? Number.NaN,
    };
  } finally {
    await db.destroy();
  }
}

type Read = (db: Kysely<Database>, wanted: CallsWanted & { kept: Kept }) => Promise<unknown>;

const graph =
  (name: GraphName, filters: CallsWanted['filters'] = {}): Read =>
  (db, wanted) =>
    graphs[name](db, { ...wanted, filters, stepMs: stepOf(wanted.range, wanted.kept) });

const operations: Readonly<Record<string, Read>> = {
  ...Object.fromEntries((Object.keys(graphs) as GraphName[]).map((name) => [name, graph(name)])),
  'cost of a key': graph('cost', { api_key_ids: ['key_3'] }),
  'latency of a model': graph('latency', { ai_org_model: ['provider_1__model_1'] }),
  'cost of a user': graph('cost', { metadata: { _user: ['user_7'] } }),
  'groups of users': (db, wanted) => readGroups(db, wanted, groupings.users, {}),
  'groups of models': (db, wanted) => readGroups(db, wanted, groupings['ai-models'], {}),
  'groups of keys with quantiles': (db, wanted) =>
    readGroups(db, wanted, groupings.api_key, { columns: ['requests', 'p95_latency', 'p99_latency'] }),
};

async function writeRollups(db: Kysely<Database>, now: number): Promise<void> {
  const from = Math.floor(now / dayMs - days) * dayMs;
  const hoursUntil = Math.floor(now / hourMs) * hourMs;
  const daysUntil = Math.floor(now / dayMs) * dayMs;
  const minutesFrom = hoursUntil - dayMs;
  // For each grain: rows per bucket by calls and by users, and bins of their histograms.
  await writeGrain(db, 'day', { from, to: daysUntil, stepMs: dayMs, rows: 300, bins: 100, users: 8_000 });
  await writeGrain(db, 'hour', { from, to: hoursUntil, stepMs: hourMs, rows: 200, bins: 70, users: 1_600 });
  await writeGrain(db, 'minute', { from: minutesFrom, to: now, stepMs: minuteMs, rows: 60, bins: 15, users: 700 });
  await writeValues(db, 'day', { from, to: daysUntil });
  // Of the hours, those that a month's query reads: at its two ends.
  await writeValues(db, 'hour', { from, to: from + dayMs });
  await writeValues(db, 'hour', { from: daysUntil, to: hoursUntil });
  const firstHour = Math.floor((now - days * dayMs) / hourMs) * hourMs;
  await ensureLogPartition(db, utcDay(firstHour));
  await sql`
    insert into request_log (process_id, sequence, recorded_on, id, workspace_id, key_id, kind, operation, request_id, trace_id,
      metadata, provider, virtual_key, model, stream, status, attempts, started_at, duration_ms, input_tokens, output_tokens, cost)
    select gen_random_uuid(), n, ${utcDay(firstHour)}, (lpad(to_hex(${firstHour}::bigint + n * ${hourMs}::bigint / ${callsPerHour}::bigint),
        12, '0') || '7000' || '8' || lpad(to_hex(n), 15, '0'))::uuid,
      ${workspaceId}, 'key_' || n % 20, 'live', 'chat', 'req', 'trace_' || n, jsonb_build_object('_user', 'user_' || n % 2000),
      'provider_' || n % 3, 'main', 'model_' || n % 6, false, 200, 1, now(), 500 + n % 5000, 100, 50, 0.25
    from generate_series(0, ${callsPerHour - 1}) as n`.execute(db);
  await sql`update rollup_state set minutes_from = ${new Date(minutesFrom)}, hours_until = ${new Date(hoursUntil)},
    days_until = ${new Date(daysUntil)}`.execute(db);
  await sql`
    insert into feedback (id, workspace_id, trace_id, value, weight, source, created_at, updated_at)
    select gen_random_uuid(), ${workspaceId}, 'trace_' || n, n % 21 - 10, 1, 'api',
      ${new Date(from)}::timestamptz + n * interval '25 seconds', now()
    from generate_series(1, 100000) as n`.execute(db);
  for (const table of ['call_rollup', 'metadata_rollup', 'value_rollup', 'request_log', 'feedback']) {
    await sql`vacuum analyze ${sql.table(table)}`.execute(db);
  }
}

const callsPerHour = Math.round(calls / days / 24);

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
  await sql`
    with histogram as materialized (
      select n, (select string_agg((150 + bin) || ':' || 1 + (bin * 7 + n) % 90, ',') from generate_series(1, ${bins}) as bin) as latency
      from generate_series(1, ${rows}) as n
    )
    insert into call_rollup (${columns})
    select ${values(sql`n`, Math.round(callsPerBucket / rows), sql`latency`)} from ${buckets}, histogram`.execute(db);
  const hash = sql`abs(hashint4(n) % 2000)`;
  await sql`
    insert into metadata_rollup (key, value, ${columns})
    select '_user', 'user_' || (${hash} + extract(epoch from bucket)::bigint / 60) % 2000,
      ${values(sql`n`, Math.max(1, Math.round(callsPerBucket / users)), sql`'200:20,201:23'`)}
    from ${buckets}, generate_series(1, ${users}) as n`.execute(db);
}

async function writeValues(db: Kysely<Database>, grain: 'hour' | 'day', { from, to }: TimeRange): Promise<void> {
  const stepMs = grain === 'day' ? dayMs : hourMs;
  for (let at = from; at < to; at += stepMs) {
    const where = sql`grain = ${sql.lit(grain)} and ${bucketIn({ from: at, to: at + stepMs })}`;
    await sql`
      insert into value_rollup (grain, ${rollupColumns('value')})
      select ${sql.lit(grain)}, ${rollupColumns('value')} from (${aggregateValues(grain, where)}) as rolled_up
      order by workspace_id, key`.execute(db);
  }
}
