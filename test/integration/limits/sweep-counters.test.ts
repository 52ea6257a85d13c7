import { sql } from 'kysely';
import { expect, test } from 'vitest';
import { one, wholeAmount } from '#libs/kernel/amount.ts';
import type { LeaseRequest } from '#libs/limits/counter.ts';
import {
  counterId,
  createCounterStore,
  resetCounter,
  sweepCounters,
  type CounterRenewal,
} from '#libs/limits/counter-store.ts';
import { useTestDatabase } from '#test/postgres.ts';

const database = useTestDatabase();

const renewalOf = (kind: 'budget' | 'rate', number: number, valueKey = '*'): CounterRenewal => {
  const limitId = `policy_${kind}`;
  const name = { id: counterId(limitId, valueKey), workspaceId: 'ws_1', limitId, valueKey, kind };
  const terms = { max: wholeAmount(10), reset: { every: kind === 'rate' ? 'rps' : 'week' } as const, alertAt: null };
  const report = { periodStartMs: null, reported: 0n, unconfirmed: 0n, unpriced: 0, known: null, hold: 0n };
  const request: LeaseRequest = {
    holder: 'holder_1',
    number,
    ...report,
    need: one,
    least: one,
    ahead: 0n,
    unit: one,
  };
  return { name, terms, request };
};

test('counters whose last period ended long ago are deleted, and are made again when calls come', async () => {
  const { db } = database;
  const store = createCounterStore({ db, countersPerLimitMax: 1 });
  const renew = (number: number) => store.renew([renewalOf('budget', number), renewalOf('rate', number)]);
  const granted = { grant: { amount: one } };
  expect(await renew(1)).toMatchObject([granted, granted]);
  expect(await sweepCounters(db)).toBe(0);
  const age = (days: number) =>
    sql`update limit_counter set period_end = clock_timestamp() - make_interval(days => ${days})`.execute(db);
  await age(2);
  expect(await sweepCounters(db)).toBe(1);
  expect(await renew(2)).toMatchObject([granted, 'stale']);
  expect(await renew(3)).toMatchObject([granted, granted]);
  await age(31);
  expect(await sweepCounters(db)).toBe(2);
});

test('a limit never has more counters than it may, and those that it has go on', async () => {
  const { db } = database;
  const values = (from: number, count: number): CounterRenewal[] =>
    Array.from({ length: count }, (_value, index) => renewalOf('budget', 1, `team ${from + index}`));
  const store = createCounterStore({ db, countersPerLimitMax: 3 });
  const first = await store.renew(values(0, 5));
  expect(first.filter((renewed) => renewed === 'too_many')).toHaveLength(2);
  expect(await store.renew(values(10, 2))).toEqual(['too_many', 'too_many']);
  const other = createCounterStore({ db, countersPerLimitMax: 3 });
  const again = await other.renew(values(0, 5).map((each) => ({ ...each, request: { ...each.request, number: 2 } })));
  expect(again.map((renewed) => renewed === 'too_many')).toEqual(first.map((renewed) => renewed === 'too_many'));
  expect(await renewedRows()).toBe(3);
});

const renewedRows = async (): Promise<number> => {
  const { rows } = await sql<{
    count: number;
  }>`select count(*)::int from limit_counter where limit_id = 'policy_budget'`.execute(database.db);
  return rows[0]?.count ?? 0;
};

test('a counter that was set to 0 counts only what is new of a process that hung meanwhile', async () => {
  const { db } = database;
  const store = createCounterStore({ db, countersPerLimitMax: 10 });
  const { name, terms, request } = renewalOf('budget', 1, 'hung');
  const [granted] = await store.renew([{ name, terms, request }]);
  if (typeof granted !== 'object') throw new Error('there is no lease');
  const report = { ...request, periodStartMs: granted.grant.period.startMs, need: 0n, least: 0n };
  const reports = async (holder: string, number: number, reported: number) => {
    const hold = holder === 'holder_1' ? one : 0n;
    await store.renew([{ name, terms, request: { ...report, holder, number, reported: wholeAmount(reported), hold } }]);
  };
  const used = async () =>
    await db.selectFrom('limit_counter').select(['used', 'assumed']).where('id', '=', name.id).executeTakeFirst();
  await reports('holder_1', 2, 4);
  await sql`update limit_counter set leases = jsonb_set(leases, '{holder_1,expiresAtMs}', to_jsonb(
    extract(epoch from clock_timestamp()) * 1000 - 1)) where id = ${name.id}`.execute(db);
  await reports('holder_2', 1, 0);
  expect(await used()).toEqual({ used: '5', assumed: '1' });
  expect(await resetCounter(db, { limitId: name.limitId, name: name.id })).toBe('hung');
  await reports('holder_1', 3, 6);
  expect(await used()).toEqual({ used: '2', assumed: '0' });
});
