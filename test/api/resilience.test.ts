import { afterEach, expect, test } from 'vitest';
import { eventually } from '#test/eventually.ts';
import { completion } from '#test/forwarding-rig.ts';
import type { UpstreamScript } from '#test/upstream.ts';
import { postJson, startScriptedPlatform, storeVirtualKey, type ScriptedPlatform } from './scripted-provider.ts';
import { createWorkspace } from './second-workspace.ts';

let scripted: ScriptedPlatform;
afterEach(() => scripted.stop());

const ok: UpstreamScript = (reply) => reply.json(200, completion);
const broken: UpstreamScript = (reply) => reply.json(500, { error: { message: 'broken' } });
const body = (model = '@scripted/m') => ({ model, messages: [{ role: 'user', content: 'x' }] });

type Answer = { status: number; code: unknown; retryAfter: string | null; headers: Headers };

async function ask(config: object | null = null, sent: object = body()): Promise<Answer> {
  const headers = config === null ? {} : { 'x-gateway-config': JSON.stringify(config) };
  const response = await postJson(scripted.platform, '/chat/completions', sent, headers);
  const { error } = (await response.json()) as { error?: { code: unknown } };
  return {
    status: response.status,
    code: error?.code,
    retryAfter: response.headers.get('retry-after'),
    headers: response.headers,
  };
}

const breaker = { cb_config: { failure_threshold: 2 } };

async function get(path: string, key = scripted.platform.adminKey): Promise<Response> {
  return await fetch(`${scripted.platform.baseUrl}${path}`, { headers: { authorization: `Bearer ${key}` } });
}

test('a circuit opens, is shown, is skipped by a fallback, and closes when another process says so', async () => {
  scripted = await startScriptedPlatform();
  const { upstream, platform } = scripted;
  upstream.script(broken);
  for (let n = 0; n < 2; n += 1) expect((await ask(breaker)).status).toBe(500);
  const open = await ask(breaker);
  expect(open).toMatchObject({ status: 503, code: 'circuit_open', retryAfter: '30' });
  expect(upstream.requests).toHaveLength(2);
  expect((await ask()).status).toBe(500);

  const metrics = await (await fetch(`${new URL(platform.baseUrl).origin}/metrics`)).text();
  expect(metrics).toContain('sluice_provider_circuits{provider="openai-compatible",state="open"} 1');
  const list = await eventually(
    async () => (await (await get('/admin/circuits')).json()) as { data: object[] },
    ({ data }) => data.length > 0,
  );
  expect(list.data).toMatchObject([
    { object: 'circuit', virtual_key: 'scripted', model: 'm', state: 'open', failures: 2, reason: 'http_500' },
  ]);
  const elsewhere = await get('/admin/circuits', await createWorkspace(platform));
  expect(await elsewhere.json()).toMatchObject({ data: [] });

  await storeVirtualKey(platform, 'second', upstream.url.href);
  upstream.script(ok);
  const targets = [{ virtual_key: 'scripted' }, { virtual_key: 'second' }];
  const before = upstream.requests.length;
  const rescued = await ask({ ...breaker, strategy: { mode: 'fallback', on_status_codes: [429] }, targets }, body('m'));
  expect(rescued.status).toBe(200);
  expect(rescued.headers.get('x-gateway-last-used-option-index')).toBe('config.targets[1]');
  for (let n = 0; n < 5; n += 1) {
    const balanced = await ask({ ...breaker, strategy: { mode: 'loadbalance' }, targets }, body('m'));
    expect(balanced.headers.get('x-gateway-last-used-option-index')).toBe('config.targets[1]');
  }
  expect(upstream.requests).toHaveLength(before + 6);

  // As when another process's probe has succeeded.
  await platform.database.db.deleteFrom('provider_circuit').execute();
  await eventually(
    () => ask(breaker),
    ({ status }) => status === 200,
  );
});

test('a 429 that says how long stops its model here, and no other', async () => {
  scripted = await startScriptedPlatform();
  const { upstream } = scripted;
  upstream.script([(reply) => reply.json(429, { error: { message: 'slow' } }, { 'retry-after': '40' }), ok]);
  expect(await ask()).toMatchObject({ status: 429, retryAfter: '40' });
  const paused = await ask();
  expect(paused).toMatchObject({ status: 429, code: 'provider_rate_limited' });
  expect(Number(paused.retryAfter)).toBeGreaterThan(30);
  expect(upstream.requests).toHaveLength(1);
  expect((await ask(null, body('@scripted/other'))).status).toBe(200);
});

test('calls beyond the places of a credential wait, those beyond the queue are refused', async () => {
  scripted = await startScriptedPlatform({ SLUICE_CALLS_PER_CREDENTIAL: '1', SLUICE_PROVIDER_QUEUE: '1' });
  const { upstream, platform } = scripted;
  const { promise: answered, resolve: tell } = Promise.withResolvers<void>();
  upstream.script(async (reply) => {
    await answered;
    reply.json(200, completion);
  });
  const first = ask();
  await upstream.until(() => upstream.requests.length === 1);
  const second = ask();
  await upstream.until(() => platform.api.platform.traffic.stats().waitingLive === 1);
  expect(await ask()).toMatchObject({ status: 503, code: 'provider_busy', retryAfter: '1' });
  tell();
  expect([(await first).status, (await second).status]).toEqual([200, 200]);
  expect(platform.api.platform.traffic.stats()).toMatchObject({ inFlight: 0, waitingLive: 0 });
});

test('a workspace whose calls hang, over any number of keys, leaves others their calls to the same provider', async () => {
  scripted = await startScriptedPlatform({ SLUICE_CONNECTIONS: '8', SLUICE_CALLS_PER_CREDENTIAL: '2' });
  const { upstream, platform } = scripted;
  const other = { ...platform, adminKey: await createWorkspace(platform) };
  await storeVirtualKey(other, 'scripted', upstream.url.href);
  const { promise: answered, resolve: tell } = Promise.withResolvers<void>();
  upstream.script(async (reply, request) => {
    if (request.body.includes('hang')) await answered;
    reply.json(200, completion);
  });
  for (const slug of ['k1', 'k2', 'k3', 'k4']) await storeVirtualKey(platform, slug, upstream.url.href);
  const hanging = ['k1', 'k1', 'k2', 'k2', 'k3', 'k3'].map((slug) => ask(null, body(`@${slug}/hang`)));
  await upstream.until(() => upstream.requests.length === 6);
  expect(await ask(null, body('@k4/hang'))).toMatchObject({ status: 429, code: 'too_many_calls', retryAfter: '1' });
  expect((await postJson(other, '/chat/completions', body())).status).toBe(200);
  tell();
  expect((await Promise.all(hanging)).map(({ status }) => status)).toEqual([200, 200, 200, 200, 200, 200]);
  expect((await ask(null, body('@k4/m'))).status).toBe(200);
});
