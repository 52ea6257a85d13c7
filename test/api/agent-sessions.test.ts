import { afterAll, beforeAll, expect, test } from 'vitest';
import { eventually } from '#test/eventually.ts';
import { startPlatform, type TestPlatform } from '#test/platform.ts';
import { createWorkspace } from './second-workspace.ts';
import { postJson } from './scripted-provider.ts';

// The cost of a coding agent's session and of its sub-agents, from the headers that the agents send.

type Json = Record<string, unknown>;
type Page = { data: Json[]; total: number };

let platform: TestPlatform;
const started = Date.now();

const get = async (path: string, query: Record<string, string> = {}, key = platform.adminKey): Promise<Page> => {
  const response = await fetch(`${platform.baseUrl}${path}?${new URLSearchParams(query).toString()}`, {
    headers: { authorization: `Bearer ${key}` },
  });
  const body = (await response.json()) as Page;
  expect({ status: response.status, body }).toMatchObject({ status: 200 });
  return body;
};
const group = (by: string, query: Record<string, string> = {}, key?: string): Promise<Page> =>
  get(
    `/analytics/groups/${by}`,
    {
      time_of_generation_min: new Date(started - 60_000).toISOString(),
      time_of_generation_max: new Date(Date.now() + 60_000).toISOString(),
      ...query,
    },
    key,
  );
const chat = (headers: Record<string, string>) =>
  postJson(
    platform,
    '/chat/completions',
    { model: '@simulator/sim-small', messages: [{ role: 'user', content: 'Hi' }] },
    headers,
  );
const claude = (session: string, agent?: string, parent?: string) =>
  chat({
    'x-claude-code-session-id': session,
    ...(agent === undefined ? {} : { 'x-claude-code-agent-id': agent }),
    ...(parent === undefined ? {} : { 'x-claude-code-parent-agent-id': parent }),
  });

beforeAll(async () => {
  platform = await startPlatform({ environment: { SLUICE_ANALYTICS_INTERVAL: '50ms' } });
  const made = [
    await claude('claude-1'),
    await claude('claude-1'),
    await claude('claude-1', 'explorer'),
    await claude('claude-1', 'reader', 'explorer'),
    await claude('claude-2'),
    await postJson(
      platform,
      '/responses',
      { model: '@simulator/sim-small', input: 'Hi' },
      { 'session-id': 'codex-1', 'thread-id': 'codex-1' },
    ),
    await chat({ 'x-gateway-session-id': 'own-1', 'x-gateway-agent-id': 'a' }),
    await chat({ 'x-gateway-session-id': 'x'.repeat(129) }),
  ];
  for (const { status } of made) if (status !== 200) throw new Error(`a call was answered with ${status}`);
  await eventually(
    () => get('/analytics/graphs/requests', range()) as unknown as Promise<{ summary: { total: number } }>,
    ({ summary }) => summary.total === made.length,
  );
});
afterAll(() => platform.stop());

const range = () => ({
  time_of_generation_min: new Date(started - 60_000).toISOString(),
  time_of_generation_max: new Date(Date.now() + 60_000).toISOString(),
});

test('each call is recorded with its session, and the log is filtered by session and agent', async () => {
  const { data } = await get('/logs', { session_id: 'claude-1' });
  const shown = data.map(({ session_id: session, agent_id: agent, parent_agent_id: parent }) => [
    session,
    agent,
    parent,
  ]);
  expect(shown).toEqual([
    ['claude-1', 'reader', 'explorer'],
    ['claude-1', 'explorer', null],
    ['claude-1', null, null],
    ['claude-1', null, null],
  ]);
  expect((await get('/logs', { session_id: 'claude-1,codex-1', agent_id: 'reader' })).data).toHaveLength(1);
  expect((await get('/logs', { session_id: 'codex-1' })).data).toMatchObject([
    { path: '/v1/responses', agent_id: null, parent_agent_id: null },
  ]);
});

test('a record shows the headers that name its session', async () => {
  const { data } = await get('/logs', { agent_id: 'reader' });
  const details = (await get(`/logs/${String(data[0]?.['id'])}`)) as unknown as Json;
  expect(details).toMatchObject({
    request: {
      gatewayHeaders: {
        'x-gateway-session-id': 'claude-1',
        'x-gateway-agent-id': 'reader',
        'x-gateway-parent-agent-id': 'explorer',
      },
    },
  });
});

test('an ID above 128 characters is ignored', async () => {
  const { data } = await get('/logs', { limit: '100' });
  expect(data.filter(({ session_id: session }) => session === null)).toHaveLength(1);
});

test('analytics add up each session: calls, tokens, cost, duration, first and last call', async () => {
  const { data, total } = await group('session');
  expect(total).toBe(4);
  expect(Object.fromEntries(data.map(({ session_id: session, requests }) => [session, requests]))).toEqual({
    'claude-1': 4,
    'claude-2': 1,
    'codex-1': 1,
    'own-1': 1,
  });
  const calls = (await get('/logs', { session_id: 'claude-1' })).data;
  const sum = (read: (call: Json) => number): number => calls.reduce((all, call) => all + read(call), 0);
  expect(data[0]).toMatchObject({
    session_id: 'claude-1',
    cost: expect.closeTo(100 * sum(({ cost_usd: cost }) => Number(cost)), 9),
    total_tokens: sum(
      ({ usage }) => Number((usage as Json)['input_tokens']) + Number((usage as Json)['output_tokens']),
    ),
    total_latency: expect.closeTo(
      sum(({ duration_ms: ms }) => Number(ms)),
      2,
    ),
    first_seen: calls.at(-1)?.['created_at'],
    last_seen: calls[0]?.['created_at'],
  });
  expect((await group('session', { order_by: 'cost', page_size: '1' })).data).toHaveLength(1);
});

test('the sessions of one model or key are read from rollups too', async () => {
  expect((await group('session', { ai_org_model: 'simulator', order_by: 'last_seen' })).total).toBe(4);
  expect((await group('session', { api_key_ids: 'key_other' })).total).toBe(0);
});

test('analytics add up each agent of a session, with the agent that started it', async () => {
  const { data } = await group('agent', { session_id: 'claude-1' });
  expect(data).toMatchObject([
    { object: 'analytics-group', agent_id: null, parent_agent_id: null, requests: 2 },
    { agent_id: 'explorer', parent_agent_id: null, requests: 1 },
    { agent_id: 'reader', parent_agent_id: 'explorer', requests: 1 },
  ]);
  const [session] = (await group('session', { session_id: 'claude-1' })).data;
  const total = data.reduce((sum, { cost }) => sum + Number(cost), 0);
  expect(total).toBeCloseTo(Number(session?.['cost']), 9);
  expect(total).toBeGreaterThan(0);
});

test('another workspace sees no session of this one', async () => {
  const other = await createWorkspace(platform);
  expect((await group('session', {}, other)).total).toBe(0);
  expect((await group('agent', { session_id: 'claude-1' }, other)).total).toBe(0);
  expect((await get('/logs', { session_id: 'claude-1' }, other)).data).toEqual([]);
});
