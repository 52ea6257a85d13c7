import { request as httpRequest } from 'node:http';
import { expect, test, vi } from 'vitest';
import { Secret } from '#libs/kernel/logging/secret.ts';
import { createSimulator } from './server.ts';
import { startTestSimulator } from '#test/test-simulator.ts';
import type { StatsSnapshot } from './stats.ts';

const { url, chat, openai, simulator } = await startTestSimulator();
const authorization = { authorization: 'Bearer sk-test' };
const getFailureCode = async (response: Response) =>
  ((await response.json()) as { error: Record<string, unknown> }).error;

test('a missing key and the key `invalid` are 401 in the four-key shape', async () => {
  for (const headers of [
    {},
    { authorization: 'Bearer ' },
    { authorization: 'Bearer invalid' },
    { authorization: 'Basic x' },
  ]) {
    const response = await fetch(`${url}/v1/chat/completions`, { method: 'POST', headers, body: '{}' });
    expect(response.status).toBe(401);
    expect(Object.keys(await getFailureCode(response))).toEqual(['message', 'type', 'param', 'code']);
  }
});

test('a required key is the only one accepted, and a wrong one is not repeated', async () => {
  const guarded = createSimulator({ requiredKey: new Secret('right-key') });
  const { url } = await guarded.start();
  const models = (key: string) => fetch(`${url}/v1/models`, { headers: { authorization: `Bearer ${key}` } });
  expect((await models('right-key')).status).toBe(200);
  const wrong = await models('wrong-key-canary');
  expect(wrong.status).toBe(401);
  expect(await getFailureCode(wrong)).toMatchObject({
    code: 'invalid_api_key',
    message: expect.not.stringContaining('wrong-key'),
  });
  await guarded.stop();
});

test('requests, statuses and calls are counted, calls only when asked', async () => {
  await fetch(`${url}/stats/reset`, { method: 'POST' });
  await chat({});
  await chat({ user: 'line-1' }, { 'x-simulator-count': '1' });
  await chat({ user: 'line-1' }, { 'x-simulator-count': '1' });
  await chat({}, { 'x-simulator-count': '1' });
  await chat({ messages: [] });
  const stats = (await (await fetch(`${url}/stats`)).json()) as StatsSnapshot;
  expect(stats.requests['POST /v1/chat/completions']).toBe(5);
  expect(stats.statuses['POST /v1/chat/completions']).toEqual({ 200: 4, 400: 1 });
  expect(stats.calls).toMatchObject({ 'line-1': 2 });
  expect(Object.values(stats.calls).sort((a, b) => a - b)).toEqual([1, 2]);
  await fetch(`${url}/stats/reset`, { method: 'POST' });
  expect(simulator.stats().calls).toEqual({});
});

test('no more keys are counted than the bound allows', async () => {
  const counting = createSimulator({ countCalls: true, countedKeysMax: 2 });
  const { url } = await counting.start();
  for (const user of ['a', 'b', 'c', 'a', 'd']) {
    const body = JSON.stringify({ model: 'm', user, messages: [{ role: 'user', content: 'x' }] });
    await fetch(`${url}/v1/chat/completions`, { method: 'POST', headers: authorization, body });
  }
  expect(counting.stats()).toMatchObject({ calls: { a: 2, b: 1 }, calls_dropped: 2 });
  await counting.stop();
});

test('the configured limit is enforced for each key and shown in the headers', async () => {
  const limited = createSimulator({ requestsPerMinute: 1, clock: { now: () => 0 } });
  const { url } = await limited.start();
  const ask = (key: string) =>
    fetch(`${url}/v1/embeddings`, {
      method: 'POST',
      headers: { authorization: `Bearer ${key}` },
      body: '{"model":"m","input":"x"}',
    });
  const first = await ask('a');
  expect([first.status, first.headers.get('x-ratelimit-remaining-requests')]).toEqual([200, '0']);
  const second = await ask('a');
  expect([second.status, second.headers.get('retry-after'), second.headers.get('x-ratelimit-reset-requests')]).toEqual([
    429,
    '60',
    '1m0s',
  ]);
  expect((await ask('b')).status).toBe(200);
  await limited.stop();
});

test('latency comes from the header before the model name, and a wrong one is refused', async () => {
  const spent = async (model: string, header?: string) => {
    const response = await chat({ model }, header === undefined ? {} : { 'x-simulator-latency': header });
    return [response.status, response.headers.get('openai-processing-ms')];
  };
  expect(await spent('sim-text+12ms')).toEqual([200, '12']);
  expect(await spent('sim-text+10s', '3ms')).toEqual([200, '3']);
  expect(await spent('sim-text', 'soon')).toEqual([400, '0']);
});

test('a client that leaves a slow answer or a stream is counted as aborted', async () => {
  simulator.resetStats();
  const early = new AbortController();
  const waiting = fetch(`${url}/v1/embeddings`, {
    method: 'POST',
    headers: { ...authorization, 'x-simulator-latency': '10s' },
    body: '{"model":"m","input":"x"}',
    signal: early.signal,
  });
  await vi.waitFor(() => expect(simulator.stats().requests['POST /v1/embeddings']).toBe(1));
  early.abort();
  await expect(waiting).rejects.toThrow('aborted');
  const stream = await openai.chat.completions.create({
    model: 'sim-text+1tps',
    stream: true,
    messages: [{ role: 'user', content: 'x' }],
  });
  for await (const _ of stream) break;
  await vi.waitFor(() => expect(simulator.stats()).toMatchObject({ aborted_requests: 2, open_requests: 0 }));
});

test('stop ends hung requests and open streams, twice is no harm, and nothing stays open', async () => {
  const other = createSimulator();
  const { url } = await other.start();
  const hung = new Promise<string>((resolve) => {
    const request = httpRequest(`${url}/v1/chat/completions`, { method: 'POST', headers: authorization });
    request.on('error', (error: NodeJS.ErrnoException) => resolve(error.code ?? ''));
    request.end('{"model":"sim-fault-hang","messages":[{"role":"user","content":"x"}]}');
  });
  const stream = await fetch(`${url}/v1/chat/completions`, {
    method: 'POST',
    headers: authorization,
    body: '{"model":"sim-text+1tps","stream":true,"messages":[{"role":"user","content":"x"}]}',
  });
  await vi.waitFor(() => expect(other.stats().open_requests).toBe(2));
  await Promise.all([other.stop(), other.stop()]);
  expect(await hung).toBe('ECONNRESET');
  await expect(stream.text()).rejects.toThrow('terminated');
  await vi.waitFor(() => expect(other.stats()).toMatchObject({ open_connections: 0, open_requests: 0 }));
  await expect(fetch(`${url}/health`)).rejects.toThrow('fetch failed');
});
