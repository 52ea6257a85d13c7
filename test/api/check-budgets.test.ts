import { sql } from 'kysely';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { eventually } from '#test/eventually.ts';
import { startPlatform, type TestPlatform } from '#test/platform.ts';
import { runCheck } from '#test/run-check.ts';

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

const check = (repair = false) => runCheck(platform.database, 'budgets', { repair });

const callAs = (team: string) =>
  post(
    '/chat/completions',
    { model: '@simulator/sim-small', max_tokens: 20, messages: [{ role: 'user', content: 'x' }] },
    { 'x-gateway-metadata': JSON.stringify({ team }) },
  );

type Counter = { used: number; unconfirmed: number; leases: Record<string, { amount: string }> };

async function readCounter(valueKey: string): Promise<Counter> {
  const { rows } = await sql<Counter>`
    select used::float8 as used, unconfirmed::float8 as unconfirmed, leases
    from limit_counter where value_key = ${valueKey}`.execute(platform.database.db);
  return rows[0] ?? { used: 0, unconfirmed: 0, leases: {} };
}

const isSettled = ({ leases }: Counter): boolean => Object.values(leases).every(({ amount }) => Number(amount) === 0);

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
  const team = (name: string) => readCounter(`metadata.team=${name}`);
  await eventually(
    async () => [await team('red'), await team('blue'), await check()] as const,
    ([red, blue, { counts, findings }]) =>
      red.used > 0 &&
      blue.used > 0 &&
      isSettled(red) &&
      isSettled(blue) &&
      counts['counters'] === 2 &&
      findings.length === 0,
  );
  expect(key).toHaveProperty('id');

  const ofRed = async (change: ReturnType<typeof sql>) =>
    await sql`update limit_counter set ${change} where value_key = 'metadata.team=red'`.execute(platform.database.db);
  const { used } = await team('red');

  // A process was killed with 27 tokens under way, and 30 tokens were reserved for answers that were lost.
  await ofRed(sql`used = used + 57, assumed = 27, unconfirmed = 30`);
  for (const repair of [false, true, true]) {
    expect(await check(repair)).toMatchObject({
      ok: true,
      counts: { counters: 2, different_counters: 1 },
      findings: [
        {
          state: 'note',
          subject: expect.stringContaining('metadata.team=red'),
          message: expect.stringMatching(
            /^counted \d+ tokens, logged \d+; 27 of it held by killed processes; 30 of it for calls whose answers were lost; .+reset it/,
          ),
        },
      ],
    });
    expect((await team('red')).used).toBe(used + 57);
  }
  // Its calls may be in the log as well as in what it held: any sum between the two is explained.
  await ofRed(sql`used = used - 20`);
  expect(await check(true)).toMatchObject({ ok: true, findings: [{ state: 'note' }] });
  expect((await team('red')).used).toBe(used + 37);

  // More than the log explains may still have been charged.
  await ofRed(sql`used = used + 500`);
  expect(await check(true)).toMatchObject({ ok: false, findings: [{ state: 'problem' }] });
  expect((await team('red')).used).toBe(used + 537);

  // A counter of an older backup lacks calls that the log has.
  await ofRed(sql`used = 3, assumed = 0, unconfirmed = 2`);
  expect(await check()).toMatchObject({ ok: false, findings: [{ state: 'problem' }] });
  expect(await check(true)).toMatchObject({ ok: true, findings: [{ state: 'repaired' }] });
  expect((await team('red')).used).toBe(used + 2);
  await callAs('red');
  const grown = await eventually(
    () => team('red'),
    (counter) => counter.used > used + 2 && isSettled(counter),
  );
  expect(grown.unconfirmed).toBe(2);
  await eventually(check, ({ ok, findings }) => ok && findings.length === 1);
});
