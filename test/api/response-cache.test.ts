import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { eventually } from '#test/eventually.ts';
import { completion, payloads } from '#test/forwarding-rig.ts';
import type { TestPlatform } from '#test/platform.ts';
import { streamOf, type Upstream, type UpstreamScript } from '#test/upstream.ts';
import { postJson, startScriptedPlatform, storeVirtualKey } from './scripted-provider.ts';
import { createWorkspace } from './second-workspace.ts';

let scripted: Awaited<ReturnType<typeof startScriptedPlatform>>;
let platform: TestPlatform;
let upstream: Upstream;
beforeAll(async () => {
  scripted = await startScriptedPlatform();
  ({ platform, upstream } = scripted);
});
afterAll(() => scripted.stop());

let number = 0;
const ok: UpstreamScript = (reply) => {
  number += 1;
  reply.json(200, { ...completion, id: `chatcmpl-${number}` });
};
beforeEach(() => {
  upstream.requests.length = 0;
  upstream.script(ok);
});

let question = 0;
/** A question that nobody asked before. */
const fresh = (): Record<string, unknown> => {
  question += 1;
  return { model: '@scripted/m', messages: [{ role: 'user', content: `question ${question}` }] };
};
const cached = { 'x-gateway-config': JSON.stringify({ cache: { mode: 'simple', max_age: 60 } }) };

async function ask(
  body: unknown,
  headers: Record<string, string> = cached,
  as = platform,
): Promise<{ status: number; cache: string | null; text: string }> {
  const response = await postJson(as, '/chat/completions', body, headers);
  return {
    status: response.status,
    cache: response.headers.get('x-gateway-cache-status'),
    text: await response.text(),
  };
}

test('without a cache in the config, or without a config, nothing is cached, and that is said', async () => {
  const body = fresh();
  for (let n = 0; n < 2; n += 1) expect((await ask(body, {})).cache).toBe('DISABLED');
  expect((await ask(body, { 'x-gateway-config': '{"retry":{"attempts":1}}' })).cache).toBe('DISABLED');
  expect(upstream.requests).toHaveLength(3);
});

test('the second of two equal calls is a hit: the same bytes, no call, and a log record without attempts', async () => {
  const body = fresh();
  const first = await ask(body);
  const second = await ask(body, { ...cached, 'x-gateway-trace-id': 'a'.repeat(32) });
  expect([first.cache, second.cache, second.status]).toEqual(['MISS', 'HIT', 200]);
  expect(second.text).toBe(first.text);
  expect(JSON.parse(second.text)).toMatchObject({ usage: { total_tokens: 19 } });
  expect(upstream.requests).toHaveLength(1);
  const list = await eventually(
    async () => {
      const response = await fetch(`${platform.baseUrl}/logs?trace_id=${'a'.repeat(32)}`, {
        headers: { authorization: `Bearer ${platform.adminKey}` },
      });
      return (await response.json()) as { data: { attempts: number; status: number }[] };
    },
    ({ data }) => data.length > 0,
  );
  expect(list.data[0]).toMatchObject({ attempts: 0, status: 200 });
});

test('the header alone turns the cache on', async () => {
  const body = fresh();
  const headers = { 'x-gateway-cache': 'simple' };
  expect([(await ask(body, headers)).cache, (await ask(body, headers)).cache]).toEqual(['MISS', 'HIT']);
});

test('force refresh counts as true only', async () => {
  const body = fresh();
  await ask(body);
  expect((await ask(body, { ...cached, 'x-gateway-cache-force-refresh': 'false' })).cache).toBe('HIT');
  const refreshed = await ask(body, { ...cached, 'x-gateway-cache-force-refresh': 'true' });
  expect(refreshed.cache).toBe('REFRESH');
  expect((await ask(body)).text).toBe(refreshed.text);
});

test('a namespace is a partition of its own', async () => {
  const body = fresh();
  await ask(body);
  const headers = { ...cached, 'x-gateway-cache-namespace': 'mine' };
  expect([(await ask(body, headers)).cache, (await ask(body, headers)).cache]).toEqual(['MISS', 'HIT']);
});

test('callers whose forwarded headers differ get no answer of each other', async () => {
  const body = fresh();
  const config = { cache: { mode: 'simple', max_age: 60 }, forward_headers: ['x-customer'] };
  const as = (customer: string) => ({ 'x-gateway-config': JSON.stringify(config), 'x-customer': customer });
  const answers = [await ask(body, as('one')), await ask(body, as('two')), await ask(body, as('one'))];
  expect(answers.map(({ cache }) => cache)).toEqual(['MISS', 'MISS', 'HIT']);
  expect(upstream.requests.map(({ headers }) => headers['x-customer'])).toEqual(['one', 'two']);
});

test('errors are never kept', async () => {
  const body = fresh();
  upstream.script([(reply) => reply.json(500, { error: { message: 'x' } }), ok]);
  expect(await ask(body)).toMatchObject({ status: 500, cache: 'MISS' });
  expect(await ask(body)).toMatchObject({ status: 200, cache: 'MISS' });
});

test('a complete stream is replayed as a stream, a cut one is not kept', async () => {
  const body = { ...fresh(), stream: true, stream_options: { include_usage: true } };
  upstream.script([
    async (reply) => {
      reply.head(200, { 'content-type': 'text/event-stream' });
      await reply.write(`data: ${payloads[0] ?? ''}\n\n`);
      reply.cut();
    },
    streamOf(payloads),
  ]);
  expect((await ask(body)).text).toContain('"error"');
  const whole = await ask(body);
  const replayed = await ask(body);
  expect([whole.cache, replayed.cache]).toEqual(['MISS', 'HIT']);
  expect(replayed.text).toBe(whole.text);
  expect(replayed.text.trimEnd().endsWith('data: [DONE]')).toBe(true);
  expect(upstream.requests).toHaveLength(2);
});

test('a kept JSON answer serves a stream', async () => {
  const body = fresh();
  await ask(body);
  const streamed = await ask({ ...body, stream: true });
  expect(streamed.cache).toBe('HIT');
  expect(streamed.text).toContain('"chat.completion.chunk"');
  expect(streamed.text).toContain('"content":"Hi"');
});

test('nothing of one workspace is served to another, whatever it puts into its headers', async () => {
  const body = fresh();
  await ask(body);
  const other = { ...platform, adminKey: await createWorkspace(platform) };
  await storeVirtualKey(other, 'scripted', upstream.url.href);
  expect((await ask(body, cached, other)).cache).toBe('MISS');
  expect((await ask(body, { ...cached, 'x-gateway-cache-namespace': '../' }, other)).cache).toBe('MISS');
  expect((await ask(body, cached, other)).cache).toBe('HIT');
});

test('another credential of the same workspace is another call', async () => {
  const body = fresh();
  await ask(body);
  await storeVirtualKey(platform, 'second', upstream.url.href);
  expect((await ask({ ...body, model: '@second/m' })).cache).toBe('MISS');
});

test('what one process keeps, another finds', async () => {
  const body = fresh();
  const first = await ask(body);
  await eventually(
    () => platform.database.db.selectFrom('response_cache').select('body').execute(),
    // Other answers are as long.
    (rows) => rows.some((row) => row.body.toString() === first.text),
  );
  const { composeApi } = await import('#apps/api/compose.ts');
  const { ApiConfig } = await import('#apps/api/config.ts');
  const { stopAll } = await import('#libs/kernel/lifecycle.ts');
  const { startAll } = await import('#test/start-parts.ts');
  const { createLogger } = await import('#libs/kernel/logging/logger.ts');
  const logger = createLogger({ name: 'test', level: 'silent' });
  const api = await composeApi(ApiConfig.parse(platform.environment), logger);
  await startAll(api.parts, logger);
  try {
    const second = await ask(body, cached, { ...platform, baseUrl: `${api.url()}/v1` });
    expect(second).toEqual({ status: 200, cache: 'HIT', text: first.text });
  } finally {
    await stopAll(api.parts, logger);
  }
});

test('options out of bounds are refused by name', async () => {
  const response = await postJson(platform, '/chat/completions', fresh(), { ...cached, 'x-gateway-cache-ttl': '59' });
  expect(response.status).toBe(400);
  expect(await response.json()).toMatchObject({ error: { param: 'x-gateway-cache-ttl' } });
});
