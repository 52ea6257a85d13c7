import { Portkey } from 'portkey-ai';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { eventually } from '#test/eventually.ts';
import { startPlatform, type TestPlatform } from '#test/platform.ts';
import { createWorkspace } from './second-workspace.ts';

// Who spent what: every method that Portkey's client has for analytics and feedback, unmodified, against real calls.

type Answer = Record<string, unknown> & {
  summary: Record<string, number>;
  data_points: (Record<string, unknown> & { timestamp: string })[];
  data: Record<string, unknown>[];
  total: number;
};

let platform: TestPlatform;
let client: Portkey;
const started = Date.now();
const range = () => ({
  time_of_generation_min: new Date(started - 60_000).toISOString(),
  time_of_generation_max: new Date(Date.now() + 60_000).toISOString(),
});

beforeAll(async () => {
  platform = await startPlatform({ environment: { SLUICE_ANALYTICS_INTERVAL: '50ms' } });
  client = new Portkey({ apiKey: platform.adminKey, baseURL: platform.baseUrl });
  const keyOf = async (user: string, team: string) => {
    const made = await call('POST', '/api-keys', {
      body: { name: user, defaults: { metadata: { _user: user, team } } },
    });
    return String(made.body['key']);
  };
  const keys = { ann: await keyOf('ann', 'search'), bob: await keyOf('bob', 'ads') };
  const chat = (model: string, user: keyof typeof keys, trace: string, text = 'hello') =>
    call('POST', '/chat/completions', {
      key: keys[user],
      headers: { 'x-gateway-trace-id': trace },
      body: { model, messages: [{ role: 'user', content: text }] },
    });
  await chat('@simulator/sim-small', 'ann', 'trace-ann');
  await chat('@simulator/sim-small', 'ann', 'trace-ann');
  await chat('@simulator/sim-large', 'bob', 'trace-bob');
  await call('POST', '/chat/completions', { body: { model: '@simulator/no-such-model', messages: [] } });
  await eventually(
    () => client.analytics.graphs.requests(range()) as unknown as Promise<Answer>,
    ({ summary }) => (summary['total'] ?? 0) >= 3,
  );
});
afterAll(() => platform.stop());

async function call(
  method: string,
  path: string,
  { body, key, headers = {} }: { body?: unknown; key?: string; headers?: Record<string, string> } = {},
) {
  const response = await fetch(`${platform.baseUrl}${path}`, {
    method,
    headers: { authorization: `Bearer ${key ?? platform.adminKey}`, 'content-type': 'application/json', ...headers },
    ...(body === undefined ? {} : { body: JSON.stringify(body) }),
  });
  return {
    status: response.status,
    body: (await response.json()) as Record<string, unknown> & { error?: { code: string } },
  };
}

const graphMethods = [
  'requests',
  'cost',
  'latency',
  'tokens',
  'users',
  'usersRequests',
  'errors',
  'errors_rate',
  'errors_stack',
  'errors_status_code',
  'requests_rescued',
  'cache_hit_rate',
  'cache_latency',
  'feedbacks',
  'feedbacks_score',
  'feedbacks_weighted',
  'feedback_ai_models',
] as const;

const graph = async (method: (typeof graphMethods)[number], query: object = {}): Promise<Answer> =>
  (await client.analytics.graphs[method]({ ...range(), ...query })) as unknown as Answer;
const group = async (by: string, query: object = {}): Promise<Answer> =>
  (await client.analytics.groups.groupedData(by as 'model', { ...range(), ...query })) as unknown as Answer;

test('the client has no method for graphs that is not called here', () => {
  const methods = Object.getOwnPropertyNames(Object.getPrototypeOf(client.analytics.graphs));
  expect(methods.filter((name) => name !== 'constructor').toSorted()).toEqual(graphMethods.toSorted());
});

test.each(graphMethods)('the client reads the graph %s', async (method) => {
  const answer = await graph(method);
  expect(answer).toMatchObject({ object: 'analytics-graph', summary: expect.any(Object) });
  expect(Array.isArray(answer.data_points)).toBe(true);
});

test('graphs count calls, errors, tokens and users, at points of a minute', async () => {
  const requests = await graph('requests', { status_code: '200' });
  expect(requests.summary).toEqual({ total: 3 });
  expect(requests.data_points.reduce((sum, { total }) => sum + Number(total), 0)).toBe(3);
  expect(new Set(requests.data_points.map(({ timestamp }) => timestamp.slice(16)))).toEqual(new Set([':00.000Z']));
  expect((await graph('users')).summary).toEqual({ total: 2 });
  expect((await graph('usersRequests')).summary).toEqual({ total: 3, unique: 2, avg: 1.5 });
  const tokens = (await graph('tokens')).summary;
  expect(tokens['total']).toBeGreaterThan(0);
  const { p50 = 0, p99 = 0 } = (await graph('latency')).summary;
  expect(p50).toBeGreaterThan(0);
  expect(p99).toBeGreaterThanOrEqual(p50);
  const metadata = JSON.stringify({ team: 'ads' });
  expect((await graph('requests', { metadata })).summary).toEqual({ total: 1 });
  expect((await graph('requests', { trace_id: 'trace-ann' })).summary).toEqual({ total: 2 });
});

test('groups show who made the calls, with what, most first', async () => {
  const users = (await client.analytics.groups.users(range())) as unknown as Answer;
  expect(users).toMatchObject({
    object: 'list',
    total: 2,
    data: [
      { object: 'analytics-group', user: 'ann', requests: '2', cost: expect.any(String) },
      { user: 'bob', requests: '1' },
    ],
  });
  const models = (await client.analytics.groups.aiModels({ ...range(), status_code: '200' })) as unknown as Answer;
  expect(models.data.map(({ ai_model: model, requests }) => [model, requests])).toEqual([
    ['sim-small', '2'],
    ['sim-large', '1'],
  ]);
  const second = await client.analytics.groups.users({ ...range(), page_size: 1, current_page: 1 });
  expect(second).toMatchObject({ total: 2, has_more: false, data: [{ user: 'bob' }] });
  const byTeam = await client.analytics.groups.metadata('team', range());
  expect(byTeam).toMatchObject({
    total: 2,
    data: [{ metadata_value: 'search', requests: 2 }, { metadata_value: 'ads' }],
  });
  const workspaces = (await client.analytics.groups.workspaces(range())) as unknown as Answer;
  expect(workspaces.data).toMatchObject([
    { workspace_id: expect.stringMatching(/^ws_/), workspace_name: expect.any(String) },
  ]);
});

test.each(['ai_service', 'model', 'status_code', 'api_key', 'config', 'workspace', 'provider', 'prompt'])(
  'the client groups calls by %s, with the columns that it asks for',
  async (by) => {
    const columns = 'requests,cost,total_tokens,avg_latency,p95_latency,p99_latency,success_rate,last_seen';
    const { data } = await group(by, { columns, include_total: true });
    expect(data.length).toBeGreaterThan(0);
    for (const each of data)
      expect(each).toMatchObject({ requests: expect.any(Number), p95_latency: expect.any(Number) });
    expect(data[0]).not.toHaveProperty('error_count');
  },
);

test('groups by key have the names of the keys', async () => {
  const { data } = await group('api_key');
  expect(data).toMatchObject(
    ['ann', 'bob'].map((name) => ({ api_key: expect.stringMatching(/^key_/) as string, api_key_name: name })),
  );
});

test('what was deleted keeps its name in analytics and in the log', async () => {
  const { body: workspace } = await call('POST', '/admin/workspaces', { body: { name: 'Short-lived' } });
  const made = async (path: string, body: object) =>
    (await call('POST', path, { body, key: admin })).body as Record<string, string>;
  const { body: own } = await call('POST', '/api-keys', { body: { name: 'admin', workspace_id: workspace['id'] } });
  const admin = String(own['key']);
  const key = await made('/api-keys', { name: 'Gone' });
  const host = { provider: 'simulator', key: 'k', custom_host: platform.simulatorUrl };
  await made('/virtual-keys', { name: 'Credential', slug: 'gone-key', ...host });
  const config = await made('/configs', {
    name: 'Gone config',
    slug: 'gone-config',
    config: { virtual_key: 'gone-key' },
  });
  await call('POST', '/chat/completions', {
    key: String(key['key']),
    headers: { 'x-gateway-config': 'gone-config', 'x-gateway-trace-id': 'trace-of-deleted' },
    body: { model: 'sim-small', messages: [{ role: 'user', content: 'Hi' }] },
  });
  const logs = () => call('GET', '/logs?trace_id=trace-of-deleted', { key: admin });
  await eventually(logs, ({ body }) => (body['data'] as unknown[]).length > 0);
  for (const path of [`/api-keys/${key['id']}`, '/virtual-keys/gone-key', `/configs/${config['id']}`])
    expect([path, (await call('DELETE', path, { key: admin })).status]).toEqual([path, 200]);

  const record = {
    api_key_id: key['id'],
    api_key_name: 'Gone',
    virtual_key: 'gone-key',
    config: { slug: 'gone-config' },
  };
  const { body: list } = await logs();
  expect(list).toMatchObject({ data: [record] });
  const [{ id } = { id: '' }] = list['data'] as { id: string }[];
  expect((await call('GET', `/logs/${id}`, { key: admin })).body).toMatchObject(record);
  const toAddressGroup = async (by: string) =>
    (await call('GET', `/analytics/groups/${by}?${new URLSearchParams(range()).toString()}`, { key: admin })).body;
  const calls = { requests: 1 };
  await eventually(
    () => toAddressGroup('api_key'),
    ({ total }) => total === 1,
  );
  expect(await toAddressGroup('api_key')).toMatchObject({ data: [{ ...calls, api_key_name: 'Gone' }] });
  expect(await toAddressGroup('virtual_key')).toMatchObject({ data: [{ ...calls, virtual_key: 'gone-key' }] });
  expect(await toAddressGroup('config')).toMatchObject({ data: [{ ...calls, config: 'gone-config' }] });

  await call('DELETE', '/admin/workspaces/short-lived');
  const { data } = (await client.analytics.groups.workspaces(range())) as unknown as Answer;
  expect(data).toContainEqual(
    expect.objectContaining({ workspace_id: workspace['id'], workspace_name: 'Short-lived' }),
  );
});

test('the cache has a summary', async () => {
  expect(await client.analytics.summary.cache(range())).toMatchObject({
    object: 'analytics-summary',
    summary: { hits: 0, avg_latency: 0, total_requests: expect.any(Number), cache_speedup: 0 },
  });
});

test('feedback is given, changed, and counted by value, weight and model', async () => {
  const given = (await client.feedback.create({ traceID: 'trace-ann', value: 5, weight: 0.5 })) as unknown as {
    feedback_ids: string[];
  };
  const id = given.feedback_ids[0] ?? '';
  await client.feedback.create([
    { traceID: 'trace-bob', value: -2, metadata: { why: 'wrong' } },
    { traceID: 'trace-of-later', value: 10 },
  ]);
  expect(await client.feedback.update({ feedbackID: id, value: 8 })).toMatchObject({
    status: 'success',
    feedback_ids: [id],
  });
  expect((await graph('feedbacks')).summary).toEqual({ total: 3 });
  expect((await graph('feedbacks_score')).data_points).toEqual([
    { score: -2, total: 1 },
    { score: 8, total: 1 },
    { score: 10, total: 1 },
  ]);
  // (8 · 0.5 − 2 · 1 + 10 · 1) ÷ 2.5
  expect((await graph('feedbacks_weighted')).summary).toEqual({ avg: 4.8 });
  expect((await graph('feedback_ai_models')).data_points).toEqual([
    { ai_model: 'sim-large', total: 1, avg_weighted_feedback: -2 },
    { ai_model: 'sim-small', total: 1, avg_weighted_feedback: 8 },
  ]);
  expect((await graph('requests', { weighted_feedback_min: 7 })).summary).toEqual({ total: 2 });
  expect((await graph('feedbacks', { ai_org_model: 'sim-large' })).summary).toEqual({ total: 1 });
  const byTeam = (await client.analytics.groups.metadata('team', range())) as unknown as Answer;
  expect(byTeam.data[0]).toMatchObject({
    metadata_value: 'search',
    requests_with_feedback: 2,
    avg_weighted_feedback: 8,
  });
});

test('feedback with the same Idempotency-Key is taken once', async () => {
  const send = () =>
    call('POST', '/feedback', {
      headers: { 'idempotency-key': 'feedback-1' },
      body: { trace_id: 'trace-once', value: 1 },
    });
  const first = await send();
  expect((await send()).body).toEqual(first.body);
  const { rows } = await platform.database.pool.query("select from feedback where trace_id = 'trace-once'");
  expect(rows).toHaveLength(1);
});

const wrong: [string, string, string][] = [
  [
    'a time that ends before it begins',
    'time_of_generation_min=2026-01-02T00:00:00Z&time_of_generation_max=2026-01-01T00:00:00Z',
    'invalid_value',
  ],
  ['no time', '', 'missing_required_parameter'],
  [
    'too long a time',
    'time_of_generation_min=2020-01-01T00:00:00Z&time_of_generation_max=2026-01-01T00:00:00Z',
    'invalid_value',
  ],
  ['metadata that is no object', 'MINUTE&metadata=team', 'invalid_value'],
  ['a status that is none', 'MINUTE&status_code=200,abc', 'invalid_value'],
  ['a cost below zero', 'MINUTE&cost_min=-1', 'invalid_value'],
  ['an unknown parameter', 'MINUTE&colour=red', 'unknown_parameter'],
];
test.each(wrong)('%s is refused', async (_name, query, code) => {
  const minute = 'time_of_generation_min=2026-01-01T00:00:00Z&time_of_generation_max=2026-01-01T00:01:00Z';
  const answer = await call('GET', `/analytics/graphs/cost?${query.replace('MINUTE', minute)}`);
  expect(answer).toMatchObject({ status: 400, body: { error: { code } } });
});

test('feedback that means nothing is refused, and so is a change of unknown feedback', async () => {
  for (const body of [{ value: 1 }, { trace_id: 't', value: 11 }, { trace_id: 't', value: 1, weight: 2 }, []]) {
    expect((await call('POST', '/feedback', { body })).status).toBe(400);
  }
  expect((await call('PUT', '/feedback/nobody', { body: { value: 1 } })).status).toBe(404);
});

test('another workspace sees nothing of it, and cannot ask for it', async () => {
  const otherKey = await createWorkspace(platform);
  const query = new URLSearchParams(range()).toString();
  const own = await call('GET', `/analytics/graphs/requests?${query}`, { key: otherKey });
  expect(own.body['summary']).toEqual({ total: 0 });
  const groups = await call('GET', `/analytics/groups/workspaces?${query}`, { key: otherKey });
  expect(groups.body['data']).toEqual([]);
  const asked = await call('GET', `/analytics/graphs/requests?${query}&workspace_slug=default`, { key: otherKey });
  expect(asked.status).toBe(404);
  const foreign = await call('GET', `/analytics/graphs/requests?${query}&organisation_id=org_of_others`);
  expect(foreign.status).toBe(404);
  const feedback = await call('POST', '/feedback', { body: { trace_id: 'trace-mine', value: 1 } });
  const id = (feedback.body['feedback_ids'] as string[])[0];
  expect((await call('PUT', `/feedback/${id}`, { key: otherKey, body: { value: 2 } })).status).toBe(404);
});

test('an organisation key that names no workspace asks about all of them', async () => {
  const { id: workspace } = (await call('POST', '/admin/workspaces', { body: { name: 'Counted team' } })).body;
  const counted = { name: 'counted', workspace_id: workspace, defaults: { metadata: { _user: 'cleo' } } };
  const { id: keyId, key } = (await call('POST', '/api-keys', { body: counted })).body as { id: string; key: string };
  const ask = async (what: string, more: object = {}) => {
    const query = new URLSearchParams({ ...range(), ...more }).toString();
    return (await call('GET', `/analytics/${what}?${query}`)).body as unknown as Answer;
  };
  const ours = { workspace_slug: 'default' };
  const requestsOf = async (more: object) => (await ask('graphs/requests', more)).summary['total'] ?? 0;
  const before = { all: await requestsOf({}), ours: await requestsOf(ours) };
  const usersBefore = (await ask('graphs/users')).summary['total'] ?? 0;
  await call('POST', '/chat/completions', {
    key,
    // The trace has the ID of a trace of another workspace, whose feedback must not count here.
    headers: { 'x-gateway-trace-id': 'trace-ann', 'x-gateway-metadata': '{"squad":"counted"}' },
    body: { model: '@simulator/sim-small', messages: [{ role: 'user', content: 'hello' }] },
  });
  await call('POST', '/feedback', { body: { trace_id: 'trace-ann', value: -3 } });
  await eventually(
    () => requestsOf({ workspace_slug: workspace }),
    (total) => total === 1,
  );
  expect({ all: await requestsOf({}), ours: await requestsOf(ours) }).toEqual({ ...before, all: before.all + 1 });
  expect((await ask('graphs/users')).summary['total']).toBe(usersBefore + 1);
  const groups = await ask('groups/metadata/squad');
  expect(groups.data).toMatchObject([{ metadata_value: 'counted', requests: 1, requests_with_feedback: 0 }]);
  const byKey = (await ask('groups/api_key')).data.find((group) => group['api_key'] === keyId);
  expect(byKey).toMatchObject({ api_key_name: 'counted', requests: 1 });
  const scores = async (more: object) => (await ask('graphs/feedbacks/scores', more)).summary['total'];
  expect(await scores({})).toBe(await scores(ours));
  expect(await scores({ metadata: '{"squad":"counted"}' })).toBe(0);
  expect((await ask('graphs/feedbacks/ai-models')).data_points).toEqual(
    (await ask('graphs/feedbacks/ai-models', ours)).data_points,
  );
  expect((await ask('summary/cache')).summary).toMatchObject({ total_requests: before.all + 1 });
});

test('the graph of prompt caches shows tokens read, and what that saved', async () => {
  const made = await call('POST', '/chat/completions', {
    body: { model: '@simulator/sim-small+cached', messages: [{ role: 'user', content: 'hello '.repeat(50) }] },
    headers: { 'x-gateway-trace-id': 'trace-cached' },
  });
  expect(made.status).toBe(200);
  const { prompt_tokens: prompt, prompt_tokens_details: details } = made.body['usage'] as Record<string, unknown> & {
    prompt_tokens: number;
    prompt_tokens_details: { cached_tokens: number };
  };
  const query = new URLSearchParams({ ...range(), trace_id: 'trace-cached' }).toString();
  const read = async (path: string) => (await call('GET', `/${path}?${query}`)).body as unknown as Answer;
  const cached = await eventually(
    () => read('analytics/graphs/prompt-cache'),
    ({ summary }) => summary['prompt_tokens'] === prompt,
  );
  // The simulator's prices: a dollar for a million tokens, half of it for cached ones.
  const saved = details.cached_tokens * 0.00005;
  const expected = {
    prompt_tokens: prompt,
    cached_tokens: details.cached_tokens,
    cache_write_tokens: 0,
    cached_rate: expect.closeTo((100 * details.cached_tokens) / prompt, 3),
    saved: expect.closeTo(saved, 9),
  };
  expect(saved).toBeGreaterThan(0);
  expect(cached.summary).toEqual(expected);
  expect(cached.data_points.filter(({ saved: sum }) => sum !== 0)).toEqual([
    { timestamp: expect.any(String), ...expected },
  ]);
  expect((await read('logs')).data).toMatchObject([{ usage: { cached_tokens: details.cached_tokens } }]);
  const [record] = (await read('logs')).data;
  expect(Number(record?.['prompt_cache_saved_usd'])).toBeCloseTo(saved / 100, 9);
  expect((await read('analytics/groups/model')).data).toMatchObject([
    { cached_tokens: details.cached_tokens, cache_write_tokens: 0, prompt_cache_saved: expect.closeTo(saved, 9) },
  ]);
});
