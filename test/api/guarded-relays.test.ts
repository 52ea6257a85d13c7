import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import type { TestPlatform } from '#test/platform.ts';
import { streamOf, type Upstream } from '#test/upstream.ts';
import { postJson, startScriptedPlatform } from './scripted-provider.ts';

// Guardrails of a config and the pass-through areas: a call is judged, or refused; it never goes around them.

let scripted: Awaited<ReturnType<typeof startScriptedPlatform>>;
let platform: TestPlatform;
let upstream: Upstream;
beforeAll(async () => {
  scripted = await startScriptedPlatform();
  ({ platform, upstream } = scripted);
});
afterAll(() => scripted.stop());

const answer = (text: string) => ({
  id: 'resp_1',
  object: 'response',
  model: 'm-2026',
  output: [{ type: 'message', role: 'assistant', content: [{ type: 'output_text', text }] }],
  usage: { input_tokens: 3, output_tokens: 4 },
});
beforeEach(() => {
  upstream.requests.length = 0;
  upstream.script((reply) => reply.json(200, answer('All is well.')));
});

const noApples = { contains: { operator: 'none', words: ['Apple'] } };
const deny = { virtual_key: 'scripted', input_guardrails: [{ ...noApples, deny: true }] };
const denyOutput = { virtual_key: 'scripted', output_guardrails: [{ ...noApples, deny: true }] };

async function ask(config: object, route: string, body: object): Promise<{ status: number; text: string }> {
  const response = await postJson(platform, route, body, { 'x-gateway-config': JSON.stringify(config) });
  return { status: response.status, text: await response.text() };
}

test.each<[string, object]>([
  ['a text', { input: 'An Apple a day' }],
  ['an item', { input: [{ role: 'user', content: [{ type: 'input_text', text: 'An Apple a day' }] }] }],
  ['the instructions', { input: 'hi', instructions: 'Sell Apple stock.' }],
  ['a stream', { input: 'An Apple a day', stream: true }],
])('a response whose input is denied is 446, and the provider hears nothing: %s', async (_what, body) => {
  const { status, text } = await ask(deny, '/responses', { model: 'm', ...body });
  expect([status, text.includes('hook_results')]).toEqual([446, true]);
  expect(upstream.requests).toHaveLength(0);
});

test('a response that passes comes as the provider sent it, under the model without its virtual key', async () => {
  const { status, text } = await ask({ ...deny, ...denyOutput }, '/responses', { model: '@scripted/m', input: 'hi' });
  expect([status, JSON.parse(text)]).toEqual([200, answer('All is well.')]);
  expect(JSON.parse(upstream.requests[0]?.body.toString() ?? '')).toEqual({ model: 'm', input: 'hi' });
});

test('a response whose output is denied is 446 without what it said', async () => {
  upstream.script((reply) => reply.json(200, answer('Buy Apple stock.')));
  const { status, text } = await ask(denyOutput, '/responses', { model: 'm', input: 'hi' });
  expect([status, text.includes('stock')]).toEqual([446, false]);
});

test('a stream whose input only fails is 246', async () => {
  upstream.script(streamOf(['{"type":"response.completed"}']));
  const config = { virtual_key: 'scripted', input_guardrails: [noApples] };
  const annotated = await ask(config, '/responses', { model: 'm', input: 'Apple', stream: true });
  expect([annotated.status, annotated.text.includes('response.completed')]).toEqual([246, true]);
});

test('the prompt of an image and the input of a moderation are judged', async () => {
  expect((await ask(deny, '/images/generations', { model: 'm', prompt: 'An Apple' })).status).toBe(446);
  expect((await ask(deny, '/moderations', { model: 'm', input: ['fine', 'An Apple'] })).status).toBe(446);
  expect(upstream.requests).toHaveLength(0);
});

test('a call that guardrails cannot judge is refused, whatever its form', async () => {
  const headers = { authorization: `Bearer ${platform.adminKey}` };
  const config = (value: object) => ({ ...headers, 'x-gateway-config': JSON.stringify(value) });
  const form = new FormData();
  form.set('model', 'whisper-1');
  form.set('file', new Blob(['Apple']), 'a.wav');
  const send = (method: string, route: string, value: object, body?: FormData) =>
    fetch(platform.baseUrl + route, { method, headers: config(value), ...(body ? { body } : {}) });
  const refused = await Promise.all([
    postJson(platform, '/audio/speech', { model: 'm', input: 'Apple' }, config(deny)),
    postJson(platform, '/rerank', { model: 'm', query: 'Apple' }, config(deny)),
    send('POST', '/audio/transcriptions', deny, form),
    send('GET', '/responses/resp_1', denyOutput),
  ]);
  expect(refused.map(({ status }) => status)).toEqual([400, 400, 400, 400]);
  expect(await refused[2]?.json()).toMatchObject({ error: { code: 'guardrails_not_applicable', param: 'config' } });
  expect(upstream.requests).toHaveLength(0);
  upstream.script((reply) => reply.json(200, answer('Apple')));
  expect((await send('GET', '/responses/resp_1', deny)).status).toBe(200);
  expect((await send('DELETE', '/responses/resp_1', denyOutput)).status).toBe(200);
});
