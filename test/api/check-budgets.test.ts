import { sql } from 'kysely';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { checkPolicies, describePolicies } from '#apps/cli/checks/policies.ts';
import { createTestLogger } from '#libs/http/http-test-kit.ts';
import { eventually } from '#test/eventually.ts';
import { startPlatform, type TestPlatform } from '#test/platform.ts';

let platform: TestPlatform;
beforeAll(async () => {
  platform = await startPlatform({ worker: false });
});
afterAll(() => platform.stop());

async function post(
  path: string,
  body: object,
  headers: Record<string, string> = {},
): Promise<Record<string, unknown>> {
  const response = await fetch(platform.baseUrl + path, {
    method: 'POST',
    headers: { authorization: `Bearer ${platform.adminKey}`, 'content-type': 'application/json', ...headers },
    body: JSON.stringify(body),
  });
  if (!response.ok) throw new Error(`${path}: ${response.status} ${await response.text()}`);
  return (await response.json()) as Record<string, unknown>;
}

const check = (repair = false) =>
  checkPolicies({ connectionString: platform.database.connectionString, repair }, createTestLogger().logger);

const callAs = (team: string) =>
  post(
    '/chat/completions',
    { model: '@simulator/sim-small', max_tokens: 20, messages: [{ role: 'user', content: 'x' }] },
    { 'x-gateway-metadata': JSON.stringify({ team }) },
  );

test('budgets equal the log, a repair raises those that lack calls, and takes nothing back', async () => {
  const key = await post('/api-keys', { name: 'limited', usage_limits: { credit_limit: 1_000_000, type: 'tokens' } });
  await post('/policies/usage-limits', {
    name: 'tokens of a team',
    type: 'tokens',
    credit_limit: 1_000_000,
    conditions: [{ key: 'metadata.team', value: '*' }],
    group_by: [{ key: 'metadata.team' }],
  });
  await callAs('red');
  await callAs('red');
  await callAs('blue');
  const equal = await eventually(
    () => check(),
    (checks) =>
      checks.length === 2 &&
      checks.every(({ counted, logged, leased }) => counted.eq(logged) && counted.gt(0) && leased.eq(0)),
  );
  expect(equal.map(({ valueKey }) => valueKey).toSorted()).toEqual(['metadata.team=blue', 'metadata.team=red']);
  expect(describePolicies(equal)).toEqual(['checked 2 counters of budgets: all equal to the request log']);
  expect(key).toHaveProperty('id');

  const ofRed = async (change: ReturnType<typeof sql>) =>
    await sql`update limit_counter set ${change} where value_key = 'metadata.team=red'`.execute(platform.database.db);
  const red = async (repair = false) =>
    (await check(repair)).find(({ valueKey }) => valueKey === 'metadata.team=red') ?? equal[0]!;
  const { counted } = await red();

  // A process was killed with 27 tokens under way, and 30 tokens were reserved for answers that were lost.
  await ofRed(sql`used = used + 57, assumed = 27, unconfirmed = 30`);
  const kept = counted.plus(57);
  for (const repair of [false, true, true]) {
    expect(describePolicies(await check(repair))).toEqual([
      expect.stringMatching(
        /metadata\.team=red: counted \d+ tokens, logged \d+ \(27 of it held by killed processes; 30 of it for calls whose answers were lost\)$/,
      ),
      'checked 2 counters of budgets: 1 differ, 0 without explanation',
      expect.stringContaining('reset the counter'),
    ]);
    expect((await red()).counted.toFixed()).toBe(kept.toFixed());
  }
  // Its calls may be in the log as well as in what it held: any sum between the two is explained.
  await ofRed(sql`used = used - 20`);
  expect(describePolicies(await check(true)).at(-2)).toBe(
    'checked 2 counters of budgets: 1 differ, 0 without explanation',
  );
  expect((await red()).counted.toFixed()).toBe(kept.minus(20).toFixed());

  // More than the log explains may still have been charged.
  await ofRed(sql`used = used + 500`);
  expect(describePolicies(await check(true)).at(-2)).toBe(
    'checked 2 counters of budgets: 1 differ, 1 without explanation',
  );
  expect((await red()).counted.toFixed()).toBe(kept.plus(480).toFixed());

  // A counter of an older backup lacks calls that the log has.
  await ofRed(sql`used = 3, assumed = 0, unconfirmed = 2`);
  expect(describePolicies(await check(true)).at(-2)).toBe(
    'checked 2 counters of budgets: 1 differ, 0 without explanation, 1 raised to the log',
  );
  expect((await red()).counted.toFixed()).toBe(counted.plus(2).toFixed());
  await callAs('red');
  await eventually(red, (one) => one.counted.eq(one.logged.plus(2)) && one.leased.eq(0) && one.counted.gt(counted));
});
