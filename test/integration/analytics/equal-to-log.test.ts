import { Big } from 'big.js';
import { sql, type RawBuilder } from 'kysely';
import { beforeAll, expect, test } from 'vitest';
import type { CallsWanted } from '#libs/analytics/call-source.ts';
import { divideIntoSegments, chooseStep, type Kept } from '#libs/analytics/choose-buckets.ts';
import {
  readFeedbackModels,
  readFeedbackPoints,
  readFeedbackScores,
  readGroupFeedback,
} from '#libs/analytics/feedback-graphs.ts';
import { groupings, readGroups } from '#libs/analytics/groups.ts';
import { addTotals, countByPoint, countValues, readPoints } from '#libs/analytics/read-totals.ts';
import { sweepRollups } from '#libs/analytics/rollups/sweep-rollups.ts';
import type { RequestLogEntry } from '#libs/request-log/row/log-entry.ts';
import { createRandom } from '#test/faults/random.ts';
import { useTestDatabase } from '#test/postgres.ts';
import { dayMs, hourMs, logRetentionMs, minuteMs, readKept, rollUpAll, writeCalls } from './log-kit.ts';

// Whatever is filtered by, and from whichever rollups the answer comes: it is that of a plain query of the log itself.

const database = useTestDatabase();
const now = Date.now();
const random = createRandom(20_261_123);
const pick = <Value>(values: readonly Value[]): Value => random.pick(values);
const below = (end: number): number => random.between(0, end - 1);
const workspaces = ['ws_1', 'ws_2'];

function randomCall(): Partial<RequestLogEntry> & { at: number } {
  const user = pick([null, 'ann', 'bob', 'cleo', 'ünal']);
  const session = pick([null, null, null, 'session_1', 'session_2']);
  return {
    // Three days, and within them some busy hours.
    at: now - (below(4) === 0 ? below(3 * dayMs) : pick([0, 5, 27, 50]) * hourMs + below(hourMs)),
    workspace_id: pick(workspaces),
    key_id: pick([null, 'key_1', 'key_2']),
    provider: pick(['openai', 'anthropic']),
    virtual_key: pick([null, 'main', 'spare']),
    model: pick([null, 'small', 'large']),
    status: pick([null, 200, 200, 200, 429, 500]),
    error_code: pick([null, null, null, 'broken_off']),
    attempts: pick([0, 1, 1, 2, 3]),
    retries: pick([0, 0, 1]),
    fallbacks: pick([0, 0, 1]),
    config: pick([null, 'routing', 'cheap']),
    prompt_slug: pick([null, 'greeting']),
    cache_status: pick([null, 'HIT', 'MISS']),
    // Sums of these are no floats.
    cost: pick([null, '0', '0.1', '0.2', '0.000000000000000123', '12345678901234.5']),
    saved_cost: pick([null, '0.3']),
    trace_id: pick([null, 'trace_1', 'trace_2', 'trace_3']),
    span_id: pick([null, 'span_1']),
    session_id: session,
    agent_id: session === null ? null : pick([null, 'agent_1', 'agent_2']),
    // From 0.1 ms on, where quantiles have their precision.
    duration_ms: Math.exp(below(1_000) / 90) - 0.9,
    input_tokens: pick([null, 0, 7, 1_000]),
    output_tokens: pick([null, 1, 50]),
    cached_tokens: pick([null, 0, 5]),
    cache_write_tokens: pick([null, 3]),
    prompt_cache_saved: pick([null, '0.7', '-0.000000000001']),
    metadata: { ...(user === null ? {} : { _user: user }), team: pick(['search', 'ads']) },
  };
}

let kept: Kept;
beforeAll(async () => {
  const { db } = database;
  for (let group = 0; group < 30; group += 1) {
    await writeCalls(db, Array.from({ length: 100 }, randomCall));
    // Some groups come late, after what they belong to was rolled up.
    if (group % 7 === 0) await rollUpAll(db, now);
  }
  for (const workspace of workspaces) {
    for (const [trace, value, weight] of [
      ['trace_1', 5, 1],
      ['trace_1', -3, 0.5],
      ['trace_2', -10, 0.2],
      ['trace_2', 1, 0],
    ] as const) {
      await sql`insert into feedback (id, workspace_id, trace_id, value, weight, source, created_at, updated_at)
        values (gen_random_uuid(), ${workspace}, ${trace}, ${value}, ${weight}, 'api', now(), now())`.execute(db);
    }
  }
  await rollUpAll(db, now);
  // Minutes of the first days are gone, so that what is left at the ends of a time comes from the log.
  const retention = { minute: 30 * hourMs, hour: 90 * dayMs, day: 400 * dayMs };
  await sweepRollups(db, { retention, logRetentionMs, nowMs: now });
  kept = await readKept(db, 'ws_1', now);
});

type Filters = CallsWanted['filters'];
/** A filter, and the same as a plain condition on the log. */
type Case = [keyof Filters, () => { filter: Filters; where: RawBuilder<unknown> }];

const cases: Case[] = [
  ['virtual_keys', () => ({ filter: { virtual_keys: ['main'] }, where: sql`virtual_key = 'main'` })],
  ['api_key_ids', () => ({ filter: { api_key_ids: ['key_1', 'nobody'] }, where: sql`key_id = 'key_1'` })],
  ['status_code', () => ({ filter: { status_code: [200, 429] }, where: sql`status in (200, 429)` })],
  [
    'ai_org_model',
    () => ({
      filter: { ai_org_model: ['openai__small', 'large'] },
      where: sql`(provider = 'openai' and model = 'small' or model = 'large')`,
    }),
  ],
  ['metadata', () => ({ filter: { metadata: { team: ['ads'] } }, where: sql`metadata ->> 'team' = 'ads'` })],
  [
    'metadata',
    () => ({
      filter: { metadata: { _user: ['ann', 'ünal'] } },
      where: sql`metadata ->> '_user' in ('ann', 'ünal')`,
    }),
  ],
  ['metadata', () => ({ filter: { metadata: { _session: ['session_1'] } }, where: sql`session_id = 'session_1'` })],
  ['session_id', () => ({ filter: { session_id: ['session_2'] }, where: sql`session_id = 'session_2'` })],
  ['agent_id', () => ({ filter: { agent_id: ['agent_1'] }, where: sql`agent_id = 'agent_1'` })],
  ['trace_id', () => ({ filter: { trace_id: ['trace_2'] }, where: sql`trace_id = 'trace_2'` })],
  ['span_id', () => ({ filter: { span_id: ['span_1'] }, where: sql`span_id = 'span_1'` })],
  [
    'total_units_min',
    () => ({
      filter: { total_units_min: '8', total_units_max: '1001' },
      where: sql`coalesce(input_tokens, 0) + coalesce(output_tokens, 0) between 8 and 1001`,
    }),
  ],
  ['ai_model', () => ({ filter: { ai_model: ['small'] }, where: sql`model = 'small'` })],
  ['configs', () => ({ filter: { configs: ['routing'] }, where: sql`config = 'routing'` })],
  ['prompt_slug', () => ({ filter: { prompt_slug: ['greeting'] }, where: sql`prompt_slug = 'greeting'` })],
  ['cache_status', () => ({ filter: { cache_status: ['HIT'] }, where: sql`cache_status = 'HIT'` })],
  ['cost_min', () => ({ filter: { cost_min: '0.1', cost_max: '0.2' }, where: sql`cost >= 0.1 and cost <= 0.2` })],
  ['prompt_token_max', () => ({ filter: { prompt_token_max: '6' }, where: sql`coalesce(input_tokens, 0) <= 6` })],
  [
    'completion_token_min',
    () => ({
      filter: { completion_token_min: '50' },
      where: sql`coalesce(output_tokens, 0) >= 50`,
    }),
  ],
  [
    'weighted_feedback_min',
    () => ({
      filter: { weighted_feedback_min: '2', weighted_feedback_max: '2.5' },
      where: sql`trace_id = 'trace_1'`, // (5·1 − 3·0.5) ÷ 1.5 = 2.33; trace_2 has −10
    }),
  ],
];

/** A random time, in whole milliseconds; often one that ends now, as dashboards ask for. */
function randomRange(): { from: number; to: number } {
  const length = pick([30_000, 10 * minuteMs, 2 * hourMs, 9 * hourMs, 25 * hourMs, 70 * hourMs, 100 * hourMs]);
  const to = below(3) === 0 ? now + 1 : now - below(60 * hourMs);
  return { from: to - length - below(minuteMs), to };
}

type PlainGroup = {
  value: unknown;
  requests: number;
  last_seen: number;
  errors: number;
  refused: number;
  cost: number;
  p95: number;
};

const recordedMs = sql`('x' || left(replace(id::text, '-', ''), 12))::bit(48)::bigint`;
/** The values of groups by a metadata key. */
const plainColumns: Readonly<Record<string, RawBuilder<unknown>>> = {
  _user: sql`metadata ->> '_user'`,
  _session: sql`session_id`,
  _agent: sql`case when session_id is not null then coalesce(agent_id, '') end`,
  team: sql`metadata ->> 'team'`,
};
const failed = sql`(status is null or status >= 400 or error_code is not null)`;

test('every total of random times and filters is that of the log', async () => {
  const { db } = database;
  const used = new Set<string>();
  let calls = 0;
  for (let round = 0; round < 80; round += 1) {
    const range = randomRange();
    const chosen = below(4) === 0 ? [] : [pick(cases), pick(cases)];
    const conditions = chosen.map(([, make]) => make());
    // Two filters on the same member would overwrite each other.
    if (chosen.length === 2 && chosen[0]?.[0] === chosen[1]?.[0]) conditions.pop();
    const filters: Filters = Object.assign({}, ...conditions.map(({ filter }) => filter));
    const workspaceId = pick(workspaces);
    // A key that was admitted late has rollups from then on, and one that was refused has none.
    const teamFrom = pick([kept.keys.get('team'), Math.floor(now / hourMs - 9) * hourMs, undefined]);
    const known = new Map(teamFrom === undefined ? [] : [['team', teamFrom]]);
    const wanted = {
      filters,
      workspaceId,
      range,
      kept: { ...kept, keys: known },
      stepMs: chooseStep(range, kept),
    };
    for (const options of [{ stepMs: wanted.stepMs }, { stepMs: wanted.stepMs, hasTens: true }, {}]) {
      for (const { source } of divideIntoSegments(range, kept, options)) used.add(source);
    }
    const where = sql`workspace_id = ${workspaceId} and ${recordedMs} >= ${range.from} and ${recordedMs} < ${range.to}
      and ${sql.join([sql`true`, ...conditions.map((each) => each.where)], sql` and `)}`;
    const description = JSON.stringify({ round, filters, from: new Date(range.from), to: new Date(range.to) });

    // A failure names the round, its time and its filters.
    const same = (actual: unknown, expected: unknown): void =>
      expect({ description, value: actual }).toEqual({ description, value: expected });

    const points = await readPoints(db, wanted, true);
    const totals = addTotals(points.values());
    const { rows: plain } = await sql<Record<string, number | null>>`
      select count(*) as requests, count(*) filter (where ${failed}) as failed, coalesce(sum(input_tokens), 0)::bigint as input,
        coalesce(sum(output_tokens), 0)::bigint as output, coalesce(sum((duration_ms * 1000)::bigint), 0)::bigint as duration,
        coalesce(sum(cost), 0)::text as cost, coalesce(sum(saved_cost), 0)::text as saved,
        coalesce(sum(cached_tokens), 0)::bigint as cached, coalesce(sum(cache_write_tokens), 0)::bigint as written,
        coalesce(sum(prompt_cache_saved), 0)::text as kept_cost,
        count(*) filter (where cost is null and not ${failed}) as unpriced,
        count(*) filter (where cache_status = 'HIT') as hits,
        percentile_disc(0.5) within group (order by duration_ms) as p50,
        percentile_disc(0.9) within group (order by duration_ms) as p90,
        percentile_disc(0.99) within group (order by duration_ms) as p99
      from request_log where ${where}`.execute(db);
    calls += totals.requests;
    const { p50, p90, p99, cost, saved, kept_cost: keptCost, ...exact } = plain[0] ?? {};
    same(
      {
        requests: totals.requests,
        failed: totals.failed,
        input: totals.inputTokens,
        output: totals.outputTokens,
        cached: totals.cachedTokens,
        written: totals.cacheWriteTokens,
        duration: totals.durationUs,
        unpriced: totals.unpriced,
        hits: totals.hits,
      },
      exact,
    );
    same(
      [totals.cost, totals.savedCost, totals.promptCacheSaved].map((sum) => sum.toFixed()),
      [cost, saved, keptCost].map((sum) => new Big(sum ?? 0).toFixed()),
    );
    for (const [share, quantile] of [
      [0.5, p50],
      [0.9, p90],
      [0.99, p99],
    ] as const) {
      const off = Math.abs(totals.latency.quantile(share) - (quantile ?? 0));
      same(off <= 0.02 * Math.max(quantile ?? 0, 0.1), true);
    }

    const { rows: byPoint } = await sql<{ point: number; requests: number }>`
      select (${recordedMs} / ${wanted.stepMs}::bigint) * ${wanted.stepMs}::bigint as point, count(*) as requests
      from request_log where ${where} group by 1`.execute(db);
    const found = [...points].map(([point, { requests }]) => ({ point, requests }));
    const inOrder = (rows: typeof byPoint): typeof byPoint => rows.toSorted((a, b) => a.point - b.point);
    same(inOrder(found), inOrder(byPoint));

    const users = await countValues(db, { ...wanted, metadataKey: '_user' });
    const { rows: plainUsers } = await sql<{ values: number; requests: number }>`
      select count(distinct metadata ->> '_user') as values, count(metadata ->> '_user') as requests
      from request_log where ${where}`.execute(db);
    same({ values: users.values, requests: users.requests }, plainUsers[0]);

    const statuses = await countByPoint(db, wanted, 'status');
    same(
      statuses.reduce((sum, { requests }) => sum + requests, 0),
      exact['failed'],
    );

    const retried = await countByPoint(db, wanted, 'retries');
    const fallen = await countByPoint(db, wanted, 'fallback');
    const { rows: rescued } = await sql<{ retried: number; fallen: number }>`
      select count(*) filter (where retries > 0) as retried,
        count(*) filter (where fallbacks > 0) as fallen
      from request_log where not ${failed} and ${where}`.execute(db);
    const sumOf = (counts: typeof retried): number => counts.reduce((sum, { requests }) => sum + requests, 0);
    same({ retried: sumOf(retried), fallen: sumOf(fallen) }, rescued[0]);

    const { stepMs: _step, ...whole } = wanted;
    const grouping = pick([
      ...(['users', 'session', 'agent', 'ai-models', 'provider', 'status_code', 'api_key', 'config'] as const).map(
        (name) => groupings[name],
      ),
      { member: 'metadata_value', column: 'value', metadataKey: 'team' },
    ]);
    const groups = await readGroups(db, whole, grouping, {
      columns: ['requests', 'last_seen', 'error_count', 'refused_count', 'cost', 'p95_latency'],
    });
    const byKey = 'metadataKey' in grouping ? grouping.metadataKey : undefined;
    const column = plainColumns[byKey ?? ''] ?? sql`${sql.ref(grouping.column)}`;
    const { rows: plainGroups } = await sql<PlainGroup>`
      select ${column} as value, count(*) as requests, max(${recordedMs}) as last_seen,
        count(*) filter (where ${failed}) as errors, count(*) filter (where ${failed} and attempts = 0) as refused, coalesce(sum(cost), 0)::float8 as cost,
        percentile_disc(0.95) within group (order by duration_ms) as p95
      from request_log where ${where}
      ${byKey === undefined ? sql`` : sql`and ${column} is not null`} group by 1`.execute(db);
    const sort = <Row>(rows: Row[]): Row[] => rows.toSorted((a, b) => (JSON.stringify(a) < JSON.stringify(b) ? -1 : 1));
    same(
      sort(
        groups.data.map((group) => ({
          value: group[grouping.member],
          requests: group['requests'],
          last_seen: Date.parse(String(group['last_seen'])),
          errors: group['error_count'],
          refused: group['refused_count'],
          cost: group['cost'],
        })),
      ),
      sort(plainGroups.map(({ p95: _p95, ...exact }) => exact)),
    );
    for (const group of groups.data) {
      const { p95 = 0 } = plainGroups.find(({ value }) => value === group[grouping.member]) ?? {};
      same(Math.abs(Number(group['p95_latency']) - p95) <= 0.02 * Math.max(p95, 0.1), true);
    }
    same(groups.total, plainGroups.length);
  }
  // The rounds have seen every kind of bucket, and calls at all.
  expect([...used].toSorted()).toEqual(['day', 'hour', 'log', 'minute', 'ten_minutes']);
  expect(calls).toBeGreaterThan(5_000);
});

test('feedback is the same whether the log is read or each of its traces is looked up', async () => {
  const { db } = database;
  const given = { from: Date.now() - hourMs, to: Date.now() + hourMs };
  for (const filters of [{}, ...cases.map(([, make]) => make().filter)]) {
    const [one, other] = await Promise.all(
      (['log', 'traces'] as const).map(async (way) => {
        const wanted = { workspaceId: 'ws_1', range: given, filters, kept };
        const ofCalls = { ...wanted, range: { from: now - 100 * hourMs, to: now + 1 } };
        return {
          points: await readFeedbackPoints(db, { ...wanted, stepMs: hourMs }, way),
          scores: await readFeedbackScores(db, wanted, way),
          models: await readFeedbackModels(db, wanted, way),
          groups: await readGroupFeedback(db, ofCalls, 'team', ['search', 'ads'], way),
        };
      }),
    );
    expect(other).toEqual(one);
  }
  const whole = { workspaceId: 'ws_1', range: given, filters: {}, kept };
  const { rows } = await sql<{ model: string | null; count: number; weighted: number }>`
    select model, count(*) as count, (sum(value * weight) / sum(weight))::float8 as weighted
    from feedback join (select distinct trace_id, model from request_log where workspace_id = 'ws_1') as call using (trace_id)
    where workspace_id = 'ws_1' group by model order by 2 desc, 1`.execute(db);
  expect(rows.length).toBeGreaterThan(2);
  expect(await readFeedbackModels(db, whole, 'traces')).toEqual(rows);
});
