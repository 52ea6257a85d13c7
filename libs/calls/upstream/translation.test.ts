import { afterEach, describe, expect, test } from 'vitest';
import { Secret } from '#libs/kernel/logging/secret.ts';
import type { Provider } from '#libs/providers/provider.ts';
import { chatRequest, readStream, startForwardingRig, type ForwardingRig } from '#test/forwarding-rig.ts';
import type { UpstreamScript } from '#test/upstream.ts';
import type { JsonAnswer, StreamAnswer } from '#libs/calls/call.ts';

// A provider that differs from OpenAI in everything. The contract must hold for future providers.
type Answer = { said: string; in: number; out: number };
const toCompletion = ({ said, in: input, out }: Answer) => ({
  object: 'chat.completion',
  choices: [{ index: 0, message: { role: 'assistant', content: said }, finish_reason: 'stop' }],
  usage: { prompt_tokens: input, completion_tokens: out },
});
const odd: Provider = {
  id: 'odd',
  baseUrlOf: () => null,
  needsCredential: true,
  clientHeaders: ['odd-beta'],
  requestIdHeaders: ['odd-id'],
  readRateHeaders: ({ 'odd-left': left }) =>
    typeof left === 'string' ? { 'x-ratelimit-remaining-requests': left } : {},
  operations: {
    chat: {
      encode: (call, { baseUrl, apiKey }) => {
        const { model, messages, temperature } = call.json();
        return {
          method: 'POST',
          origin: baseUrl.origin,
          path: `/models/${encodeURIComponent(String(model))}${call.stream ? ':stream' : ''}`,
          headers: ['odd-key', apiKey?.reveal() ?? '', ...Object.entries(call.headers).flat()],
          body: Buffer.from(JSON.stringify({ messages, temperature })),
        };
      },
      decode: (body) => toCompletion(body as Answer),
      decodeError: (_status, body) => ({
        error: { message: body, type: null, param: null, code: 'odd_error' },
        ...(body.includes('wait') ? { retryAfterMs: 1_234.5 } : {}),
      }),
      openStream: () => {
        let index = 0;
        return {
          push: ({ event, data }) => {
            if (event === 'bye') {
              return {
                payloads: [JSON.stringify({ choices: [], usage: { prompt_tokens: 1, completion_tokens: index } })],
                done: true,
              };
            }
            if (event === 'oops')
              return { payloads: [], error: { error: { message: data, type: null, param: null, code: 'odd_stream' } } };
            if (event === 'ping') return { payloads: [] };
            index += 1;
            return {
              payloads: [JSON.stringify({ choices: [{ index: 0, delta: { content: data }, finish_reason: null }] })],
            };
          },
        };
      },
      // One byte for the length of the name, one for that of the data, then both.
      openFraming: (onEvent, eventBytesMax) => {
        let pending = Buffer.alloc(0);
        return {
          push: (chunk) => {
            pending = Buffer.concat([pending, chunk]);
            if (pending.length > eventBytesMax) throw new RangeError('too large');
            for (;;) {
              const [name, data] = pending;
              if (name === undefined || data === undefined || pending.length < 2 + name + data) return;
              onEvent({
                event: pending.toString('utf8', 2, 2 + name),
                data: pending.toString('utf8', 2 + name, 2 + name + data),
              });
              pending = pending.subarray(2 + name + data);
            }
          },
          end: () => {},
        };
      },
    },
  },
};

const frame = (event: string, data: string): Buffer =>
  Buffer.concat([Buffer.from([event.length, Buffer.byteLength(data)]), Buffer.from(event + data)]);

let rig: ForwardingRig;
afterEach(async () => rig.stop());

async function start(script: UpstreamScript): Promise<void> {
  rig = await startForwardingRig(script, { providers: (id) => (id === 'odd' ? odd : undefined) });
}

const binary =
  (...frames: Buffer[]): UpstreamScript =>
  async (reply) => {
    reply.head(200, { 'content-type': 'application/octet-stream' });
    for (const byte of Buffer.concat(frames)) await reply.write(Buffer.from([byte]));
    reply.end();
  };

describe('a provider of another dialect', () => {
  test('gets its own request, translated from the client’s with the target’s edits', async () => {
    await start((reply) => reply.json(200, { said: 'Hi', in: 3, out: 1 }, { 'odd-id': 'o1' }));
    const request = chatRequest({ edits: { temperature: '0.5' }, headers: { 'odd-beta': 'b', other: 'x' } });
    const answer = await rig.forwarder.forward(request, { ...rig.target, provider: 'odd', model: 'a/b?c' });
    expect(rig.upstream.requests[0]).toMatchObject({ path: '/models/a%2Fb%3Fc', headers: { 'odd-beta': 'b' } });
    expect(rig.upstream.requests[0]?.headers).not.toHaveProperty('other');
    expect(rig.upstream.requests[0]?.body.toString()).toBe(
      '{"messages":[{"role":"user","content":"hi"}],"temperature":0.5}',
    );
    expect(answer).toMatchObject({
      providerRequestId: 'o1',
      finishReason: 'stop',
      usage: { inputTokens: 3, outputTokens: 1 },
    });
    expect(JSON.parse((answer as JsonAnswer).body.toString())).toEqual(toCompletion({ said: 'Hi', in: 3, out: 1 }));
  });

  test('reports its rate limits under the names of OpenAI, unless they contain a secret', async () => {
    await start((reply) => reply.json(200, { said: 'Hi', in: 3, out: 1 }, { 'odd-left': '7' }));
    const target = { ...rig.target, provider: 'odd' };
    const answer = await rig.forwarder.forward(chatRequest(), target);
    expect(answer).toMatchObject({ headers: { 'x-ratelimit-remaining-requests': '7' } });
    await rig.stop();
    const key = 'sk-odd-0123456789';
    await start((reply) => reply.json(200, { said: 'Hi', in: 3, out: 1 }, { 'odd-left': key }));
    const other = await rig.forwarder.forward(chatRequest(), {
      ...rig.target,
      provider: 'odd',
      apiKey: new Secret(key),
    });
    expect(other).not.toHaveProperty(['headers', 'x-ratelimit-remaining-requests']);
  });

  test('streams in a framing of its own', async () => {
    await start(binary(frame('ping', ''), frame('say', 'né'), frame('say', '😀'), frame('bye', '')));
    const answer = await rig.forwarder.forward(chatRequest({ stream: true }), { ...rig.target, provider: 'odd' });
    const read = await readStream(answer as StreamAnswer);
    expect(read.error).toBeNull();
    expect(read.payloads.map((payload) => JSON.parse(payload) as unknown)).toEqual([
      { choices: [{ index: 0, delta: { content: 'né' }, finish_reason: null }] },
      { choices: [{ index: 0, delta: { content: '😀' }, finish_reason: null }] },
    ]);
    expect(read.summary).toMatchObject({ complete: true, usage: { inputTokens: 1, outputTokens: 2 } });
  });

  test('is truncated when it breaks off, and its errors are reported', async () => {
    await start(binary(frame('say', 'a'), Buffer.from([9])));
    const target = { ...rig.target, provider: 'odd' };
    const cut = await rig.forwarder.forward(chatRequest({ stream: true }), target);
    expect((await readStream(cut as StreamAnswer)).error).toMatchObject({ code: 'upstream_truncated' });
    rig.upstream.script(binary(frame('say', 'a'), frame('oops', 'no more')));
    const answer = await rig.forwarder.forward(chatRequest({ stream: true }), target);
    expect((await readStream(answer as StreamAnswer)).error).toMatchObject({ code: 'odd_stream', message: 'no more' });
    rig.upstream.script(binary(frame('oops', 'at once')));
    expect(await rig.forwarder.forward(chatRequest({ stream: true }), target)).toMatchObject({
      kind: 'json',
      status: 502,
    });
  });

  test('has its errors translated, including a wait in the body', async () => {
    await start((reply) => reply.respond(429, 'please wait'));
    const answer = await rig.forwarder.forward(chatRequest(), { ...rig.target, provider: 'odd' });
    expect(answer).toMatchObject({ kind: 'json', status: 429, headers: { 'retry-after-ms': '1235' } });
    expect(JSON.parse((answer as JsonAnswer).body.toString())).toEqual({
      error: { message: 'please wait', type: 'invalid_request_error', param: null, code: 'odd_error' },
    });
  });
});

describe('vectors', () => {
  const vectors = {
    object: 'list',
    data: [
      { index: 0, embedding: [1, -0.5] },
      { index: 1, embedding: [] },
    ],
    model: 'e',
    usage: { prompt_tokens: 4, total_tokens: 4 },
  };

  test('that were requested in base64 and sent as numbers are encoded', async () => {
    rig = await startForwardingRig((reply) => reply.json(200, vectors));
    const text = '{"model":"gpt-test","input":["a","b"],"encoding_format":"base64"}';
    const answer = await rig.forwarder.forward(chatRequest({ operation: 'embeddings', text }), rig.target);
    const body = JSON.parse((answer as JsonAnswer).body.toString()) as typeof vectors;
    const [first] = body.data;
    const bytes = Buffer.from(String(first?.embedding), 'base64');
    expect([bytes.readFloatLE(0), bytes.readFloatLE(4), bytes.length]).toEqual([1, -0.5, 8]);
    expect(answer.usage).toMatchObject({ inputTokens: 4, outputTokens: 0 });
  });

  test.each(['{"model":"gpt-test","input":"a"}', '{"model":"gpt-test","input":"a","encoding_format":"float"}'])(
    'otherwise pass unchanged (%s)',
    async (text) => {
      rig = await startForwardingRig((reply) => reply.json(200, vectors));
      const answer = await rig.forwarder.forward(chatRequest({ operation: 'embeddings', text }), rig.target);
      expect((answer as JsonAnswer).body.toString()).toBe(JSON.stringify(vectors));
    },
  );
});
