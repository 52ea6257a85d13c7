import { sql } from 'kysely';
import { beforeEach, describe, expect, onTestFinished, test } from 'vitest';
import type { Target } from '#libs/calls/call.ts';
import type { Permit } from '#libs/calls/protect/traffic/lanes.ts';
import { createSharedLimits } from '#libs/calls/protect/traffic/shared-limits.ts';
import { createTraffic } from '#libs/calls/protect/traffic/traffic.ts';
import { createLogger } from '#libs/kernel/logging/logger.ts';
import { sweepCallLimits } from '#libs/limits/call-limit-store.ts';
import { useTestDatabase } from '#test/postgres.ts';

const database = useTestDatabase();
const logger = createLogger({ name: 'test', level: 'silent' });
const target = (credentialId = 'vk_1'): Target => ({
  provider: 'openai',
  baseUrl: new URL('https://api.openai.com/v1'),
  apiKey: null,
  settings: {},
  secrets: {},
  secretOrigin: null,
  label: 'my-openai',
  credentialId,
  workspaceId: 'ws_1',
});

/** One process, which renews its shares only when the test says so, and whose limits do not grow. Its clock can be far from the database's. */
function startProcess(aheadMs = 0) {
  let now = Date.now() + aheadMs;
  const clock = { now: () => now };
  const traffic = createTraffic({ clock, random: () => 0, hasCapacity: () => false });
  const limits = createSharedLimits({ db: database.db, lanes: traffic.lanes, clock, logger });
  const leaving = new AbortController();
  onTestFinished(() => leaving.abort());
  const permits: Permit[] = [];
  const call = (isBackground: boolean, model = 'm', credentialId?: string): Promise<void> =>
    Promise.resolve(traffic.acquire({ model, isBackground, signal: leaving.signal }, target(credentialId))).then(
      (permit) => void permits.push(permit),
    );
  return {
    limits,
    sync: () => limits.wake(),
    /** Begins calls, and lets some of them wait. */
    begin: (count: number, model?: string) => {
      for (let made = 0; made < count; made += 1) call(true, model).catch(() => {});
    },
    call,
    inFlight: () => permits.length,
    end: (count: number, status = 200, headers: Record<string, string> = {}) => {
      for (const permit of permits.splice(0, count)) permit.release({ status, headers });
    },
    pass: (ms: number) => {
      now += ms;
    },
  };
}

const learned = async (): Promise<number | undefined> => {
  const row = await database.db.selectFrom('call_limit').select('learned').executeTakeFirst();
  return row?.learned;
};

beforeEach(() => sql`truncate call_limit`.execute(database.db));

test('two processes share the calls of a credential and model, and a third one starts from what they have learned', async () => {
  const [one, two] = [startProcess(), startProcess(-3_600_000)];
  one.begin(100);
  await expect.poll(one.inFlight).toBe(32);
  two.begin(100);
  await two.sync();
  await expect.poll(two.inFlight).toBe(1);
  await one.sync();
  one.end(16);
  await one.sync();
  await one.sync();
  await two.sync();
  await expect.poll(() => [one.inFlight(), two.inFlight()]).toEqual([16, 16]);
  // The provider rejects the next call of one process.
  one.end(16);
  await expect.poll(one.inFlight).toBe(16);
  one.end(1, 429);
  await one.sync();
  await two.sync();
  expect(await learned()).toBe(31);
  const sum = (): number => one.inFlight() + two.inFlight();
  await expect.poll(sum).toBe(31);
  await one.limits.stop();
  await two.limits.stop();
  const three = startProcess();
  three.begin(100);
  await expect.poll(three.inFlight).toBe(31);
});

test('live calls of one process leave less to the lines of another, without a row or a wait for live calls alone', async () => {
  const [api, worker] = [startProcess(), startProcess()];
  for (let made = 0; made < 20; made += 1) await api.call(false);
  await api.sync();
  expect(await learned()).toBeUndefined();
  expect(api.inFlight()).toBe(20);
  worker.begin(1);
  worker.begin(1);
  await worker.sync();
  await api.sync();
  await worker.sync();
  worker.begin(100);
  await worker.sync();
  expect(worker.inFlight()).toBeLessThanOrEqual(32 - 20);
  expect(worker.inFlight()).toBeGreaterThan(5);
});

test('while the database is unavailable a process keeps its share, and renews it when the database is back', async () => {
  const one = startProcess();
  one.begin(100);
  await expect.poll(one.inFlight).toBe(32);
  await sql`alter table call_limit rename to hidden`.execute(database.db);
  one.end(10);
  await one.sync();
  expect(one.inFlight()).toBe(32);
  expect(one.limits.error()).toBeDefined();
  await sql`alter table hidden rename to call_limit`.execute(database.db);
  await one.sync();
  expect(one.limits.error()).toBeUndefined();
  // Also if a crash of Postgres has emptied the table.
  await sql`update call_limit set learned = 300`.execute(database.db);
  await one.sync();
  await sql`truncate call_limit`.execute(database.db);
  await one.sync();
  await one.sync();
  expect(await learned()).toBe(300);
});

describe('a wait that a provider asks for', () => {
  const refusal = { code: 'provider_rate_limited' };

  test('is obeyed by all processes, also for a model that a process has not called yet', async () => {
    const [one, two, three] = [startProcess(), startProcess(-3_600_000), startProcess()];
    await one.call(false);
    await two.call(false);
    one.end(1, 429, { 'retry-after': '60' });
    await one.sync();
    await two.sync();
    await three.sync();
    await expect(two.call(false)).rejects.toMatchObject(refusal);
    await expect(three.call(false)).rejects.toMatchObject(refusal);
    await three.call(false, 'other');
    await three.call(false, 'm', 'vk_2');
    two.pass(59_000);
    await expect(two.call(false)).rejects.toMatchObject(refusal);
    two.pass(1_001);
    await two.call(false);
  });

  test('ends in all processes when a probe succeeds', async () => {
    const [one, two] = [startProcess(), startProcess()];
    await one.call(false);
    one.end(1, 429, { 'retry-after': '86400' });
    await one.sync();
    await two.sync();
    await expect(two.call(false)).rejects.toMatchObject(refusal);
    one.pass(300_000);
    await one.call(false);
    one.end(1);
    await one.sync();
    await two.sync();
    await two.call(false);
    await one.call(false);
  });

  test('is shared when the database is back, and does not hide the waits of other workspaces', async () => {
    const [one, two] = [startProcess(), startProcess()];
    await one.call(false);
    await sql`alter table call_limit rename to hidden`.execute(database.db);
    one.end(1, 429, { 'retry-after': '60' });
    await one.sync();
    await expect(one.call(false)).rejects.toMatchObject(refusal);
    await sql`alter table hidden rename to call_limit`.execute(database.db);
    await sql`insert into call_limit
      (id, workspace_id, credential_id, model, learned, is_answered, shares, updated_at, limited_until)
      select w || ' ' || n, 'other' || w, 'vk', 'm' || n, 1, false, '{}', now(), now() + interval '1 day'
      from generate_series(1, 5) as w, generate_series(1, 1000) as n`.execute(database.db);
    await one.sync();
    await one.sync();
    await two.sync();
    await expect(one.call(false)).rejects.toMatchObject(refusal);
    await expect(two.call(false)).rejects.toMatchObject(refusal);
  });
});

test('a workspace has at most a thousand limits, of which the oldest are deleted; all are swept after a month', async () => {
  await sql`insert into call_limit (id, workspace_id, credential_id, model, learned, is_answered, shares, updated_at)
    select n::text, 'ws_1', 'vk_1', 'm' || n, 1, false, '{}', now() - interval '1 day' - n * interval '1 s'
    from generate_series(1, 1000) as n`.execute(database.db);
  await sql`update call_limit set workspace_id = 'ws_2', updated_at = now() - interval '31 days' where id = '1'`.execute(
    database.db,
  );
  const one = startProcess();
  for (const model of ['new 1', 'new 2']) one.begin(2, model);
  await one.sync();
  const { rows } = await sql<{ id: string }>`select id from call_limit where id in ('1', '2', '1000')`.execute(
    database.db,
  );
  expect(rows.map((row) => row.id).toSorted()).toEqual(['1', '2']);
  expect(await sweepCallLimits(database.db)).toBe(1);
});
