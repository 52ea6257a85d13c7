import { sql } from 'kysely';
import { beforeEach, expect, test } from 'vitest';
import type { Target } from '#libs/calls/call.ts';
import { createLogger } from '#libs/kernel/logging/logger.ts';
import {
  createSharedLimits,
  listProviderLimits,
  sweepProviderLimits,
} from '#libs/calls/protect/traffic/shared-limits.ts';
import { createTraffic } from '#libs/calls/protect/traffic/traffic.ts';
import { useTestDatabase } from '#test/postgres.ts';

const database = useTestDatabase();
const logger = createLogger({ name: 'test', level: 'silent' });
const target: Target = {
  provider: 'openai',
  baseUrl: new URL('https://api.openai.com/v1'),
  apiKey: null,
  settings: {},
  secrets: {},
  secretOrigin: null,
  label: 'my-openai',
  credentialId: 'vk_1',
  workspaceId: 'ws_1',
};
const allowance = (remaining: number) => ({
  'x-ratelimit-limit-requests': '60',
  'x-ratelimit-remaining-requests': String(remaining),
  'x-ratelimit-reset-requests': '60s',
});

/** One process; its clock may be far from the database's. */
function startProcess(aheadMs: number) {
  let laterMs = 0;
  const clock = { now: () => Date.now() + aheadMs + laterMs };
  const databaseClock = { now: () => Date.now() + laterMs };
  const traffic = createTraffic({ clock, random: () => 0 });
  const shared = createSharedLimits({ db: database.db, reported: traffic.reported, clock, databaseClock, logger });
  return {
    sync: () => shared.sync(),
    pass: (ms: number) => {
      laterMs += ms;
    },
    /** One call that gets this answer. */
    async answered(status: number, headers: Record<string, string>, { model = 'm', workspaceId = 'ws_1' } = {}) {
      const called = { ...target, workspaceId, credentialId: `vk_of_${workspaceId}` };
      const permit = await traffic.acquire({ model, signal: new AbortController().signal }, called);
      permit.release({ status, headers });
    },
  };
}

beforeEach(() => sql`truncate provider_limit`.execute(database.db));

test('what a provider reported to one process is read from any, by the clock of the database', async () => {
  const [one, two] = [startProcess(0), startProcess(-3_600_000)];
  await two.answered(200, allowance(59));
  await two.sync();
  const [row] = await listProviderLimits(database.db, 'ws_1');
  expect(row).toMatchObject({ label: 'my-openai', provider: 'openai', model: 'm', waitsUntil: null });
  expect(row?.limits).toMatchObject([{ of: 'requests', limit: 60, remaining: 59 }]);
  expect(Math.abs((row?.limits[0]?.resetsAtMs ?? 0) - Date.now() - 60_000)).toBeLessThan(30_000);
  one.pass(1_000);
  await one.answered(200, allowance(7));
  await one.sync();
  expect(await listProviderLimits(database.db, 'ws_1')).toMatchObject([{ limits: [{ remaining: 7 }] }]);
  expect(await listProviderLimits(database.db, 'ws_2')).toEqual([]);
});

test('an older answer, which another process writes later, takes nothing back', async () => {
  const [one, two] = [startProcess(0), startProcess(0)];
  await two.answered(429, { ...allowance(50), 'retry-after': '40' });
  one.pass(10_000);
  await one.answered(200, allowance(3));
  await one.sync();
  await two.sync();
  const [row] = await listProviderLimits(database.db, 'ws_1');
  expect(row?.limits).toMatchObject([{ remaining: 3 }]);
  expect(row?.waitsUntil).toBeInstanceOf(Date);
});

test('a 429 that only says how long to wait is there with its wait, and answers that say nothing are not', async () => {
  const one = startProcess(0);
  await one.answered(200, { 'openai-version': '2020-10-01' }, { model: 'quiet' });
  await one.answered(429, {}, { model: 'quiet' });
  await one.answered(429, { 'retry-after': '40' }, { model: 'waits' });
  await one.sync();
  const rows = await listProviderLimits(database.db, 'ws_1');
  expect(rows).toMatchObject([{ model: 'waits', limits: [] }]);
  expect(rows[0]?.waitsUntil).toBeInstanceOf(Date);
});

test('many calls between two writes are one row, and without calls nothing is written', async () => {
  const one = startProcess(0);
  for (let left = 59; left > 0; left -= 1) await one.answered(200, allowance(left));
  await one.sync();
  const written = async () =>
    (await sql<{ version: string }>`select xmin::text as version from provider_limit`.execute(database.db)).rows;
  const [row, ...others] = await written();
  expect(others).toEqual([]);
  await one.sync();
  expect(await written()).toEqual([row]);
});

test('a workspace that invents models keeps the newest 200, and takes no place of another', async () => {
  const one = startProcess(0);
  await one.answered(200, allowance(1), { workspaceId: 'ws_2' });
  for (let round = 0; round < 6; round += 1) {
    for (let n = 0; n < 60; n += 1) await one.answered(200, allowance(1), { model: `made-up-${round}-${n}` });
    await one.sync();
    one.pass(1_000);
  }
  const rows = await listProviderLimits(database.db, 'ws_1');
  expect(rows).toHaveLength(200);
  expect(rows[0]?.model).toMatch(/^made-up-5-/);
  expect(await sql`select 1 from provider_limit where workspace_id = 'ws_1'`.execute(database.db)).toHaveProperty(
    'rows.length',
    200,
  );
  expect(await listProviderLimits(database.db, 'ws_2')).toHaveLength(1);
});

test('a database that is away loses nothing that was reported', async () => {
  const one = startProcess(0);
  await sql`alter table provider_limit rename to hidden`.execute(database.db);
  await one.answered(429, { 'retry-after': '40' });
  await one.sync();
  await sql`alter table hidden rename to provider_limit`.execute(database.db);
  await one.sync();
  expect(await listProviderLimits(database.db, 'ws_1')).toHaveLength(1);
});

test('what is more than a day old is neither shown nor kept', async () => {
  const one = startProcess(0);
  await one.answered(200, allowance(1));
  await one.sync();
  expect(await sweepProviderLimits(database.db)).toBe(0);
  await sql`update provider_limit set reported_at = now() - interval '25 hours'`.execute(database.db);
  expect(await listProviderLimits(database.db, 'ws_1')).toEqual([]);
  expect(await sweepProviderLimits(database.db)).toBe(1);
});
