import { afterEach, describe, expect, test } from 'vitest';
import { CallAbort } from '#libs/kernel/call-signal.ts';
import { sleep } from '#libs/kernel/sleep.ts';
import {
  canary,
  chatRequest,
  chunk,
  completion,
  eventStream,
  payloads,
  readStream,
  sse,
  startForwardingRig,
  type ForwardingRig,
} from '#test/forwarding-rig.ts';
import { streamOf, waitUntil, type UpstreamScript } from '#test/upstream.ts';
import type { Answer, StreamAnswer } from '#libs/calls/call.ts';
import type { Timeouts } from '#libs/calls/timeouts.ts';
import type { Operation } from '#libs/providers/provider.ts';
import type { createForwarder } from '#test/forwarder.ts';

let rig: ForwardingRig;
afterEach(async () => rig.stop());

type RequestOptions = NonNullable<Parameters<typeof chatRequest>[0]>;

const text = '{"model":"gpt-test","stream":true,"messages":[]}';
const failing = (code: string, kind = 'provider_failed') => expect.objectContaining({ kind, code });

async function open(
  script: UpstreamScript,
  options: RequestOptions = {},
  deps: Partial<Parameters<typeof createForwarder>[0]> = {},
): Promise<Answer> {
  rig = await startForwardingRig(script, deps);
  return rig.forwarder.forward(chatRequest({ text, stream: true, ...options }), rig.target);
}

async function stream(...parameters: Parameters<typeof open>): Promise<StreamAnswer> {
  const answer = await open(...parameters);
  if (answer.kind !== 'stream') throw new Error(`a stream was expected, not ${answer.kind} ${answer.status}`);
  return answer;
}

describe('what is no stream', () => {
  test('a JSON body as the answer to a stream request becomes chunks', async () => {
    const calls = [{ id: 'call_1', type: 'function', function: { name: 'f', arguments: '{}' } }];
    const message = { role: 'assistant', content: null, tool_calls: calls, reasoning_content: 'hm' };
    const choices = [
      { index: 0, message, finish_reason: 'tool_calls' },
      { index: 1, message: { content: 'x' }, finish_reason: 'stop' },
    ];
    const answer = await stream((reply) => reply.json(200, { ...completion, choices }), { includeUsage: true });
    const read = await readStream(answer);
    const chunks = read.payloads.map(
      (payload) => JSON.parse(payload) as { choices: unknown[]; object: string; id: string },
    );
    expect(new Set(chunks.map(({ object, id }) => `${object} ${id}`))).toEqual(
      new Set(['chat.completion.chunk chatcmpl-1']),
    );
    expect(chunks.map((each) => each.choices[0])).toEqual([
      { index: 0, delta: { ...message, tool_calls: [{ index: 0, ...calls[0] }] }, finish_reason: null },
      { index: 0, delta: {}, finish_reason: 'tool_calls' },
      { index: 1, delta: { role: 'assistant', content: 'x' }, finish_reason: null },
      { index: 1, delta: {}, finish_reason: 'stop' },
      undefined,
    ]);
    expect(chunks.at(-1)).toMatchObject({ choices: [], usage: completion.usage });
    expect(read.summary).toMatchObject({ complete: true, finishReason: 'tool_calls', usage: { inputTokens: 12 } });
  });

  test('a JSON body as the answer to a stream of completions keeps its object and gets no usage unless requested', async () => {
    const body = {
      id: 'cmpl-1',
      object: 'text_completion',
      choices: [{ index: 0, text: 'a', finish_reason: 'stop' }],
      usage: completion.usage,
    };
    const answer = await stream((reply) => reply.json(200, body), { operation: 'completions' });
    const read = await readStream(answer);
    expect(read.payloads.map((payload) => JSON.parse(payload) as unknown)).toEqual([
      { id: 'cmpl-1', object: 'text_completion', choices: body.choices },
    ]);
  });

  test('a stream without a content type is still a stream', async () => {
    const answer = await stream(async (reply) => {
      reply.head(200);
      await reply.write(`data: ${payloads[2]}\n\ndata: [DONE]\n\n`);
      reply.end();
    });
    expect((await readStream(answer)).payloads).toEqual([payloads[2]]);
  });

  const broken: [string, UpstreamScript][] = [
    ['an empty body', (reply) => reply.respond(200, '', eventStream)],
    ['only comments', sse(': hello\n\n: bye\n\n')],
    ['only [DONE]', sse('data: [DONE]\n\n')],
    ['an HTML page', (reply) => reply.respond(200, '<html>', { 'content-type': 'text/html' })],
    ['JSON that calls itself a stream', (reply) => reply.respond(200, JSON.stringify(completion), eventStream)],
    ['JSON without choices', (reply) => reply.json(200, { choices: [] })],
    ['an event that is no JSON', sse('data: hello\n\n')],
    ['an event that is no object', sse('data: null\n\n')],
    ['bytes that are no UTF-8', sse(Buffer.from('data: {"a":"\xff"}\n\n', 'latin1'))],
    [
      'a compressed stream',
      (reply) => reply.respond(200, 'data: {}\n\n', { ...eventStream, 'content-encoding': 'gzip' }),
    ],
  ];

  test.each(broken)('%s is an attempt that failed', async (_name, script) => {
    rig = await startForwardingRig(script);
    const outcome = await rig.forwarder.settle(chatRequest({ text, stream: true }), rig.target);
    expect(outcome).toMatchObject({
      kind: 'failed',
      error: { kind: 'provider_failed', code: expect.stringMatching(/^upstream_(invalid_response|truncated)$/) },
    });
    await waitUntil(() => rig.forwarder.counters().openCalls === 0);
  });
});

describe('errors inside a stream', () => {
  const error = { message: 'overloaded', type: 'server_error', param: null, code: 'server_is_overloaded' };

  test.each([
    ['as data', `data: ${JSON.stringify({ error })}\n\n`],
    ['as an error event with a flat body', `event: error\ndata: ${JSON.stringify(error)}\n\n`],
  ])('before any content (%s) are an answer that can still be retried', async (_name, event) => {
    for (const opening of ['', `data: ${payloads[0]}\n\n`]) {
      const answer = await open(sse(opening + event));
      expect(answer).toMatchObject({ kind: 'json', status: 502 });
      expect(JSON.parse(String(answer.kind === 'json' && answer.body))).toEqual({ error });
      await rig.stop();
    }
  });

  test.each<[Operation, object]>([
    ['chat', { choices: [{ index: 0, delta: { role: 'assistant', content: '' }, finish_reason: null }] }],
    ['messages', { type: 'message_start', message: { id: 'm', role: 'assistant', content: [] } }],
    ['responses', { type: 'response.created', response: { id: 'r', status: 'in_progress' } }],
    ['generate_content', { candidates: [{ content: { parts: [] }, index: 0 }] }],
  ])(
    'a stream of %s that breaks off before its first content is an attempt that failed',
    async (operation, opening) => {
      const provider = { chat: 'openai', messages: 'anthropic', responses: 'openai', generate_content: 'gemini' };
      rig = await startForwardingRig(sse(`data: ${JSON.stringify(opening)}\n\n`));
      const target = { ...rig.target, provider: provider[operation as keyof typeof provider] };
      const outcome = await rig.forwarder.settle(chatRequest({ text, stream: true, operation }), target);
      expect(outcome).toMatchObject({ kind: 'failed', error: failing('upstream_truncated') });
    },
  );

  test('a stream without content is passed on when its model works unseen', async () => {
    const silent: UpstreamScript = async (reply) => {
      reply.head(200, eventStream);
      await reply.write(`data: ${payloads[0]}\n\n`);
    };
    const iterator = (await stream(silent, {}, { limits: { heldMs: 10 } })).events[Symbol.asyncIterator]();
    expect(await iterator.next()).toEqual({ done: false, value: [payloads[0]] });
    await iterator.return?.();
  });

  test('with a status of their own keep it', async () => {
    const answer = await open(sse('data: {"error":{"message":"slow down","code":429}}\n\n'));
    expect(answer.status).toBe(429);
  });

  test.each([
    ['as data', `data: ${JSON.stringify({ error })}\n\n`],
    ['as an error event', `event: error\ndata: ${JSON.stringify(error)}\n\n`],
  ])('later (%s) end the stream with the provider’s message, after what came before', async (_name, event) => {
    const read = await readStream(await stream(sse(`data: ${payloads[1]}\n\n${event}data: ${payloads[2]}\n\n`)));
    expect(read.payloads).toEqual([payloads[1]]);
    expect(read.error).toEqual(failing('server_is_overloaded'));
    expect(read.error).toMatchObject({ message: 'overloaded' });
    expect(read.summary).toMatchObject({ complete: false, error: { code: 'server_is_overloaded' } });
  });

  test('that repeat the credential are scrubbed', async () => {
    const leak = JSON.stringify({ error: { message: `bad ${canary}`, type: canary, param: null, code: canary } });
    const read = await readStream(await stream(sse(`data: ${payloads[1]}\n\n`, `data: ${leak}\n\n`)));
    expect(read.error).toMatchObject({ message: 'bad [redacted]', code: '[redacted]' });
  });

  test('an event in the middle that is not JSON ends the stream', async () => {
    const read = await readStream(await stream(sse(`data: ${payloads[1]}\n\n`, 'data: <html>\n\n')));
    expect(read.error).toEqual(failing('upstream_invalid_response'));
  });
});

describe('bounds', () => {
  const timeouts = (change: Partial<Timeouts>) => ({ timeouts: { ...change } });

  test('silence after the headers, or between events, ends in an idle timeout', async () => {
    const silent: UpstreamScript = (reply) => reply.head(200, eventStream);
    await expect(open(silent, timeouts({ idleMs: 100 }))).rejects.toEqual(
      failing('upstream_idle_timeout', 'provider_timeout'),
    );
    await rig.stop();
    const later: UpstreamScript = async (reply) => {
      reply.head(200, eventStream);
      await reply.write(`data: ${payloads[1]}\n\n`);
    };
    const read = await readStream(await stream(later, timeouts({ idleMs: 100 })));
    expect(read).toMatchObject({
      payloads: [payloads[1]],
      error: failing('upstream_idle_timeout', 'provider_timeout'),
    });
  });

  test('a stream of bytes that completes no event counts as silent, one of comments does not', async () => {
    const drip =
      (bytes: string): UpstreamScript =>
      async (reply) => {
        reply.head(200, eventStream);
        await reply.write(`data: ${payloads[1]}\n\n`);
        for (let count = 0; count < 20; count += 1) {
          await reply.write(bytes);
          await sleep(20);
        }
        await reply.write(`\n\ndata: ${payloads[2]}\n\ndata: [DONE]\n\n`);
        reply.end();
      };
    const dead = await readStream(await stream(drip(':'), timeouts({ idleMs: 150 })));
    expect(dead.error).toEqual(failing('upstream_idle_timeout', 'provider_timeout'));
    await rig.stop();
    const alive = await readStream(await stream(drip(': alive\n\n'), timeouts({ idleMs: 150 })));
    expect(alive.error).toBeNull();
  });

  test('a stream that never ends is cut at the total timeout', async () => {
    const endless: UpstreamScript = async (reply) => {
      reply.head(200, eventStream);
      while (!reply.isClosed()) {
        await reply.write(`data: ${payloads[1]}\n\n`);
        await sleep(5);
      }
    };
    const read = await readStream(await stream(endless, timeouts({ totalMs: 200 })));
    expect(read.error).toEqual(failing('upstream_total_timeout', 'provider_timeout'));
    await rig.upstream.until(() => rig.upstream.connections().open === 0);
  });

  test('an event or a stream beyond its maximum size ends as too large', async () => {
    const large = `data: {"choices":[{"index":0,"delta":{"content":"${'x'.repeat(5_000)}`;
    await expect(open(sse(large, large), {}, { limits: { eventCharsMax: 6_000 } })).rejects.toEqual(
      failing('upstream_response_too_large'),
    );
    await rig.stop();
    const read = await readStream(
      await stream(streamOf(Array<string>(50).fill(payloads[1] ?? '')), {}, { limits: { streamBytesMax: 2_000 } }),
    );
    expect(read.error).toEqual(failing('upstream_response_too_large'));
  });

  test('one event of 10 MB passes', async () => {
    const big = chunk({ content: 'x'.repeat(10_000_000) });
    const read = await readStream(await stream(streamOf([big, ...payloads.slice(2, 3)])));
    expect(read.payloads[0]?.length).toBe(big.length);
    expect(read.error).toBeNull();
  });

  test('a slow reader slows the provider down, and then gets everything', async () => {
    let written = 0;
    const payload = chunk({ content: 'x'.repeat(60_000) });
    const count = 400;
    const answer = await stream(async (reply) => {
      reply.head(200, eventStream);
      for (; written < count; written += 1) await reply.write(`data: ${payload}\n\n`);
      await reply.write(`data: ${payloads[2]}\n\ndata: [DONE]\n\n`);
      reply.end();
    });
    let before = -1;
    while (written !== before) {
      before = written;
      await sleep(100);
    }
    expect(written).toBeLessThan(count); // 24 MB: the kernel's buffers and ours hold a fraction of it.
    const read = await readStream(answer);
    expect(read.payloads).toHaveLength(count + 1);
    expect(read.error).toBeNull();
  });
});

describe('leaving', () => {
  const endless: UpstreamScript = async (reply) => {
    reply.head(200, eventStream);
    await reply.write(`data: ${payloads[1]}\n\n`);
  };

  test('an aborted signal ends the stream and closes the provider’s connection', async () => {
    const client = new CallAbort();
    const answer = await stream(endless, { signal: client });
    const reading = readStream(answer);
    client.abort(new Error('left'));
    expect(await reading).toMatchObject({
      error: failing('call_aborted', 'unavailable'),
      summary: { complete: false },
    });
    await rig.upstream.until(() => rig.upstream.connections().open === 0);
  });

  test('leaving the loop does the same', async () => {
    const answer = await stream(endless);
    for await (const batch of answer.events) {
      expect(batch).toEqual([payloads[1]]);
      break;
    }
    expect((await answer.done).complete).toBe(false);
    await rig.upstream.until(() => rig.upstream.connections().open === 0);
  });

  test('a hundred clients that leave in different ways leave nothing behind', async () => {
    rig = await startForwardingRig(endless);
    for (let round = 0; round < 100; round += 1) {
      const client = new CallAbort();
      const call = rig.forwarder.settle(chatRequest({ text, stream: true, signal: client }), rig.target);
      if (round % 4 === 0) client.abort(new Error('left'));
      if (round % 4 === 1) setImmediate(() => client.abort(new Error('left')));
      const outcome = await call;
      if (round % 4 === 2 && outcome.kind === 'stream') await outcome.events[Symbol.asyncIterator]().return?.();
      client.abort(new Error('left'));
      if (outcome.kind === 'stream') await outcome.done;
    }
    await rig.upstream.until(() => rig.upstream.connections().open === 0 && rig.egress.stats().sockets === 0);
    expect(rig.forwarder.counters()).toEqual({ openCalls: 0, openStreams: 0, waitingRetries: 0, sockets: 0 });
  });

  test('the end of a stream does not wait for a provider that keeps the connection open after [DONE]', async () => {
    const answer = await stream(async (reply) => {
      reply.head(200, eventStream);
      await reply.write(`data: ${payloads[2]}\n\ndata: [DONE]\n\n`);
    });
    expect(await readStream(answer)).toMatchObject({
      payloads: [payloads[2]],
      error: null,
      summary: { complete: true },
    });
    await rig.upstream.until(() => rig.upstream.connections().open === 0); // Closed a second later.
  });

  test('after an orderly end the connection serves the next stream', async () => {
    rig = await startForwardingRig(streamOf(payloads));
    for (let round = 0; round < 5; round += 1) {
      const answer = await rig.forwarder.forward(chatRequest({ text, stream: true }), rig.target);
      await readStream(answer as StreamAnswer);
      await sleep(5);
    }
    expect(rig.upstream.connections().accepted).toBe(1);
  });
});
