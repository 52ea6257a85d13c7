import { Big } from 'big.js';
import { createHmac } from 'node:crypto';
import { afterAll, beforeAll, beforeEach, expect, onTestFinished, test } from 'vitest';
import { eventually } from '#test/eventually.ts';
import { startPlatform, type TestPlatform } from '#test/platform.ts';
import { startUpstream, type Upstream } from '#test/upstream.ts';
import { chatLines, createBatch, ended, resultsOf } from './batch-kit.ts';
import { createWorkspace } from './second-workspace.ts';
import { sdks } from './sdk.ts';

let platform: TestPlatform;
/** Takes the alerts. */
let receiver: Upstream;
const alertSecret = Buffer.alloc(32, 7).toString('base64');
/** Of a workspace that has no other limits. */
let key: string;
beforeAll(async () => {
  receiver = await startUpstream();
  const environment = {
    SLUICE_EGRESS_ALLOW: '127.0.0.0/8',
    SLUICE_ALERT_WEBHOOK: `${receiver.url.origin}/alerts`,
    SLUICE_ALERT_WEBHOOK_SECRET: `whsec_${alertSecret}`,
  };
  platform = await startPlatform({ worker: false, environment });
});
afterAll(async () => {
  await platform?.stop();
  await receiver?.stop();
});
beforeEach(async () => {
  key = await createWorkspace(platform);
  await send('POST', '/virtual-keys', {
    name: 'Simulator',
    slug: 'sim',
    provider: 'simulator',
    key: 'k',
    custom_host: platform.simulatorUrl,
  });
});

type Answer = { status: number; headers: Headers; body: Record<string, never> };

async function send(
  method: string,
  path: string,
  body?: object,
  headers: Record<string, string> = {},
): Promise<Answer> {
  const response = await fetch(`${platform.baseUrl}${path}`, {
    method,
    headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json', ...headers },
    ...(body === undefined ? {} : { body: JSON.stringify(body) }),
  });
  return { status: response.status, headers: response.headers, body: (await response.json()) as Answer['body'] };
}

/** A call that uses 10 tokens of output at most. */
const chat = (headers: Record<string, string> = {}) =>
  send(
    'POST',
    '/chat/completions',
    { model: '@sim/sim-small', max_tokens: 10, messages: [{ role: 'user', content: 'Hi' }] },
    headers,
  );

const budget = { conditions: [], group_by: [], type: 'tokens', credit_limit: 1_000 };
const rate = { conditions: [], group_by: [], type: 'requests', unit: 'rpd', value: 2 };
const policy = (fields: object) => send('POST', '/policies/usage-limits', { ...budget, ...fields });
const tags = (metadata: object) => ({ 'x-portkey-metadata': JSON.stringify(metadata) });

test('usage-limit policies are made, listed, changed and archived', async () => {
  const made = await policy({
    name: 'Team',
    credit_limit: 12.5,
    type: 'cost',
    periodic_reset: 'monthly',
    alert_threshold: 80,
    group_by: [{ key: 'metadata.team' }],
    conditions: [{ key: 'provider', value: '*' }],
  });
  expect(made).toMatchObject({
    status: 200,
    body: {
      id: expect.stringMatching(/^policy_/),
      object: 'usage-limit-policy',
      name: 'Team',
      type: 'cost',
      credit_limit: 12.5,
      alert_threshold: 80,
      periodic_reset: 'monthly',
      periodic_reset_days: null,
      status: 'active',
      group_by: [{ key: 'metadata.team' }],
    },
  });
  expect(made.body['next_usage_reset_at']).toMatch(/-01T00:00:00\.000Z$/);
  const path = `/policies/usage-limits/${made.body['id']}`;
  expect((await send('GET', path)).body).toEqual(made.body);
  const changed = await send('PUT', path, { credit_limit: 0.1, alert_threshold: null, periodic_reset: 'weekly' });
  expect(changed.body).toMatchObject({
    credit_limit: 0.1,
    alert_threshold: null,
    periodic_reset: 'weekly',
    name: 'Team',
  });
  const other = await policy({});
  expect((await send('GET', '/policies/usage-limits?type=cost&page_size=1&current_page=0')).body).toMatchObject({
    object: 'list',
    total: 1,
    data: [{ id: made.body['id'] }],
    has_more: false,
  });
  expect((await send('GET', '/policies/usage-limits')).body).toMatchObject({
    total: 2,
    data: [{ id: other.body['id'] }, { id: made.body['id'] }],
  });
  expect((await send('DELETE', path)).status).toBe(200);
  expect((await send('GET', path)).status).toBe(404);
  expect((await send('PUT', path, { name: 'x' })).status).toBe(404);
  expect((await send('GET', `${path}?status=archived`)).body).toMatchObject({
    id: made.body['id'],
    status: 'archived',
  });
  expect((await send('GET', '/policies/usage-limits?status=archived')).body).toMatchObject({
    total: 1,
    data: [{ status: 'archived' }],
  });
});

test('rate-limit policies are made, listed, changed and archived', async () => {
  const made = await send('POST', '/policies/rate-limits', {
    ...rate,
    value: 0,
    conditions: [{ key: 'model', value: 'none' }],
  });
  expect(made).toMatchObject({
    status: 200,
    body: { object: 'rate-limit-policy', name: null, unit: 'rpd', value: 0, status: 'active' },
  });
  const path = `/policies/rate-limits/${made.body['id']}`;
  expect((await send('PUT', path, { unit: 'rph', value: 7, name: 'n' })).body).toMatchObject({
    unit: 'rph',
    value: 7,
    name: 'n',
  });
  expect((await send('GET', '/policies/rate-limits?unit=rph&type=requests')).body).toMatchObject({ total: 1 });
  expect((await send('GET', '/policies/rate-limits?unit=rpm')).body).toMatchObject({ total: 0 });
  expect((await send('DELETE', path)).status).toBe(200);
  expect((await send('GET', path)).status).toBe(404);
});

test.each([
  ['an unknown key', { group_by: [{ key: 'colour' }] }, 'group_by[0].key'],
  ['six values to group by', { group_by: Array.from({ length: 6 }, () => ({ key: 'model' })) }, 'group_by'],
  ['a period in two ways', { periodic_reset: 'weekly', periodic_reset_days: 2 }, 'periodic_reset'],
  ['less than nothing', { credit_limit: -1 }, 'credit_limit'],
  ['an unknown type', { type: 'requests' }, 'type'],
])('a usage-limit policy with %s is refused', async (_name, fields, param) => {
  expect(await policy(fields)).toMatchObject({ status: 400, body: { error: { param } } });
});

test('a policy of another organisation is not found, nor one of another workspace', async () => {
  expect(await policy({ organisation_id: 'other' })).toMatchObject({
    status: 404,
    body: { error: { param: 'organisation_id' } },
  });
  const { body } = await policy({});
  key = await createWorkspace(platform);
  for (const path of ['', '/entities'])
    expect((await send('GET', `/policies/usage-limits/${body['id']}${path}`)).status).toBe(404);
  expect((await send('PUT', `/policies/usage-limits/${body['id']}/entities/x/reset`)).status).toBe(404);
});

test('a budget of tokens admits calls until it is used, counts what they used, and can be reset', async () => {
  const { body } = await policy({ credit_limit: 100, group_by: [{ key: 'metadata.team' }] });
  const path = `/policies/usage-limits/${body['id']}`;
  const statuses: number[] = [];
  for (let call = 0; call < 8; call += 1) statuses.push((await chat(tags({ team: 'red' }))).status);
  const admitted = statuses.indexOf(412);
  expect(admitted).toBeGreaterThan(1);
  expect(statuses.slice(admitted)).toEqual(Array(8 - admitted).fill(412));
  const refused = await chat(tags({ team: 'red' }));
  expect(refused).toMatchObject({
    status: 412,
    body: { error: { code: 'usage_limit_exceeded', message: expect.stringContaining('which allows 100 tokens') } },
  });
  const amounts = /100 tokens: (\d+) are used, (\d+) are left/.exec(JSON.stringify(refused.body)) ?? [];
  expect(Number(amounts[1]) + Number(amounts[2])).toBe(100);
  // Another team has a counter of its own.
  expect((await chat(tags({ team: 'blue' }))).status).toBe(200);
  const used = (await send('GET', '/logs?limit=100')).body;
  expect(used).toBeDefined();
  const entities = await eventually(
    async () =>
      (await send('GET', `${path}/entities?search=red`)).body as unknown as {
        data: { id: string; current_usage: number }[];
        total: number;
      },
    ({ data }) => (data[0]?.current_usage ?? 0) > 50,
  );
  expect(entities).toMatchObject({
    object: 'list',
    total: 1,
    data: [{ object: 'policy-entity', value_key: 'metadata.team=red', unpriced_calls: 0, status: 'active' }],
  });
  expect(entities.data[0]?.current_usage).toBeLessThanOrEqual(100);
  const map = (await send('GET', `${path}?include_usage=true`)).body['value_key_usage_map'];
  expect(map).toMatchObject({ 'metadata.team=red': entities.data[0]?.current_usage });
  expect((await send('PUT', `${path}/entities/${entities.data[0]?.id}/reset`)).body).toMatchObject({
    id: body['id'],
    last_reset_at: expect.any(String),
  });
  await eventually(
    () => chat(tags({ team: 'red' })),
    ({ status }) => status === 200,
  );
  expect((await send('PUT', path, { reset_usage_for_value: 'metadata.team=red' })).status).toBe(200);
  expect(await send('PUT', `${path}/entities/nothing/reset`)).toMatchObject({
    status: 404,
    body: { error: { code: 'policy_entity_not_found' } },
  });
});

test('a budget of money counts cents exactly, and its alert is recorded once', async () => {
  const { body } = await policy({ type: 'cost', credit_limit: 1, alert_threshold: 1, name: 'money' });
  const answers = [];
  for (let call = 0; call < 3; call += 1) answers.push(await chat());
  expect(answers.map(({ status }) => status)).toEqual([200, 200, 200]);
  const logged = await eventually(
    async () => {
      const { rows } = await platform.database.pool.query<{ cost: string }>(
        'select sum(cost)::text as cost from request_log where workspace_id = $1 having count(*) = 3',
        [body['workspace_id']],
      );
      return rows[0]?.cost ?? '0';
    },
    (cost) => Number(cost) > 0,
  );
  const counted = async () =>
    (
      await platform.database.pool.query<{ used: string }>(
        'select used::text as used from limit_counter where limit_id = $1',
        [body['id']],
      )
    ).rows[0]?.used;
  await eventually(counted, (used) => Number(used) === Number(logged));
});

test('an alert is an event of the policy, once', async () => {
  const { body } = await policy({ credit_limit: 10_000, alert_threshold: 1 });
  const alerts = async () =>
    (await send('GET', `/events?stream=${body['id']}&type=usage_limit_policy.alert_reached`)).body[
      'data'
    ] as unknown as { data: object }[];
  await eventually(
    async () => (await chat(), await alerts()),
    (found) => found.length > 0,
  );
  for (let call = 0; call < 5; call += 1) await chat();
  expect(await alerts()).toMatchObject([{ data: { value_key: '*', threshold: '100', limit: '10000' } }]);
});

test('an alert of a key is sent to the webhook with the addresses of the key, signed, and again after an error', async () => {
  const usage = { credit_limit: 10_000, type: 'tokens', alert_threshold: 1 };
  const made = await send('POST', '/api-keys', {
    name: 'watched',
    usage_limits: usage,
    alert_emails: ['ops@example.com'],
  });
  const { id } = made.body;
  const ofKey = () => receiver.requests.filter(({ body }) => body.includes(String(id)));
  receiver.script(({ json }, { body }) => json(body.includes(String(id)) && ofKey().length === 1 ? 503 : 200, {}));
  const spend = { authorization: `Bearer ${made.body['key']}` };
  const alertEvents = async () =>
    (await send('GET', `/events?stream=${String(id)}&type=api_key.alert_reached`)).body['data'] as unknown as object[];
  await eventually(
    async () => (await chat(spend), await alertEvents()),
    (found) => found.length > 0,
  );
  const worker = await platform.startWorker();
  onTestFinished(() => worker.stop());
  const deliveries = await eventually(ofKey, (found) => found.length > 1);
  expect(new Set(deliveries.map(({ headers }) => headers['webhook-id']))).toHaveLength(1);
  const { path, headers, body } = deliveries[0]!;
  const signed = `${headers['webhook-id']}.${headers['webhook-timestamp']}.${body.toString()}`;
  const expected = createHmac('sha256', Buffer.from(alertSecret, 'base64')).update(signed).digest('base64');
  expect(headers['webhook-signature']).toBe(`v1,${expected}`);
  expect([path, JSON.parse(body.toString())]).toMatchObject([
    '/alerts',
    {
      type: 'api_key.alert_reached',
      data: { threshold: '100', limit: '10000', record: { id, name: 'watched', alert_emails: ['ops@example.com'] } },
    },
  ]);
});

test('a rate refuses further calls with 429 and says when there will be more', async () => {
  await send('POST', '/policies/rate-limits', rate);
  expect((await chat()).status).toBe(200);
  expect((await chat()).status).toBe(200);
  const refused = await chat();
  expect(refused).toMatchObject({ status: 429, body: { error: { code: 'rate_limited' } } });
  expect(Number(refused.headers.get('retry-after'))).toBeGreaterThan(0);
});

test('a policy counts the calls alone that meet its conditions', async () => {
  await send('POST', '/policies/rate-limits', {
    ...rate,
    value: 0,
    conditions: [
      { key: 'metadata.env', value: 'test' },
      { key: 'virtual_key', value: 'sim' },
    ],
  });
  expect((await chat()).status).toBe(200);
  expect((await chat(tags({ env: 'live' }))).status).toBe(200);
  expect((await chat(tags({ env: 'test' }))).status).toBe(429);
});

test('the limits of an API key and of a virtual key are enforced too', async () => {
  const made = await send('POST', '/api-keys', {
    name: 'limited',
    rate_limits: [{ type: 'requests', unit: 'rpw', value: 1 }],
  });
  const limited = { authorization: `Bearer ${made.body['key']}` };
  expect([(await chat(limited)).status, (await chat(limited)).status, (await chat()).status]).toEqual([200, 429, 200]);
  await send('PUT', '/virtual-keys/sim', { usage_limits: { credit_limit: 1, type: 'tokens' } });
  expect((await chat()).status).toBe(412);
});

test('a virtual key whose budget is spent says so until it is reset', async () => {
  const made = await send('PUT', '/virtual-keys/sim', { usage_limits: { credit_limit: 1_000, type: 'tokens' } });
  const status = async () => (await send('GET', '/virtual-keys/sim')).body['status'];
  expect((await chat()).status).toBe(200);
  expect(await status()).toBe('active');
  const spend = 'update limit_counter set used = 1000 where limit_id = $1';
  await platform.database.pool.query(spend, [`${made.body['id']}/tokens`]);
  expect(await status()).toBe('exhausted');
  expect((await send('GET', '/virtual-keys')).body['data']).toMatchObject([
    { slug: 'sim', status: 'exhausted' },
    { slug: 'simulator', status: 'active' },
  ]);
  const reset = await send('PUT', '/virtual-keys/sim', { reset_usage: true });
  expect(reset.body).toMatchObject({ status: 'active', usage_reset_at: expect.stringMatching(/Z$/) });
  await eventually(chat, ({ status: answered }) => answered === 200);
});

test('a fallback goes on to a target whose budget is not used up', async () => {
  await send('POST', '/virtual-keys', {
    name: 'Second',
    slug: 'second',
    provider: 'simulator',
    key: 'k',
    custom_host: platform.simulatorUrl,
  });
  await send('PUT', '/virtual-keys/sim', { usage_limits: { credit_limit: 1, type: 'tokens' } });
  const targets = [{ virtual_key: 'sim' }, { virtual_key: 'second' }];
  const config = JSON.stringify({ strategy: { mode: 'fallback' }, targets });
  const call = { model: 'sim-small', max_tokens: 10, messages: [{ role: 'user', content: 'Hi' }] };
  expect((await send('POST', '/chat/completions', call, { 'x-portkey-config': config })).status).toBe(200);
});

test('calls of unknown price are refused under a budget of money', async () => {
  const own = { provider: 'openai', key: 'k', custom_host: platform.simulatorUrl };
  await send('POST', '/virtual-keys', { name: 'Own', slug: 'own', ...own });
  const call = { model: '@own/nobody-knows-its-price', messages: [{ role: 'user', content: 'Hi' }] };
  expect((await send('POST', '/chat/completions', call)).status).toBe(200);
  await policy({ type: 'cost' });
  expect(await send('POST', '/chat/completions', call)).toMatchObject({
    status: 412,
    body: { error: { code: 'price_unknown' } },
  });
});

test('lines of a batch wait for a rate and go on', async () => {
  const [sdk] = sdks;
  if (!sdk) throw new Error('there is no SDK');
  const made = await send('POST', '/api-keys', {
    name: 'slow',
    rate_limits: [{ type: 'requests', unit: 'rps', value: 3 }],
  });
  const client = new sdk.OpenAI({ apiKey: String(made.body['key']), baseURL: platform.baseUrl, maxRetries: 0 });
  const worker = await platform.startWorker();
  onTestFinished(() => worker.stop());
  const batch = await ended(client, await createBatch(sdk, client, chatLines(8, { model: '@sim/sim-small' })));
  expect(batch).toMatchObject({ status: 'completed', request_counts: { completed: 8, failed: 0 } });
});

test('lines of a batch over its budget fail where it asks for that, and else wait until there is more', async () => {
  const [sdk] = sdks;
  if (!sdk) throw new Error('there is no SDK');
  const { body } = await policy({ name: 'small', credit_limit: 1, periodic_reset: 'monthly' });
  const client = new sdk.OpenAI({ apiKey: key, baseURL: platform.baseUrl, maxRetries: 0 });
  const input = chatLines(3, { model: '@sim/sim-small', max_tokens: 10 });
  const first = await platform.startWorker();
  const failing = await createBatch(sdk, client, input, { gateway_options: { on_budget_exceeded: 'fail' } } as never);
  const failed = await ended(client, failing);
  expect(failed).toMatchObject({ status: 'completed', request_counts: { completed: 0, failed: 3 } });
  const named = { code: 'usage_limit_exceeded', message: expect.stringContaining("'small', which allows 1 tokens") };
  expect((await resultsOf(client, failed)).errors.map(({ error }) => error)).toMatchObject([named, named, named]);
  const waiting = await createBatch(sdk, client, input);
  const shown = await eventually(
    async () => (await send('GET', `/batches/${waiting.id}`)).body,
    (found) => JSON.stringify(found).includes('usage_limit_exceeded'),
  );
  expect(shown).toMatchObject({
    status: 'in_progress',
    waits: [{ reason: 'usage_limit_exceeded', message: expect.stringContaining("'small'") }],
  });
  await send('PUT', `/policies/usage-limits/${body['id']}`, { credit_limit: 100_000 });
  await first.stop();
  const second = await platform.startWorker();
  onTestFinished(() => second.stop());
  expect(await ended(client, waiting)).toMatchObject({ request_counts: { completed: 3, failed: 0 } });
});

test('a batch is paused before it costs more than its bound, says so, and resumes with a higher one', async () => {
  const [sdk] = sdks;
  if (!sdk) throw new Error('there is no SDK');
  const client = new sdk.OpenAI({ apiKey: key, baseURL: platform.baseUrl, maxRetries: 0 });
  const worker = await platform.startWorker();
  onTestFinished(() => worker.stop());
  const input = chatLines(20, { model: '@sim/sim-small', max_tokens: 50 });
  const whole = await ended(client, await createBatch(sdk, client, input));
  const { cost_usd: cost } = whole as unknown as { cost_usd: string };
  const half = new Big(cost).div(2).toFixed();
  const { id } = await createBatch(sdk, client, input, { gateway_options: { max_cost: half } } as never);
  const paused = await eventually(
    async () => (await send('GET', `/batches/${id}`)).body as Record<string, unknown>,
    (batch) => batch['paused_at'] !== null,
  );
  expect(paused).toMatchObject({
    status: 'in_progress',
    bounds: { max_cost: half, on_bound: 'pause', reached: 'max_cost' },
    waits: [{ reason: 'paused', message: expect.stringContaining(`it reached its max_cost of $${half}`) }],
    gateway: { eta: null },
  });
  expect(Number(paused['cost_usd'])).toBeLessThanOrEqual(Number(half));
  expect(await send('POST', `/batches/${id}/resume`)).toMatchObject({
    status: 409,
    body: { error: { code: 'bound_reached' } },
  });
  expect(await send('POST', `/batches/${id}/resume`, { max_cost: 10 })).toMatchObject({
    status: 200,
    body: { paused_at: null, bounds: { max_cost: '10', reached: null } },
  });
  const done = await ended(client, { id });
  expect(done).toMatchObject({ status: 'completed', request_counts: { completed: 20, failed: 0 } });
});
