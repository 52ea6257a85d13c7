import { sql } from 'kysely';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { checkRollups } from '#libs/analytics/rollups/check-rollups.ts';
import type { CallsWanted } from '#libs/analytics/call-source.ts';
import { groupings, readGroups, readMetadataGroups } from '#libs/analytics/groups.ts';
import { addTotals, countByPoint, countValues, readPoints } from '#libs/analytics/read-totals.ts';
import { readRollupKeys, rollupKeysMax } from '#libs/analytics/rollups/rollup-keys.ts';
import { sweepRollups } from '#libs/analytics/rollups/sweep-rollups.ts';
import { createTestDatabase, type TestDatabase } from '#test/postgres.ts';
import { dayMs, hourMs, logRetentionMs, minuteMs, readKept, rollUpAll, writeCalls } from './log-kit.ts';

// A workspace cannot make more rollups than their limits allow, and what is counted together still counts.

let database: TestDatabase;
beforeEach(async () => {
  database = await createTestDatabase();
  const { db } = database;
  await sql`update rollup_state set tens_until = ${new Date(today)}, hours_until = ${new Date(today)},
    days_until = ${new Date(today)}`.execute(db);
});
afterEach(() => database.drop());

const today = Math.floor(Date.now() / dayMs) * dayMs;
const now = today + 14 * hourMs + 10 * minuteMs;
const yesterday = today - dayMs + 5 * hourMs;

const wantedOf = async (workspaceId: string, options: Partial<CallsWanted> = {}) => ({
  filters: {},
  workspaceId,
  range: { from: today - 3 * dayMs, to: now + 1 },
  kept: await readKept(database.db, workspaceId, now),
  stepMs: hourMs,
  ...options,
});
const requestsOf = async (workspaceId: string, options: Partial<CallsWanted> = {}): Promise<number> =>
  addTotals((await readPoints(database.db, await wantedOf(workspaceId, options))).values()).requests;

/** Calls of a minute that are all different, and some that are not. */
const flood = (workspace_id: string, count: number) =>
  Array.from({ length: count }, (_, index) => ({
    at: yesterday + index,
    workspace_id,
    model: index % 5 === 0 ? 'usual' : `model_${index}`,
    status: index % 7 === 0 ? 500 : 200,
    cost: '0.1',
    metadata: { _user: `user_${index}`, team: index % 4 === 0 ? 'search' : `team_${index}`, [`key_${index}`]: 'x' },
  }));

test('a workspace whose calls all differ gets a bounded number of rows, and its totals stay exact', async () => {
  const { db } = database;
  await writeCalls(db, flood('ws_hostile', 900));
  await writeCalls(db, flood('ws_other', 30));
  await rollUpAll(db, now);
  const { rows } = await sql<{ grain: string; key: string; rows: number; requests: number }>`
    select grain, key, count(*)::int as rows, sum(requests)::int as requests from value_rollup
    where workspace_id = 'ws_hostile' and key in ('model', 'metadata._user', 'metadata.team') group by 1, 2`.execute(
    db,
  );
  expect(rows).toHaveLength(4 * 3);
  for (const { key, rows: count, requests } of rows) {
    expect(requests).toBe(900);
    expect(count).toBe(key === 'metadata._user' ? 900 : 201);
  }
  const { rows: wide } = await sql<{ grain: string; rows: number; requests: number }>`
    select grain, count(*)::int as rows, sum(requests)::int as requests from call_rollup
    where workspace_id = 'ws_hostile' group by 1`.execute(db);
  // What is folded is kept apart by failure only.
  expect(wide.map(({ rows: count, requests }) => [count <= 502, requests])).toEqual(wide.map(() => [true, 900]));
  expect((await checkRollups(db, () => {})).different).toBe(0);

  const { rows: counted } = await sql<{ requests: number; failed: number; cost: string }>`
    select count(*)::int as requests, count(*) filter (where status >= 400)::int as failed, trim_scale(sum(cost))::text as cost
    from request_log where workspace_id = 'ws_hostile'`.execute(db);
  const totals = addTotals((await readPoints(db, await wantedOf('ws_hostile'))).values());
  expect({ ...counted[0] }).toEqual({ requests: totals.requests, failed: totals.failed, cost: totals.cost.toFixed() });
  expect(await requestsOf('ws_hostile', { filters: { ai_model: ['usual'] } })).toBe(180);
  expect(await requestsOf('ws_hostile', { filters: { metadata: { team: ['search'] } } })).toBe(225);
  const failed = await countByPoint(db, await wantedOf('ws_hostile'), 'status');
  expect(failed.reduce((sum, { requests }) => sum + requests, 0)).toBe(totals.failed);
  const teams = await countValues(db, await wantedOf('ws_hostile', { metadataKey: 'team' }));
  expect(teams).toMatchObject({ values: 200, requests: 900 });

  const wanted = await wantedOf('ws_hostile');
  const models = await readGroups(db, wanted, groupings.model, { page_size: 1_000 });
  expect(models.data[0]).toMatchObject({ ai_model: 'usual', requests: 180 });
  expect(models.data.at(-1)).toMatchObject({ ai_model: 'other', is_other: true, requests: 900 - 180 - 199 });
  expect(models.total).toBe(201);
  const byTeam = await readMetadataGroups(db, wanted, 'team', { page_size: 1_000 });
  expect(byTeam.data.at(-1)).toMatchObject({ metadata_value: 'other', is_other: true });
  expect(byTeam.data.reduce((sum, { requests }) => sum + Number(requests), 0)).toBe(900);
  // Nobody else is counted together.
  const others = await readGroups(db, await wantedOf('ws_other'), groupings.model, { page_size: 1_000 });
  expect(others.data.filter((group) => 'is_other' in group)).toEqual([]);
  expect(others.total).toBe(25);
});

test('a workspace has rollups of a few metadata keys, and answers about others come from the log', async () => {
  const { db } = database;
  await writeCalls(db, flood('ws_1', 40));
  await rollUpAll(db, now);
  const keys = await readRollupKeys(db, 'ws_1');
  expect(keys.size).toBe(1 + rollupKeysMax);
  expect(keys.get('team')).toBe(0); // the key of most calls
  const refused = Array.from({ length: 40 }, (_, index) => `key_${index}`).find((key) => !keys.has(key)) ?? '';
  expect(await requestsOf('ws_1', { filters: { metadata: { [refused]: ['x'] } } })).toBe(1);
  const { rows } = await sql`select from value_rollup where key = ${`metadata.${refused}`}`.execute(db);
  expect(rows).toEqual([]);

  // Room is made for it a month after the others were used last; from then on it has rollups.
  await sql`update rollup_key set seen_on = seen_on - 40 where key <> 'team'`.execute(db);
  const retention = { minute: 7 * dayMs, hour: 90 * dayMs, day: 400 * dayMs };
  await sweepRollups(db, { retention, logRetentionMs, nowMs: now });
  await writeCalls(db, [{ at: now - minuteMs, workspace_id: 'ws_1', metadata: { [refused]: 'x' } }]);
  await rollUpAll(db, now);
  expect((await readRollupKeys(db, 'ws_1')).get(refused)).toBe(today + 15 * hourMs);
  await writeCalls(db, [{ at: today + 16 * hourMs, workspace_id: 'ws_1', metadata: { [refused]: 'x' } }]);
  await rollUpAll(db, today + 17 * hourMs);
  const range = { from: today - 3 * dayMs, to: today + 17 * hourMs };
  expect(await requestsOf('ws_1', { filters: { metadata: { [refused]: ['x'] } }, range })).toBe(3);
  expect((await checkRollups(db, () => {})).different).toBe(0);
});
