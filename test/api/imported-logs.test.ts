import { afterAll, beforeAll, expect, test } from 'vitest';
import { eventually } from '#test/eventually.ts';
import { startPlatform, type TestPlatform } from '#test/platform.ts';

let platform: TestPlatform;
beforeAll(async () => {
  platform = await startPlatform();
});
afterAll(() => platform.stop());

async function call(method: string, path: string, body?: unknown) {
  const response = await fetch(platform.baseUrl + path, {
    method,
    headers: { authorization: `Bearer ${platform.adminKey}`, 'content-type': 'application/json' },
    ...(body === undefined ? {} : { body: JSON.stringify(body) }),
  });
  return {
    status: response.status,
    body: (await response.json()) as Record<string, unknown> & { data: Record<string, unknown>[] },
  };
}

const made = (traceId: string, response: object = {}) => ({
  request: {
    url: 'https://api.openai.com/v1/chat/completions',
    method: 'POST',
    headers: { authorization: 'Bearer sk-a-secret-that-nobody-records' },
    body: { model: 'gpt-4o-mini', messages: [{ role: 'user', content: 'a prompt that nobody records' }] },
  },
  response: {
    status: 200,
    response_time: 840,
    body: {
      id: 'chatcmpl-1',
      model: 'gpt-4o-mini-2024-07-18',
      choices: [{ index: 0, finish_reason: 'stop', message: { role: 'assistant', content: 'x' } }],
      usage: { prompt_tokens: 1_000_000, completion_tokens: 1_000_000, total_tokens: 2_000_000 },
    },
    ...response,
  },
  metadata: { trace_id: traceId, span_name: 'answer', team: 'search', attempt: 2 },
});

test('a list has up to 1,000 records of ordinary size', async () => {
  const list = Array.from({ length: 1_000 }, () => made('trace-of-many'));
  expect(await call('POST', '/logs', list)).toMatchObject({ status: 200, body: { recorded: 1_000 } });
  expect(await call('POST', '/logs', [...list, made('trace-of-many')])).toMatchObject({ status: 400 });
});

test('a call that was made elsewhere is in the log when it is taken, with its cost, and nothing that it said', async () => {
  expect(await call('POST', '/logs', made('trace-one'))).toMatchObject({
    status: 200,
    body: { status: 'success', recorded: 1 },
  });
  const { body } = await call('GET', '/logs?trace_id=trace-one');
  expect(body.data).toEqual([
    expect.objectContaining({
      kind: 'imported',
      operation: 'chat',
      provider: 'openai',
      model: 'gpt-4o-mini',
      response_model: 'gpt-4o-mini-2024-07-18',
      provider_request_id: 'chatcmpl-1',
      path: '/v1/chat/completions',
      status: 200,
      error_code: null,
      finish_reason: 'stop',
      duration_ms: 840,
      span_name: 'answer',
      metadata: { team: 'search', attempt: '2' },
      cost_usd: '0.75', // 15 cents for a million tokens in, 60 for a million out
    }),
  ]);
  expect(JSON.stringify(body)).not.toMatch(/nobody records/);
});

test('a call that was made elsewhere keeps its address, without what may be a key, and names no virtual key', async () => {
  const sent = made('trace-address');
  const url = 'https://user:pass@models.example/proxy/v1/chat/completions?key=AIza-secret#part';
  await call('POST', '/logs', { ...sent, request: { ...sent.request, url } });
  const { body } = await call('GET', '/logs?trace_id=trace-address');
  expect(body.data).toMatchObject([{ path: '/v1/chat/completions', provider: 'models.example', virtual_key: null }]);
  const details = await call('GET', `/logs/${String(body.data[0]?.['id'])}`);
  const kept = 'https://models.example/proxy/v1/chat/completions';
  expect(details.body).toMatchObject({
    request: { url: kept },
    metrics: { request_url: kept, virtual_key: null, is_proxy_call: false },
  });
  expect(JSON.stringify(details.body)).not.toMatch(/AIza|user:pass/);
});

test('a list is taken whole or not at all, and what is unknown has no cost', async () => {
  const failed = made('trace-list', { status: 429, body: { error: { code: 'rate_limit_exceeded' } } });
  const elsewhere = {
    ...made('trace-list'),
    request: { ...made('').request, url: 'https://models.example/v2/generate' },
  };
  const named = { ...made('trace-list'), request: { ...elsewhere.request, provider: 'openai' } };
  const list = [failed, elsewhere, named];
  const broken = await call('POST', '/logs', [...list, { request: made('').request }]);
  expect([broken.status, broken.body['error']]).toMatchObject([400, { message: expect.stringContaining('response') }]);
  expect(await call('POST', '/logs', list)).toMatchObject({ body: { recorded: 3 } });
  const { body } = await call('GET', '/logs?trace_id=trace-list');
  const found = body.data.map(({ provider, status, error_code, cost_usd }) => ({
    provider,
    status,
    error_code,
    cost_usd,
  }));
  expect(found).toHaveLength(3);
  expect(found).toContainEqual({ provider: 'openai', status: 429, error_code: 'rate_limit_exceeded', cost_usd: '0' });
  expect(found).toContainEqual({ provider: 'models.example', status: 200, error_code: null, cost_usd: null });
  expect(found).toContainEqual({ provider: 'openai', status: 200, error_code: null, cost_usd: '0.75' });
});

test('more than a thousand calls, an address that is none, and metadata of unheard-of length are refused', async () => {
  const tooMany = await call(
    'POST',
    '/logs',
    Array.from({ length: 1_001 }, () => ({ request: { url: 'https://a.example', body: {} }, response: { body: {} } })),
  );
  const noUrl = await call('POST', '/logs', {
    ...made('x'),
    request: { ...made('x').request, url: 'file:///etc/passwd' },
  });
  const long = await call('POST', '/logs', { ...made('x'), metadata: { note: 'x'.repeat(10_000) } });
  expect([tooMany.status, noUrl.status, long.status]).toEqual([400, 400, 400]);
});

test('imported calls are part of analytics and of no budget', async () => {
  const limit = {
    name: 'one cent',
    type: 'cost',
    credit_limit: 1,
    conditions: [{ key: 'metadata.team', value: 'imports' }],
    group_by: [{ key: 'workspace_id' }],
  };
  const policy = await call('POST', '/policies/usage-limits', limit);
  expect(policy.status).toBe(200);
  const item = { ...made('trace-analytics'), metadata: { trace_id: 'trace-analytics', team: 'imports' } };
  expect((await call('POST', '/logs', [item, item])).status).toBe(200);
  const query = new URLSearchParams({
    time_of_generation_min: new Date(Date.now() - 3_600_000).toISOString(),
    time_of_generation_max: new Date(Date.now() + 60_000).toISOString(),
    trace_id: 'trace-analytics',
  });
  const cost = await eventually(
    () => call('GET', `/analytics/graphs/cost?${query.toString()}`),
    ({ body }) => JSON.stringify(body).includes('150'),
  );
  expect(cost.status).toBe(200);
  const entities = await call('GET', `/policies/usage-limits/${String(policy.body['id'])}/entities`);
  expect([entities.status, entities.body.data]).toEqual([200, []]);
});
