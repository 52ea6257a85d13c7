import { sql } from 'kysely';
import { expect, test } from 'vitest';
import { createEventLog } from '#libs/event-log/event-log.ts';
import { createTestLogger } from '#libs/http/http-test-kit.ts';
import { newId } from '#libs/kernel/ids.ts';
import { repairCounters } from '#libs/policies/repair-counters.ts';
import { resourceKinds } from '#libs/resources/resource-kinds.ts';
import { resourceModel } from '#libs/records/resource-model.ts';
import { useTestDatabase } from '#test/postgres.ts';

const database = useTestDatabase();
const model = resourceModel(resourceKinds);

/** A counter as a release without the constraint could store it. */
const insert = (id: string, limitId: string, values: { used: number; assumed: number; lease: string }) =>
  sql`
  insert into limit_counter (id, workspace_id, limit_id, value_key, kind, max, period_start, used, assumed, unpriced,
    is_alerted, leases, updated_at)
  values (${id}, 'ws_1', ${limitId}, '*', 'budget', 2000, to_timestamp(0), ${values.used}, ${values.assumed}, 0, false,
    jsonb_build_object('holder_1', jsonb_build_object('amount', ${values.lease}::text)), to_timestamp(0))`.execute(
    database.db,
  );

test('the first start repairs counters that are below 0, and the table takes no others', async () => {
  const { db } = database;
  const eventLog = createEventLog(db);
  const { logger } = createTestLogger();
  const policyId = newId('policy_');
  const metadata = { actor: { type: 'system' as const, id: 'test' } };
  await eventLog.transact({ workspaceId: 'ws_1', streams: [policyId], metadata }, async (unit) => {
    const data = { name: 'p', type: 'tokens', credit_limit: '2000', conditions: [], group_by: [] };
    await unit.append(model, policyId, [{ type: 'usage_limit_policy.created', data }]);
  });
  await sql`alter table limit_counter drop constraint limit_counter_not_negative`.execute(db);
  await insert('credit', policyId, { used: -999_972_974, assumed: -999_999_974, lease: '-999999974' });
  await insert('orphan', 'policy_gone', { used: -5, assumed: 0, lease: '3' });
  await insert('good', policyId, { used: 7, assumed: 2, lease: '1' });
  await sql`alter table limit_counter add constraint limit_counter_not_negative check (used >= 0) not valid`.execute(
    db,
  );

  expect(
    await Promise.all([repairCounters({ db, eventLog, logger }), repairCounters({ db, eventLog, logger })]),
  ).toContain(2);
  const { rows } = await sql<object>`
    select id, used::int, assumed::int, leases -> 'holder_1' ->> 'amount' as lease from limit_counter order by id`.execute(
    db,
  );
  expect(rows).toEqual([
    { id: 'credit', used: 27_000, assumed: 0, lease: '0' },
    { id: 'good', used: 7, assumed: 2, lease: '1' },
    { id: 'orphan', used: 0, assumed: 0, lease: '3' },
  ]);
  const { rows: events } = await sql<object>`
    select data from event where type = 'usage_limit_policy.usage_repaired'`.execute(db);
  expect(events).toEqual([
    {
      data: {
        entity_id: 'credit',
        value_key: '*',
        before: { used: '-999972974', assumed: '-999999974' },
        after: { used: '27000', assumed: '0' },
      },
    },
  ]);
  expect(await repairCounters({ db, eventLog, logger })).toBe(0);
  await expect(insert('new', policyId, { used: -1, assumed: 0, lease: '0' })).rejects.toThrow(/not_negative/);
});

test.each([
  ['used', { used: -1, assumed: 0, lease: '0' }],
  ['assumed', { used: 0, assumed: -1, lease: '0' }],
  ['leased', { used: 0, assumed: 0, lease: '-1' }],
])('the table takes no counter with less than 0 %s', async (_what, values) => {
  await sql`alter table limit_counter drop constraint if exists limit_counter_not_negative`.execute(database.db);
  const { up } = await import('../../../migrations/0035_no_negative_use.ts');
  await up(database.db as never);
  await expect(insert(newId('entity_'), 'policy_1', values)).rejects.toThrow(/not_negative/);
});
