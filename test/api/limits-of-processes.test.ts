import { afterAll, beforeAll, expect, onTestFinished, test } from 'vitest';
import { leaseMs } from '#libs/limits/counter.ts';
import { eventually } from '#test/eventually.ts';
import { startPlatform, type TestPlatform } from '#test/platform.ts';
import { startKillableApi } from './api-process.ts';
import { chatLines, createBatch, ended } from './batch-kit.ts';
import { createWorkspace } from './second-workspace.ts';
import { sdks, type Client } from './sdk.ts';

// Budgets and rates hold for all processes together: two API processes of their own and one in this process, with two
// workers.

let platform: TestPlatform;
let others: Awaited<ReturnType<typeof startKillableApi>>[] = [];
beforeAll(async () => {
  platform = await startPlatform({
    worker: false,
    movableClock: true,
    simulator: { latency: { type: 'fixed', ms: 20 } },
  });
  others = await Promise.all([0, 1].map(() => startKillableApi(platform)));
});
afterAll(async () => {
  await Promise.all(others.map(({ kill }) => kill()));
  await platform?.stop();
});

async function post(
  baseUrl: string,
  key: string,
  path: string,
  body: object,
): Promise<{ status: number; body: Record<string, unknown> }> {
  const response = await fetch(`${baseUrl}${path}`, {
    method: 'POST',
    headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
    body: JSON.stringify(body),
  });
  return { status: response.status, body: (await response.json()) as Record<string, unknown> };
}

const call = { model: '@sim/sim-small', max_tokens: 10, messages: [{ role: 'user', content: 'Hi' }] };

/** A workspace with a virtual key for the simulator; its key. */
async function workspace(): Promise<string> {
  const key = await createWorkspace(platform);
  const own = { provider: 'simulator', key: 'k', custom_host: platform.simulatorUrl };
  await post(platform.baseUrl, key, '/virtual-keys', { name: 'Simulator', slug: 'sim', ...own });
  return key;
}

/** All processes know what was changed. */
async function known(key: string): Promise<void> {
  for (const { baseUrl } of others) {
    await eventually(
      () => post(baseUrl, key, '/chat/completions', { ...call, model: '@sim/' }),
      ({ status }) => status !== 401,
    );
  }
}

/** Many calls at once through all API processes; how many were admitted. */
async function callAll(key: string, count: number): Promise<number> {
  const urls = [platform.baseUrl, ...others.map(({ baseUrl }) => baseUrl)];
  const statuses = await Promise.all(
    Array.from({ length: count }, async (_value, index) => {
      const { status } = await post(urls[index % urls.length] ?? '', key, '/chat/completions', call);
      return status;
    }),
  );
  expect(statuses.filter((status) => ![200, 412, 429].includes(status))).toEqual([]);
  return statuses.filter((status) => status === 200).length;
}

function clientOf(key: string): Client {
  const [sdk] = sdks;
  if (!sdk) throw new Error('there is no SDK');
  return new sdk.OpenAI({ apiKey: key, baseURL: platform.baseUrl, maxRetries: 0 });
}

test('a thousand calls at once and a batch through five processes never get more than a rate allows', async () => {
  const key = await workspace();
  const rate = { conditions: [], group_by: [], type: 'requests', unit: 'rpd', value: 100 };
  const { body } = await post(platform.baseUrl, key, '/policies/rate-limits', rate);
  await known(key);
  for (let worker = 0; worker < 2; worker += 1) {
    const { stop } = await platform.startWorker();
    onTestFinished(stop);
  }
  const [sdk] = sdks;
  const client = clientOf(key);
  const input = chatLines(100, { model: '@sim/sim-small', max_tokens: 10 });
  if (!sdk) throw new Error('there is no SDK');
  const batch = await createBatch(sdk, client, input);
  const admitted = await callAll(key, 1_000);
  const { rows } = await eventually(
    () =>
      platform.database.pool.query<{ used: string }>('select used::text from limit_counter where limit_id = $1', [
        body['id'],
      ]),
    (found) => found.rows[0]?.used === '100',
  );
  expect(rows).toHaveLength(1);
  const { request_counts: counts } = await eventually(
    () => client.batches.retrieve(batch.id),
    ({ request_counts: now }) => admitted + (now?.completed ?? 0) === 100,
  );
  expect(admitted + (counts?.completed ?? 0)).toBe(100);
  await client.batches.cancel(batch.id);
  await ended(client, batch);
});

test('a thousand calls at once never use more than a budget, and what they used is counted', async () => {
  const key = await workspace();
  const budget = { conditions: [], group_by: [], type: 'tokens', credit_limit: 4_000 };
  const { body } = await post(platform.baseUrl, key, '/policies/usage-limits', budget);
  await known(key);
  const admitted = await callAll(key, 1_000);
  const { rows } = await eventually(
    () =>
      platform.database.pool.query<{ calls: number; tokens: number }>(
        'select count(*)::int as calls, sum(input_tokens + output_tokens)::int as tokens from request_log where workspace_id = $1 and status = 200',
        [body['workspace_id']],
      ),
    (found) => found.rows[0]?.calls === admitted,
  );
  const tokens = rows[0]?.tokens ?? 0;
  expect(tokens).toBeLessThanOrEqual(4_000);
  // Estimates are larger than what the calls used, so some of the rest was refused, but never most of it.
  expect(tokens).toBeGreaterThan(2_000);
  await eventually(
    () =>
      platform.database.pool.query<{ used: string }>('select used::text from limit_counter where limit_id = $1', [
        body['id'],
      ]),
    (found) => Number(found.rows[0]?.used) === tokens,
  );
});

test('what a killed process had reserved counts as used when its lease has expired, and the rest is free', async () => {
  const key = await workspace();
  const budget = { conditions: [], group_by: [], type: 'tokens', credit_limit: 3_000 };
  const { body } = await post(platform.baseUrl, key, '/policies/usage-limits', budget);
  const doomed = await startKillableApi(platform);
  await eventually(
    () => post(doomed.baseUrl, key, '/chat/completions', { ...call, model: '@sim/' }),
    ({ status }) => status !== 401,
  );
  // It never answers, and reserves 1,000 tokens and its input.
  const hanging = { ...call, model: '@sim/sim-fault-hang', max_tokens: 1_000 };
  const lost = post(doomed.baseUrl, key, '/chat/completions', hanging).catch(() => null);
  const counter = async () =>
    (
      await platform.database.pool.query<{ used: string; assumed: string; leases: object }>(
        'select used::text, assumed::text, leases from limit_counter where limit_id = $1',
        [body['id']],
      )
    ).rows[0];
  await eventually(counter, (row) => JSON.stringify(row?.leases ?? {}).includes('"10'));
  await doomed.kill();
  await lost;
  const large = { ...call, max_tokens: 2_500 };
  expect((await post(platform.baseUrl, key, '/chat/completions', large)).status).toBe(412);
  await platform.passTime(leaseMs);
  const refused = async () => (await post(platform.baseUrl, key, '/chat/completions', large)).status;
  const after = await eventually(
    async () => ((await refused()) === 412 ? await counter() : undefined),
    (row) => row === undefined || Number(row.assumed) > 0,
  );
  expect(Number(after?.assumed)).toBeGreaterThanOrEqual(1_000);
  expect(Number(after?.assumed)).toBeLessThan(1_500);
  // All that was not reserved can be used.
  const rest = { ...call, max_tokens: 1_500 };
  expect((await post(platform.baseUrl, key, '/chat/completions', rest)).status).toBe(200);
});
