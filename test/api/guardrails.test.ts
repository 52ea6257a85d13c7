import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { eventually } from '#test/eventually.ts';
import { completion, payloads } from '#test/forwarding-rig.ts';
import { startPlatform, type TestPlatform } from '#test/platform.ts';
import { startUpstream, streamOf, type Upstream, type UpstreamScript } from '#test/upstream.ts';
import { chatLine, resultsOf, runBatch } from './batch-kit.ts';
import { postJson, storeVirtualKey } from './scripted-provider.ts';
import { getFailureCode, sdks } from './sdk.ts';

const [sdk] = sdks;
if (!sdk) throw new Error('no SDK');

let platform: TestPlatform;
let upstream: Upstream;
beforeAll(async () => {
  upstream = await startUpstream();
  platform = await startPlatform({ environment: { SLUICE_EGRESS_ALLOW: '127.0.0.0/8' } });
  await storeVirtualKey(platform, 'scripted', upstream.url.href);
});
afterAll(async () => {
  await platform.stop();
  await upstream.stop();
});

const say =
  (content: string): UpstreamScript =>
  (reply) =>
    reply.json(200, { ...completion, choices: [{ index: 0, message: { role: 'assistant', content } }] });
beforeEach(() => {
  upstream.requests.length = 0;
  upstream.script(say('All is well.'));
});

const noApples = { 'default.contains': { operator: 'none', words: ['Apple'] } };
const body = (content: string, more: object = {}) => ({
  model: '@scripted/m',
  messages: [{ role: 'user', content }],
  ...more,
});

const getJson = (route: string) =>
  fetch(`${platform.baseUrl}${route}`, { headers: { authorization: `Bearer ${platform.adminKey}` } });

async function ask(
  config: object,
  sent: object,
): Promise<{ status: number; json: Record<string, unknown>; response: Response }> {
  const response = await postJson(platform, '/chat/completions', sent, { 'x-gateway-config': JSON.stringify(config) });
  const text = await response.text();
  const json = text.startsWith('{') ? (JSON.parse(text) as Record<string, unknown>) : { text };
  return { status: response.status, json, response };
}

test('a denied input is 446 with its results, and the provider hears nothing', async () => {
  const config = { input_guardrails: [{ ...noApples, deny: true, id: 'fruit' }] };
  const { status, json, response } = await ask(config, body('An Apple a day'));
  expect([status, response.statusText]).toEqual([446, 'Guardrail Denied']);
  expect(json).toMatchObject({
    error: { type: 'hooks_failed', param: null, code: null },
    hook_results: { before_request_hooks: [{ id: 'fruit', verdict: false, deny: true }], after_request_hooks: [] },
  });
  expect(upstream.requests).toHaveLength(0);
  expect((await ask(config, body('A pear a day'))).status).toBe(200);
});

test('a denied stream is 446 before it begins', async () => {
  upstream.script(streamOf(payloads));
  const config = { before_request_hooks: [{ ...noApples, deny: true }] };
  const denied = await ask(config, body('Apple', { stream: true }));
  expect([denied.status, denied.response.statusText]).toEqual([446, 'Guardrail Denied']);
  expect(upstream.requests).toHaveLength(0);
  const passed = await ask(config, body('pear', { stream: true }));
  expect([passed.status, String(passed.json['text']).includes('[DONE]')]).toEqual([200, true]);
  const annotated = await ask({ input_guardrails: [noApples] }, body('Apple', { stream: true }));
  expect(annotated.response.statusText).toBe('Guardrail Failed');
  expect([annotated.status, String(annotated.json['text']).includes('[DONE]')]).toEqual([246, true]);
});

test('a denied output is 446, and one that only fails is 246 with the answer', async () => {
  upstream.script(say('Buy Apple stock.'));
  const denied = await ask({ output_guardrails: [{ ...noApples, deny: true }] }, body('x'));
  expect(denied.status).toBe(446);
  expect(JSON.stringify(denied.json)).not.toContain('stock');
  const annotated = await ask(
    { after_request_hooks: [{ checks: [{ id: 'default.contains', parameters: noApples['default.contains'] }] }] },
    body('x'),
  );
  expect([annotated.status, annotated.response.statusText]).toEqual([246, 'Guardrail Failed']);
  expect(annotated.json).toMatchObject({
    choices: [{ message: { content: 'Buy Apple stock.' } }],
    hook_results: { after_request_hooks: [{ verdict: false, deny: false }] },
  });
});

test('a stream whose answer is denied is 446 and no word of it is sent; one that is annotated ends with the results', async () => {
  const chunk = JSON.stringify({
    id: 'c',
    choices: [{ index: 0, delta: { content: 'Apple' }, finish_reason: 'stop' }],
  });
  upstream.script(streamOf([chunk]));
  const denied = await ask({ output_guardrails: [{ ...noApples, deny: true }] }, body('x', { stream: true }));
  expect([denied.status, JSON.stringify(denied.json).includes('"delta"')]).toEqual([446, false]);
  const metadata = { team: 'a', n: 5, yes: true, nothing: null, nested: { list: ['x'] } };
  const response = await postJson(platform, '/chat/completions', body('x', { stream: true }), {
    'x-gateway-config': JSON.stringify({ output_guardrails: [{ ...noApples, id: 'fruit' }] }),
    'x-gateway-trace-id': 'annotated-stream',
    'x-gateway-metadata': JSON.stringify(metadata),
  });
  const events = (await response.text()).split('\n\n').map((event) => event.replace('data: ', ''));
  expect([response.status, events[0], events[2]]).toEqual([200, chunk, '[DONE]']);
  expect(JSON.parse(events[1] ?? '')).toMatchObject({
    choices: [],
    hook_results: { after_request_hooks: [{ id: 'fruit', verdict: false }] },
  });
  const logged = await eventually(
    async () =>
      (await (await getJson('/logs?trace_id=annotated-stream')).json()) as {
        data: { status: number; metadata: object }[];
      },
    ({ data }) => data.length > 0,
  );
  // Values that are no texts count as their JSON text.
  const texts = { team: 'a', n: '5', yes: 'true', nothing: 'null', nested: '{"list":["x"]}' };
  expect(logged.data).toMatchObject([{ status: 246, metadata: texts }]);
});

test('the official SDK reads an annotated stream to its end', async () => {
  upstream.script(streamOf(payloads));
  const client = new sdk.OpenAI({ apiKey: platform.adminKey, baseURL: platform.baseUrl });
  const headers = { 'x-gateway-config': JSON.stringify({ output_guardrails: [noApples] }) };
  const sent = { model: '@scripted/m', messages: [{ role: 'user' as const, content: 'x' }], stream: true as const };
  const stream = await client.chat.completions.create(sent, { headers });
  const chunks: unknown[] = [];
  for await (const chunk of stream) chunks.push(chunk);
  expect(chunks.at(-1)).toMatchObject({ hook_results: { after_request_hooks: [{ verdict: true }] } });
});

test('a fallback that lists 446 asks the next target', async () => {
  const config = {
    strategy: { mode: 'fallback', on_status_codes: [446] },
    targets: [
      {
        virtual_key: 'scripted',
        override_params: { model: 'first' },
        output_guardrails: [{ ...noApples, deny: true }],
      },
      { virtual_key: 'scripted', override_params: { model: 'second' } },
    ],
  };
  upstream.script([say('Apple'), say('pear')]);
  const { status, json, response } = await ask(config, body('x'));
  expect(status).toBe(200);
  expect(json).toMatchObject({ choices: [{ message: { content: 'pear' } }] });
  expect(response.headers.get('x-gateway-last-used-option-index')).toBe('config.targets[1]');
  expect(upstream.requests).toHaveLength(2);
});

test('a kept answer is judged again', async () => {
  upstream.script(say('Apple pie'));
  const cache = { mode: 'simple' };
  const sent = body('what to bake?');
  expect((await ask({ cache }, sent)).response.headers.get('x-gateway-cache-status')).toBe('MISS');
  const denied = await ask({ cache, output_guardrails: [{ ...noApples, deny: true }] }, sent);
  expect([denied.status, denied.response.headers.get('x-gateway-cache-status')]).toEqual([446, 'HIT']);
});

test('a guardrail that could never be evaluated is an error of the config', async () => {
  const { status, json } = await ask({ input_guardrails: [{ regexMatch: { rule: '(?=x)' } }] }, body('x'));
  expect(status).toBe(400);
  expect(json).toMatchObject({ error: { param: 'x-gateway-config.input_guardrails', code: 'invalid_value' } });
  const stored = await postJson(platform, '/configs', {
    name: 'bad',
    config: { input_guardrails: [{ webhook: { webhookURL: 'http://169.254.169.254/' } }] },
  });
  expect(stored.status).toBe(400);
});

test('the official SDK sees 446 as an error and 246 as an answer', async () => {
  const client = new sdk.OpenAI({ apiKey: platform.adminKey, baseURL: platform.baseUrl, maxRetries: 2 });
  const call = (guardrail: object) =>
    client.chat.completions.create(body('Apple') as never, {
      headers: { 'x-gateway-config': JSON.stringify({ input_guardrails: [guardrail] }) },
    });
  expect(await getFailureCode(call({ ...noApples, deny: true }))).toMatchObject({ status: 446, type: 'hooks_failed' });
  expect(await call(noApples)).toMatchObject({ choices: [{ message: { content: 'All is well.' } }] });
});

test('a batch line that is denied ends in the error file with 446, the others in the output file', async () => {
  const client = new sdk.OpenAI({ apiKey: platform.adminKey, baseURL: platform.baseUrl });
  const lines = ['pear', 'Apple', 'plum'].map((fruit) =>
    chatLine(fruit, { model: 'm', messages: [{ role: 'user', content: fruit }] }),
  );
  const config = { virtual_key: 'scripted', input_guardrails: [{ ...noApples, deny: true }] };
  const withConfig = client.withOptions({ defaultHeaders: { 'x-gateway-config': JSON.stringify(config) } });
  const batch = await runBatch(sdk, withConfig, lines);
  expect(batch.request_counts).toEqual({ total: 3, completed: 2, failed: 1 });
  const { output, errors } = await resultsOf(client, batch);
  expect(output.map((line) => line.custom_id)).toEqual(['pear', 'plum']);
  expect(errors[0]).toMatchObject({
    custom_id: 'Apple',
    response: { status_code: 446, body: { error: { type: 'hooks_failed' } } },
  });
});
