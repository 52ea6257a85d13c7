import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import { eventually } from '#test/eventually.ts';
import type { UpstreamReply } from '#test/upstream.ts';
import { eventsOf, startFaultRig, type Asked, type FaultRig } from './fault-rig.ts';
import { canary } from './scripted-provider.ts';
import { getFailureCode, sdks } from './sdk.ts';
import { wireKeys } from './wire-keys.ts';

// What goes wrong at a provider, through every wire format: the right status, OpenAI's error body, no silent success.

let rig: FaultRig;
beforeAll(async () => {
  rig = await startFaultRig();
});
afterEach(() => rig.idle());
afterAll(() => rig.stop());

const slugOf = (provider: string): string => `sim-${provider}`;
const quick = { timeouts: { header_ms: 300, idle_ms: 300 } };
/** Another target answers when the format's own fails. */
const rescue = (provider: string, fault: string, more: object = {}) => ({
  strategy: { mode: 'fallback' },
  targets: [
    { virtual_key: slugOf(provider), override_params: { model: bareModelOf(provider, fault) }, ...more },
    { virtual_key: 'sim-openai', override_params: { model: 'sim-small' } },
  ],
});
const kept = () => {
  const { hits, memoryEntries } = rig.platform.api.platform.responseCache.stats();
  return { hits, memoryEntries };
};
const nothing = { hits: 0, memoryEntries: 0 };

const fourKeys = {
  message: expect.stringMatching(/./),
  type: expect.stringMatching(/./),
  param: null,
  code: expect.toSatisfy((code: unknown) => code === null || typeof code === 'string'),
};
const bareModelOf = (provider: string, fault: string): string =>
  `${wireKeys.find((one) => one.provider === provider)?.prefix ?? ''}sim-fault-${fault}`;
const readModel = (provider: string, fault: string): string => `@${slugOf(provider)}/${bareModelOf(provider, fault)}`;

/** An error with OpenAI's four keys and nothing else, that is not taken for an answer and names no secret. */
function expectError(asked: Asked, statuses: readonly number[]): void {
  expect({ status: asked.status, body: asked.body }).toEqual({
    status: expect.toSatisfy((status: number) => statuses.includes(status)),
    body: { error: fourKeys },
  });
  expect(asked.headers.get('content-type')).toMatch(/^application\/json/);
  expect(asked.text).not.toContain(canary);
}

/** All formats at once; says which of them failed. */
async function inEachFormat(check: (provider: string) => Promise<void>): Promise<void> {
  const ended = await Promise.allSettled(wireKeys.map(({ provider }) => check(provider)));
  for (const [index, result] of ended.entries()) {
    if (result.status === 'rejected') {
      throw new Error(`in the format of ${wireKeys[index]?.provider}: ${String(result.reason)}`, {
        cause: result.reason,
      });
    }
  }
}

test.each([
  'invalid-json',
  'truncated-stream',
  'html',
  'empty',
  'null',
  'cut',
  'reset',
  'reset-early',
  'stream-to-json',
  'error-in-stream',
  'error-in-stream-429',
])('%s instead of an answer is an error each time, because it is not kept', async (fault) => {
  await inEachFormat(async (provider) => {
    for (const _ of [1, 2]) {
      const asked = await rig.ask(readModel(provider, fault), { config: { cache: 'simple' } });
      // A provider may tell a status inside its 200.
      const reported = fault === 'error-in-stream' ? [503, 529] : fault === 'error-in-stream-429' ? [429] : [];
      expectError(asked, [502, ...reported]);
    }
  });
  expect(kept()).toEqual(nothing);
});

test.each(['html', 'empty', 'null', 'reset-early', 'error-in-stream', 'error-in-stream-429', 'json-to-stream'])(
  '%s instead of a stream is an error before anything is sent',
  async (fault) => {
    await inEachFormat(async (provider) => {
      // Where JSON can be distinguished from a stream, it is made one.
      if (fault === 'json-to-stream' && provider !== 'bedrock') return;
      const asked = await rig.ask(readModel(provider, fault), { stream: true, config: { cache: 'simple' } });
      const reported = fault === 'error-in-stream' ? [503, 529] : fault === 'error-in-stream-429' ? [429] : [];
      expectError(asked, [502, ...reported]);
    });
    expect(kept()).toEqual(nothing);
  },
);

test('a wrong content type does not spoil the right answer', async () => {
  await inEachFormat(async (provider) => {
    const { body } = await rig.ask(readModel(provider, 'wrong-content-type'));
    expect(body.choices?.[0]).toMatchObject({
      finish_reason: 'stop',
      message: { content: expect.stringMatching(/./) },
    });
    const { text } = await rig.ask(readModel(provider, 'wrong-content-type'), { stream: true });
    const { payloads, done } = eventsOf(text);
    expect(done).toBe(true);
    const said = payloads.map(({ choices }) => choices?.[0]?.delta?.content ?? '').join('');
    expect(said).toBe(body.choices?.[0]?.message.content);
  });
});

const broken = [
  'truncated-stream',
  'cut',
  'reset',
  'invalid-json',
  'damaged-frame',
  'error-in-stream-late',
  'error-event',
];

test.each(broken)(
  '%s: a stream that breaks ends with an error event, without [DONE] and without a finish',
  async (fault) => {
    await inEachFormat(async (provider) => {
      for (const _ of [1, 2]) {
        const config = { cache: 'simple' };
        const { status, text } = await rig.ask(readModel(provider, fault), { stream: true, config });
        expect(status).toBe(200);
        const { payloads, done } = eventsOf(text);
        expect(payloads.at(-1)).toEqual({ error: fourKeys });
        expect(done).toBe(false);
        expect(payloads.flatMap(({ choices }) => choices?.[0]?.finish_reason ?? [])).toEqual([]);
        expect(payloads.filter(({ error }) => error !== undefined)).toHaveLength(1);
      }
    });
    expect(kept()).toEqual(nothing);
  },
);

describe.each(sdks)('$name', ({ OpenAI }) => {
  test.each(broken)('throws for %s', async (fault) => {
    const client = new OpenAI({ apiKey: rig.platform.adminKey, baseURL: rig.platform.baseUrl, maxRetries: 0 });
    const messages = [{ role: 'user' as const, content: 'Hi' }];
    await inEachFormat(async (provider) => {
      const stream = await client.chat.completions.create({
        model: readModel(provider, fault),
        messages,
        stream: true,
      });
      const read = async (): Promise<void> => {
        for await (const { choices } of stream) expect(choices[0]?.finish_reason ?? null).toBeNull();
      };
      expect(await getFailureCode(read())).toBeInstanceOf(OpenAI.APIError);
    });
  });

  test('throws for an answer that is none', async () => {
    const client = new OpenAI({ apiKey: rig.platform.adminKey, baseURL: rig.platform.baseUrl, maxRetries: 0 });
    await inEachFormat(async (provider) => {
      const messages = [{ role: 'user' as const, content: 'Hi' }];
      const error = await getFailureCode(
        client.chat.completions.create({ model: readModel(provider, 'html'), messages }),
      );
      expect(error).toBeInstanceOf(OpenAI.InternalServerError);
      expect(error).toMatchObject({ status: 502, code: 'upstream_invalid_response', param: null });
    });
  });
});

// All at once: they only wait.
test('what hangs, in whatever way, is a 504 that names the target, or another target’s answer', async () => {
  const ways = [
    { fault: 'hang', stream: false },
    { fault: 'hang', stream: true },
    { fault: 'headers-then-hang', stream: false },
    { fault: 'headers-then-hang', stream: true },
    { fault: 'stall', stream: false },
    { fault: 'slow-drip-50ms', stream: true },
  ];
  await inEachFormat(async (provider) => {
    const outcomes = ways.map(async ({ fault, stream }) => {
      const asked = await rig.ask(readModel(provider, fault), { stream, config: quick });
      const rescued = await rig.ask('any', { stream, config: rescue(provider, fault, quick) });
      return { fault, stream, asked, rescued };
    });
    for (const { fault, stream, asked, rescued } of await Promise.all(outcomes)) {
      expectError(asked, [504]);
      const { code, message } = asked.body.error ?? {};
      const by = rescued.headers.get('x-gateway-last-used-option-index');
      expect({ fault, stream, code, message, rescued: rescued.status, by }).toEqual({
        fault,
        stream,
        code: expect.stringMatching(/^upstream_(headers|idle)_timeout$/),
        message: expect.stringContaining(slugOf(provider)),
        rescued: 200,
        by: 'config.targets[1]',
      });
    }
  });
});

test.each([
  ['request_timeout', { request_timeout: 300 }, 'upstream_answer_timeout'],
  ['total_ms', { timeouts: { total_ms: 300 } }, 'upstream_total_timeout'],
])('an answer that drips for ever is given up after %s', async (_what, config, code) => {
  await inEachFormat(async (provider) => {
    const asked = await rig.ask(readModel(provider, 'slow-drip-20ms'), { config });
    expectError(asked, [504]);
    expect(asked.body.error).toMatchObject({ code, message: expect.stringContaining(slugOf(provider)) });
  });
});

test('a stream that falls silent in the middle ends with an error event that names the target', async () => {
  await inEachFormat(async (provider) => {
    const { text } = await rig.ask(readModel(provider, 'stall'), { stream: true, config: quick });
    const { payloads, done } = eventsOf(text);
    expect(payloads.length).toBeGreaterThan(1);
    expect(payloads.at(-1)?.error).toEqual({ ...fourKeys, code: 'upstream_idle_timeout' });
    expect(payloads.at(-1)?.error?.message).toContain(slugOf(provider));
    expect(done).toBe(false);
  });
});

test('a stream that said everything and is not closed is whole', async () => {
  await inEachFormat(async (provider) => {
    const { text } = await rig.ask(readModel(provider, 'hold-open'), { stream: true, config: quick });
    const { payloads, done } = eventsOf(text);
    expect(payloads.filter(({ error }) => error !== undefined)).toEqual([]);
    expect(payloads.flatMap(({ choices }) => choices?.[0]?.finish_reason ?? [])).toEqual(['stop']);
    expect(done).toBe(true);
  });
});

test('nothing is left of calls that were given up: no call, no stream, no socket', async () => {
  const metrics = async () => await (await fetch(rig.platform.baseUrl.replace('/v1', '/metrics'))).text();
  const gauge = (text: string, name: string) => Number(new RegExp(`^sluice_${name} (\\d+)$`, 'm').exec(text)?.[1]);
  await rig.idle();
  // Those that wait for the next call to the simulator, which says that it keeps them.
  const before = gauge(await metrics(), 'egress_sockets');
  const endings: ((reply: UpstreamReply) => unknown)[] = [
    () => null,
    (reply) => reply.head(200, { 'content-type': 'text/event-stream' }),
    (reply) => reply.raw('HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{"a":'),
    (reply) => reply.raw('HTTP/1.1 200 OK\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\nx'),
    (reply) => reply.raw('nonsense\r\n\r\n'),
    (reply) => reply.cut(),
    (reply) => reply.reset(),
  ];
  rig.intercept((reply, text) => {
    endings[Number(/ending-(\d)/.exec(text)?.[1])]?.(reply);
    return true;
  });
  await inEachFormat(async (provider) => {
    const prefix = wireKeys.find((one) => one.provider === provider)?.prefix ?? '';
    const calls = endings.flatMap((_end, index) =>
      [false, true].map((stream) =>
        rig.ask(`@front-${provider}/${prefix}sim-small`, { stream, config: quick, content: `ending-${index}` }),
      ),
    );
    for (const asked of await Promise.all(calls)) expectError(asked, [502, 504]);
  });
  expect(rig.arrivals).toHaveLength(wireKeys.length * endings.length * 2);
  await eventually(
    metrics,
    (text) =>
      gauge(text, 'forwarding_open_calls') === 0 &&
      gauge(text, 'forwarding_open_streams') === 0 &&
      gauge(text, 'egress_sockets') <= before,
    { timeoutMs: 10_000 },
  );
  expect(rig.front.connections().open).toBe(0);
});
