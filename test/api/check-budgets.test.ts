import { sql } from 'kysely';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { checkPolicies, describePolicies } from '#apps/cli/policies.ts';
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

test('budgets equal the log, and what a killed process left behind is found and repaired', async () => {
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

  await sql`update limit_counter set used = used + 500, assumed = 500 where value_key = 'metadata.team=red'`.execute(
    platform.database.db,
  );
  expect(describePolicies(await check())).toEqual([
    expect.stringMatching(
      /metadata\.team=red: counted \d+ tokens, logged \d+ \(500 of it assumed of killed processes\)$/,
    ),
    'checked 2 counters of budgets: 1 differ',
  ]);
  expect(describePolicies(await check(true)).at(-1)).toBe(
    'checked 2 counters of budgets: 1 differ, 1 of them repaired',
  );
  const repaired = await check();
  expect(repaired.every(({ counted, logged, assumed }) => counted.eq(logged) && assumed.eq(0))).toBe(true);
  await callAs('red');
  await eventually(
    () => check(),
    (checks) => checks.every(({ counted, logged, leased }) => counted.eq(logged) && leased.eq(0)),
  );
});
