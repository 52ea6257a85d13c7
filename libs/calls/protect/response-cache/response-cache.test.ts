import { beforeEach, describe, expect, test } from 'vitest';
import type { ForwardRequest, JsonAnswer, Outcome, StreamAnswer, Target } from '#libs/calls/call.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { createLogger } from '#libs/kernel/logging/logger.ts';
import { chatRequest, chunk, completion, payloads, readStream } from '#test/forwarding-rig.ts';
import type { CacheEntry } from './cache-entry.ts';
import { readCacheOptions, type CacheOptions } from './cache-options.ts';
import { createResponseCache, type ResponseCache } from './response-cache.ts';
import type { StoredAnswers } from './stored-answers.ts';

const target: Target = {
  provider: 'openai',
  baseUrl: new URL('https://api.openai.com/v1'),
  apiKey: null,
  settings: {},
  secrets: {},
  secretOrigin: null,
  label: 'key',
};
const scope = { workspaceId: 'ws_a', credentialId: 'vk_1' };
const plain: CacheOptions = { maxAgeMs: 60_000, namespace: '', refresh: false, disabled: false };

let now: number;
let calls: number;
let stored: Map<string, CacheEntry>;
let reader: StoredAnswers['find'] | null;
let cache: ResponseCache;

const logger = createLogger({ name: 'test', level: 'silent' });

function newCache(more: Partial<Parameters<typeof createResponseCache>[0]> = {}): ResponseCache {
  return createResponseCache({
    clock: { now: () => now },
    logger,
    memoryBytesMax: 10_000_000,
    stored: {
      find: async (workspaceId, key) =>
        reader ? reader(workspaceId, key) : (stored.get(`${workspaceId}/${key.toString('hex')}`) ?? null),
      keep: async (rows) => {
        for (const { workspaceId, key, entry } of rows) stored.set(`${workspaceId}/${key.toString('hex')}`, entry);
      },
      sweep: async () => 0,
    },
    ...more,
  });
}

beforeEach(() => {
  now = 1_000_000;
  calls = 0;
  stored = new Map();
  reader = null;
  cache = newCache();
});

const jsonAnswer = (more: Partial<JsonAnswer> = {}): JsonAnswer => ({
  kind: 'json',
  status: 200,
  headers: { 'x-ratelimit-remaining-requests': '1' },
  providerRequestId: 'req_1',
  attempts: [{ startedAt: 0, durationMs: 1, status: 200, errorCode: null }],
  usage: { inputTokens: 12, cachedTokens: 4, outputTokens: 7, reasoningTokens: 3 },
  model: 'gpt-test-2026',
  finishReason: 'stop',
  body: Buffer.from(JSON.stringify({ ...completion, id: `call ${calls}` })),
  contentType: 'application/json',
  ...more,
});

const streamAnswer = (list: readonly string[], end: { complete: boolean; error?: GatewayError }): StreamAnswer => ({
  ...jsonAnswer(),
  usage: null,
  kind: 'stream',
  events: (async function* () {
    for (const payload of list) yield [payload];
    if (end.error) throw end.error;
  })(),
  done: Promise.resolve({
    usage: null,
    model: 'm',
    finishReason: 'stop',
    complete: end.complete,
    firstEventMs: 1,
    error: end.error ?? null,
  }),
});

type Ask = {
  request?: Partial<ForwardRequest> & { text?: string };
  options?: Partial<CacheOptions>;
  scope?: Partial<typeof scope>;
  target?: Partial<Target>;
  answer?: () => Outcome;
};

/** Makes one call. Returns the cache status and the answer. */
async function ask(how: Ask = {}): Promise<[string | undefined, Outcome]> {
  const make = async (): Promise<Outcome> => {
    calls += 1;
    return how.answer?.() ?? jsonAnswer();
  };
  const request = chatRequest(how.request);
  const outcome = await cache.through(
    { ...scope, ...how.scope },
    { ...plain, ...how.options },
    { request, target: { ...target, ...how.target }, make },
  );
  return [outcome.kind === 'failed' ? undefined : outcome.headers['x-gateway-cache-status'], outcome];
}
const status = async (how?: Ask) => (await ask(how))[0];

describe('what is the same call', () => {
  test('the second of two equal calls is answered from the cache, byte for byte, with usage and without attempts', async () => {
    const [first, made] = await ask();
    const [second, kept] = await ask();
    expect([first, second, calls]).toEqual(['MISS', 'HIT', 1]);
    if (made.kind !== 'json' || kept.kind !== 'json') throw new Error('no body');
    expect(kept.body.equals(made.body)).toBe(true);
    expect(kept).toMatchObject({
      usage: made.usage,
      model: made.model,
      finishReason: 'stop',
      attempts: [],
      status: 200,
    });
    expect(kept.headers).toEqual({ 'x-gateway-cache-status': 'HIT' });
  });

  test('the order of members and white space do not matter', async () => {
    await ask({ request: { text: '{"model":"gpt-test","messages":[{"role":"user","content":"x"}],"top_p":1}' } });
    const text = '{ "top_p":1, "messages":[ {"content":"x","role":"user"} ],"model":"gpt-test" }';
    expect(await status({ request: { text } })).toBe('HIT');
  });

  test.each<[string, Ask]>([
    ['another workspace', { scope: { workspaceId: 'ws_b' } }],
    ['another credential', { scope: { credentialId: 'vk_2' } }],
    ['another namespace', { options: { namespace: 'n' } }],
    ['another provider', { target: { provider: 'mistral' } }],
    ['another host', { target: { baseUrl: new URL('https://example.com/v1') } }],
    ['other settings', { target: { settings: { openai_project: 'p' } } }],
    ['another model', { target: { model: 'gpt-other' } }],
    ['another operation', { request: { operation: 'completions' } }],
    ['another body', { request: { text: '{"model":"gpt-test","messages":[]}' } }],
    ['an override', { request: { edits: { temperature: '0' } } }],
    ['a dropped member', { request: { edits: { messages: undefined } } }],
    ['no strict compliance', { request: { strict: false } }],
  ])('%s is another call', async (_what, how) => {
    await ask();
    expect(await status(how)).toBe('MISS');
    expect(await status(how)).toBe('HIT');
  });

  test('a namespace cannot be chosen so that it reaches another workspace', async () => {
    await ask({ scope: { workspaceId: 'ws_a' }, options: { namespace: 'ws_b' } });
    expect(await status({ scope: { workspaceId: 'ws_b' }, options: { namespace: 'ws_a' } })).toBe('MISS');
    expect(await status({ scope: { workspaceId: 'ws_aws_b' }, options: { namespace: '' } })).toBe('MISS');
  });

  test('numbers that a double cannot distinguish give different keys', async () => {
    const text = (seed: string) => `{"model":"gpt-test","messages":[],"seed":${seed}}`;
    await ask({ request: { text: text('9007199254740993') } });
    expect(await status({ request: { text: text('9007199254740992') } })).toBe('MISS');
    expect(await status({ request: { text: text('9007199254740993') } })).toBe('HIT');
  });
});

describe('how long', () => {
  test('an answer is used up to its maximum age, and a caller may ask for a younger one', async () => {
    await ask();
    now += 30_000;
    expect(await status({ options: { maxAgeMs: 29_000 } })).toBe('MISS');
    now += 59_999;
    expect(await status()).toBe('MISS');
  });

  test('a refresh makes the call again and stores its answer', async () => {
    await ask();
    const [refreshed] = await ask({ options: { refresh: true } });
    const [hit, answer] = await ask();
    expect([refreshed, hit, calls]).toEqual(['REFRESH', 'HIT', 2]);
    expect(answer.kind === 'json' && answer.body.toString()).toContain('call 2');
  });
});

describe('what is not kept', () => {
  const unreachable = new GatewayError('provider_failed', 'upstream_unreachable', 'no');
  test.each<[string, () => Outcome]>([
    ['an error', () => jsonAnswer({ status: 429 })],
    ['a failed check', () => jsonAnswer({ status: 246 })],
    ['no answer', () => ({ kind: 'failed', error: unreachable, attempts: [] })],
    ['an answer beyond the bound', () => jsonAnswer({ body: Buffer.alloc(1_048_577, ' ') })],
  ])('%s', async (_what, answer) => {
    await ask({ answer });
    expect(await status()).toBe('MISS');
  });

  test('a stream that broke off, was cut, or was left is not stored', async () => {
    const request = { stream: true, includeUsage: true };
    const [, died] = await ask({
      request,
      answer: () => streamAnswer(payloads, { complete: false, error: unreachable }),
    });
    await readStream(died as StreamAnswer);
    const [, cut] = await ask({ request, answer: () => streamAnswer(payloads, { complete: false }) });
    await readStream(cut as StreamAnswer);
    const [, left] = await ask({ request, answer: () => streamAnswer(payloads, { complete: true }) });
    for await (const batch of (left as StreamAnswer).events) if (batch.length > 0) break;
    expect(await status({ request, answer: () => streamAnswer(payloads, { complete: true }) })).toBe('MISS');
  });

  test('a caller who wants nothing stored, and a body beyond the limit, get DISABLED', async () => {
    expect(await status({ options: { disabled: true } })).toBe('DISABLED');
    expect(await status({ options: { disabled: true } })).toBe('DISABLED');
    const text = `{"model":"gpt-test","messages":[],"user":"${'x'.repeat(1_100_000)}"}`;
    expect(await status({ request: { text } })).toBe('DISABLED');
    expect(cache.stats().memoryEntries).toBe(0);
  });

  test('memory is limited in bytes', async () => {
    cache = newCache({ memoryBytesMax: 4_000 });
    for (let n = 0; n < 20; n += 1) await ask({ options: { namespace: String(n) } });
    expect(cache.stats().memoryBytes).toBeLessThanOrEqual(4_000);
    expect(cache.stats().memoryEntries).toBeGreaterThan(0);
  });
});

describe('streams', () => {
  const request = { stream: true, includeUsage: true };
  const whole = () => streamAnswer(payloads, { complete: true });

  test('a complete stream is replayed as a stream, with its usage or without', async () => {
    const [, first] = await ask({ request, answer: whole });
    expect((await readStream(first as StreamAnswer)).payloads).toEqual(payloads);
    const [hit, again] = await ask({ request });
    expect(hit).toBe('HIT');
    const replayed = await readStream(again as StreamAnswer);
    expect(replayed.payloads).toEqual(payloads);
    expect(replayed.summary).toMatchObject({ complete: true, error: null, model: 'm' });
    const [, bare] = await ask({ request: { stream: true } });
    expect((await readStream(bare as StreamAnswer)).payloads).toEqual(payloads.slice(0, -1));
  });

  test('a stream without usage is not used for a caller who asks for it, nor for one who wants JSON', async () => {
    const [, first] = await ask({
      request: { stream: true },
      answer: () => streamAnswer([chunk({ content: 'x' }, 'stop')], { complete: true }),
    });
    await readStream(first as StreamAnswer);
    expect(await status({ request, answer: whole })).toBe('MISS');
    expect(await status()).toBe('MISS');
  });

  test('a stored JSON answer is used for a stream', async () => {
    await ask();
    const [hit, answer] = await ask({ request });
    expect(hit).toBe('HIT');
    const { payloads: replayed } = await readStream(answer as StreamAnswer);
    expect(replayed.map((payload) => (JSON.parse(payload) as { object: string }).object)).toEqual(
      replayed.map(() => 'chat.completion.chunk'),
    );
    expect(JSON.parse(replayed.at(-1) ?? '')).toMatchObject({ choices: [], usage: { prompt_tokens: 12 } });
  });
});

describe('the shared level', () => {
  test('another process finds what this one has stored', async () => {
    await ask();
    await cache.stop();
    cache = newCache();
    expect(await status()).toBe('HIT');
    reader = () => Promise.reject(new Error('asked again'));
    expect(await status()).toBe('HIT');
  });

  test('a call is answered when the database is unavailable or slow, and the database is not asked each time', async () => {
    let asked = 0;
    reader = () => {
      asked += 1;
      return Promise.reject(new Error('away'));
    };
    for (const namespace of ['a', 'b', 'c']) expect(await status({ options: { namespace } })).toBe('MISS');
    expect(asked).toBe(1);
    now += 2_000;
    cache = newCache({ readTimeoutMs: 5 });
    reader = () => new Promise(() => {});
    expect(await status({ options: { namespace: 'd' } })).toBe('MISS');
  });
});

describe('what a caller says about the cache', () => {
  const policy = { maxAgeSeconds: 3_600 };

  test('the maximum age is that of the policy, everything else comes from headers', () => {
    expect(readCacheOptions(policy, {})).toEqual({
      maxAgeMs: 3_600_000,
      namespace: '',
      refresh: false,
      disabled: false,
    });
    const headers = {
      'x-portkey-cache-namespace': 'mine',
      'x-gateway-cache-force-refresh': 'true',
      'x-gateway-debug': 'false',
    };
    expect(readCacheOptions(policy, headers)).toEqual({
      maxAgeMs: 3_600_000,
      namespace: 'mine',
      refresh: true,
      disabled: true,
    });
  });

  test.each(['false', ''])('force refresh means nothing as %j', (value) => {
    expect(readCacheOptions(policy, { 'x-gateway-cache-force-refresh': value })?.refresh).toBe(false);
  });

  test('a namespace that is too long is refused with its name', () => {
    const headers = { 'x-gateway-cache-namespace': 'x'.repeat(129) };
    expect(() => readCacheOptions(policy, headers)).toThrow(
      expect.objectContaining({ param: 'x-gateway-cache-namespace' }),
    );
  });
});
