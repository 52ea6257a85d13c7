import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { afterEach, describe, expect, test } from 'vitest';
import { sleep } from '#libs/kernel/sleep.ts';
import {
  canary,
  chatRequest,
  completion,
  readStream,
  startForwardingRig,
  type ForwardingRig,
} from '#test/forwarding-rig.ts';
import { streamOf, waitUntil, type UpstreamScript } from '#test/upstream.ts';
import type { Answer, StreamAnswer, Timeouts } from './answer.ts';
import type { createForwarder } from './forward.ts';

let rig: ForwardingRig;
afterEach(async () => rig.stop());

type RequestOptions = NonNullable<Parameters<typeof chatRequest>[0]>;

const text = '{"model":"gpt-test","stream":true,"messages":[]}';
const eventStream = { 'content-type': 'text/event-stream' };
const chunk = (delta: object, finish: string | null = null, index = 0): string =>
  JSON.stringify({
    id: 'c1',
    object: 'chat.completion.chunk',
    created: 1,
    model: 'm',
    choices: [{ index, delta, finish_reason: finish }],
    usage: null,
  });
const usageChunk = JSON.stringify({
  id: 'c1',
  choices: [],
  usage: { prompt_tokens: 3, completion_tokens: 2, total_tokens: 5 },
});
const payloads = [chunk({ role: 'assistant', content: '' }), chunk({ content: 'né😀' }), chunk({}, 'stop'), usageChunk];
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
  if (answer.kind !== 'stream') throw new Error(`a stream was expected, not ${answer.body.toString()}`);
  return answer;
}

/** Bytes of an SSE body as one scripted answer, written as they are. */
const sse =
  (...writes: (string | Buffer)[]): UpstreamScript =>
  async (reply) => {
    reply.head(200, eventStream);
    for (const bytes of writes) await reply.write(bytes);
    reply.end();
  };

describe('payloads', () => {
  test('each payload’s text is what the provider wrote, without [DONE]', async () => {
    const odd =
      '{ "choices" : [{"index":0,"delta":{},"big":12345678901234567890,"finish_reason":null}], "usage":null }';
    const answer = await stream(streamOf([odd, ...payloads.slice(1)]), { includeUsage: true });
    expect(answer).toMatchObject({ status: 200, usage: null, finishReason: null });
    expect((await readStream(answer)).payloads).toEqual([odd, ...payloads.slice(1)]);
  });

  test('usage, model and finish reason are told at the end', async () => {
    const { summary } = await readStream(await stream(streamOf(payloads)));
    expect(summary).toEqual({
      usage: { inputTokens: 3, cachedTokens: 0, outputTokens: 2, reasoningTokens: 0 },
      model: 'm',
      finishReason: 'stop',
      complete: true,
      firstEventMs: expect.any(Number),
      error: null,
    });
  });

  test('comments, CRLF, ids and a leading byte order mark leave no trace', async () => {
    const script = sse(
      `\uFEFF: hello\r\n\r\nid: 7\r\ndata: ${payloads[0]}\r\n\r\n: PROCESSING\r\n\r\n`,
      `retry: 5\ndata:${payloads[2]}\n\ndata: [DONE]\n\n`,
    );
    expect((await readStream(await stream(script))).payloads).toEqual([payloads[0], payloads[2]]);
  });

  test('events arrive one by one, as they were sent', async () => {
    const sent: (() => void)[] = [];
    const answer = await stream(async (reply) => {
      reply.head(200, eventStream);
      for (const payload of payloads.slice(0, 3)) {
        await reply.write(`data: ${payload}\n\n`);
        await new Promise<void>((resolve) => sent.push(resolve));
      }
      await reply.write('data: [DONE]\n\n');
      reply.end();
    });
    const reader = answer.events[Symbol.asyncIterator]();
    for (const payload of payloads.slice(0, 3)) {
      expect(await reader.next()).toEqual({ done: false, value: [payload] });
      await waitUntil(() => sent.length > 0);
      sent.shift()?.(); // only now does the provider write the next one
    }
    expect(await reader.next()).toEqual({ done: true, value: undefined });
  });

  test('choices that interleave are each waited for', async () => {
    const two = [
      chunk({ content: 'a' }, null, 0),
      chunk({ content: 'b' }, null, 1),
      chunk({}, 'stop', 1),
      chunk({}, 'length', 0),
    ];
    const cut = sse(...two.slice(0, 3).map((payload) => `data: ${payload}\n\n`));
    expect(await readStream(await stream(cut))).toMatchObject({ error: failing('upstream_truncated') });
    await rig.stop();
    const whole = sse(...two.map((payload) => `data: ${payload}\n\n`));
    expect(await readStream(await stream(whole))).toMatchObject({
      error: null,
      summary: { complete: true, finishReason: 'length' },
    });
  });
});

describe('usage', () => {
  test('is asked of the provider and taken out of a stream whose client did not ask', async () => {
    const answer = await stream(streamOf(payloads));
    expect(rig.upstream.requests[0]?.body.toString()).toBe(
      text.replace(/\}$/, ',"stream_options":{"include_usage":true}}'),
    );
    const { payloads: seen, summary } = await readStream(answer);
    expect(seen).toEqual(payloads.slice(0, 3));
    expect(summary.usage?.inputTokens).toBe(3);
  });

  test.each([
    ['{"include_obfuscation":false}', '{"include_obfuscation":false,"include_usage":true}'],
    ['{ "include_usage" : false }', '{ "include_usage" : true }'],
    ['null', '{"include_usage":true}'],
  ])('stream_options %s become %s', async (written, sent) => {
    const body = text.replace(/\}$/, `,"stream_options": ${written}}`);
    await readStream(await stream(streamOf(payloads), { text: body }));
    expect(rig.upstream.requests[0]?.body.toString()).toBe(body.replace(written, sent));
  });

  test('stays, and the body stays as it is, when the client asked', async () => {
    const body = text.replace(/\}$/, ',"stream_options":{"include_usage":true}}');
    const answer = await stream(streamOf(payloads), { text: body, includeUsage: true });
    expect((await readStream(answer)).payloads).toEqual(payloads);
    expect(rig.upstream.requests[0]?.body.toString()).toBe(body);
  });

  test('that a provider puts into its last content chunk is also given where OpenAI gives it', async () => {
    const last = JSON.stringify({
      ...JSON.parse(chunk({}, 'stop')),
      usage: { prompt_tokens: 3, completion_tokens: 2 },
    });
    const { payloads: seen } = await readStream(await stream(streamOf([last]), { includeUsage: true }));
    expect(seen[0]).toBe(last);
    expect(JSON.parse(seen[1] ?? '')).toEqual({
      id: 'c1',
      object: 'chat.completion.chunk',
      created: 1,
      model: 'm',
      choices: [],
      usage: { prompt_tokens: 3, completion_tokens: 2 },
    });
  });

  test('is not asked of a provider that gives it unasked, and an empty first chunk without usage is kept', async () => {
    rig = await startForwardingRig(streamOf(['{"choices":[],"prompt_filter_results":[]}', ...payloads]));
    const answer = await rig.forwarder.forward(chatRequest({ text, stream: true }), {
      ...rig.target,
      provider: 'perplexity',
    });
    expect(rig.upstream.requests[0]?.body.toString()).toBe(text);
    expect((await readStream(answer as StreamAnswer)).payloads).toEqual([
      '{"choices":[],"prompt_filter_results":[]}',
      ...payloads.slice(0, 3),
    ]);
  });
});

describe('a stream cut anywhere', () => {
  const recorded = Buffer.from(
    `: start\r\n\r\ndata: ${payloads[0]}\r\n\r\ndata: ${payloads[1]}\n\n: keep-alive\n\ndata: ${payloads[2]}\n\ndata: ${usageChunk}\n\ndata: [DONE]\n\n`,
  );

  test('into two TCP segments is read as if it were whole', async () => {
    rig = await startForwardingRig();
    for (let at = 1; at < recorded.length; at += 1) {
      rig.upstream.script(sse(recorded.subarray(0, at), recorded.subarray(at)));
      const answer = await rig.forwarder.forward(chatRequest({ text, stream: true, includeUsage: true }), rig.target);
      const read = await readStream(answer as StreamAnswer);
      expect([at, read.payloads, read.error]).toEqual([at, payloads, null]);
    }
  });

  test.each(['end', 'cut', 'reset'] as const)('by %s never passes for a whole one', async (how) => {
    rig = await startForwardingRig();
    const finishedAt = recorded.indexOf('"stop"');
    for (let at = 0; at < recorded.length; at += 7) {
      rig.upstream.script(async (reply) => {
        reply.head(200, eventStream);
        await reply.write(recorded.subarray(0, at));
        reply[how]();
      });
      const outcome = await rig.forwarder.settle(chatRequest({ text, stream: true, includeUsage: true }), rig.target);
      // Died before the first event: an attempt that failed, not an answer. Died later: told to the reader.
      const read = outcome.kind === 'stream' ? await readStream(outcome) : null;
      const error = outcome.kind === 'failed' ? outcome.error : read?.error;
      const told = error === null || error === undefined ? null : (error as { code: string }).code;
      const expected = at <= finishedAt + 20 ? 'upstream_truncated' : null;
      const lost = told === 'upstream_truncated' || told === 'upstream_connection_lost' ? 'upstream_truncated' : told;
      // Around the finish reason itself either verdict is right; a reset may overtake the bytes before it.
      const either = Math.abs(at - finishedAt) < 80 || how === 'reset';
      expect([at, either && lost === 'upstream_truncated' ? expected : lost]).toEqual([at, expected]);
      expect(read === null || payloads.join('').startsWith(read.payloads.join(''))).toBe(true);
      expect(read?.summary.complete ?? false).toBe(told === null && outcome.kind === 'stream');
    }
  });
});

describe('recorded streams of real providers', () => {
  const folder = new URL('../../../shared/fixtures/providers/', import.meta.url);
  const candidates = [folder, new URL('file:///work/shared/fixtures/providers/')];
  const found = candidates.find((url) => existsSync(url));
  const names = found
    ? readdirSync(found).filter((name) => /^(openai|azure|deepseek|groq|mistral).*\.chunks\.txt$/.test(name))
    : [];

  test.skipIf(!found)('pass unchanged (skipped: no ../shared/fixtures here)', async () => {
    for (const name of names) {
      const lines = readFileSync(new URL(name, found), 'utf8')
        .split('\n')
        .filter((line) => line !== '');
      const read = await readStream(await stream(streamOf(lines), { includeUsage: true }));
      await rig.stop();
      expect([name, read.payloads.slice(0, lines.length), read.error]).toEqual([name, lines, null]);
      expect([name, read.summary.finishReason]).toEqual([name, expect.any(String)]);
    }
    expect(names.length).toBeGreaterThan(2);
  });
});

describe('what is no stream', () => {
  test('a JSON body to a stream request becomes chunks', async () => {
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

  test('a JSON body to a stream of completions keeps its object and gets no usage unasked', async () => {
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
  ])('as the first event (%s) are an answer that can still be retried', async (_name, event) => {
    const answer = await open(sse(event));
    expect(answer).toMatchObject({ kind: 'json', status: 502 });
    expect(JSON.parse(String(answer.kind === 'json' && answer.body))).toEqual({ error });
  });

  test('with a status of their own keep it', async () => {
    const answer = await open(sse('data: {"error":{"message":"slow down","code":429}}\n\n'));
    expect(answer.status).toBe(429);
  });

  test.each([
    ['as data', `data: ${JSON.stringify({ error })}\n\n`],
    ['as an error event', `event: error\ndata: ${JSON.stringify(error)}\n\n`],
  ])('later (%s) end the stream with the provider’s message, after what came before', async (_name, event) => {
    const read = await readStream(await stream(sse(`data: ${payloads[0]}\n\n${event}data: ${payloads[1]}\n\n`)));
    expect(read.payloads).toEqual([payloads[0]]);
    expect(read.error).toEqual(failing('server_is_overloaded'));
    expect(read.error).toMatchObject({ message: 'overloaded' });
    expect(read.summary).toMatchObject({ complete: false, error: { code: 'server_is_overloaded' } });
  });

  test('that repeat the credential are scrubbed', async () => {
    const leak = JSON.stringify({ error: { message: `bad ${canary}`, type: canary, param: null, code: canary } });
    const read = await readStream(await stream(sse(`data: ${payloads[0]}\n\n`, `data: ${leak}\n\n`)));
    expect(read.error).toMatchObject({ message: 'bad [redacted]', code: '[redacted]' });
  });

  test('an event in the middle that is no JSON ends the stream', async () => {
    const read = await readStream(await stream(sse(`data: ${payloads[0]}\n\n`, 'data: <html>\n\n')));
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
      await reply.write(`data: ${payloads[0]}\n\n`);
    };
    const read = await readStream(await stream(later, timeouts({ idleMs: 100 })));
    expect(read).toMatchObject({
      payloads: [payloads[0]],
      error: failing('upstream_idle_timeout', 'provider_timeout'),
    });
  });

  test('a drip of bytes that completes no event is silence, comments are not', async () => {
    const drip =
      (bytes: string): UpstreamScript =>
      async (reply) => {
        reply.head(200, eventStream);
        await reply.write(`data: ${payloads[0]}\n\n`);
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
        await reply.write(`data: ${payloads[0]}\n\n`);
        await sleep(5);
      }
    };
    const read = await readStream(await stream(endless, timeouts({ totalMs: 200 })));
    expect(read.error).toEqual(failing('upstream_total_timeout', 'provider_timeout'));
    await rig.upstream.until(() => rig.upstream.connections().open === 0);
  });

  test('an event or a stream past its size ends as too large', async () => {
    const large = `data: {"choices":[{"index":0,"delta":{"content":"${'x'.repeat(5_000)}`;
    await expect(open(sse(large, large), {}, { limits: { eventCharsMax: 6_000 } })).rejects.toEqual(
      failing('upstream_response_too_large'),
    );
    await rig.stop();
    const read = await readStream(
      await stream(streamOf(Array<string>(50).fill(payloads[0] ?? '')), {}, { limits: { streamBytesMax: 2_000 } }),
    );
    expect(read.error).toEqual(failing('upstream_response_too_large'));
  });

  test('one event of 10 MB passes', async () => {
    const big = chunk({ content: 'x'.repeat(10_000_000) });
    const read = await readStream(await stream(streamOf([big, ...payloads.slice(2, 3)])));
    expect(read.payloads[0]?.length).toBe(big.length);
    expect(read.error).toBeNull();
  });

  test('a reader that is slow holds the provider back, and then gets everything', async () => {
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
    expect(written).toBeLessThan(count); // 24 MB: the kernel's buffers and ours hold a fraction
    const read = await readStream(answer);
    expect(read.payloads).toHaveLength(count + 1);
    expect(read.error).toBeNull();
  });
});

describe('leaving', () => {
  const endless: UpstreamScript = async (reply) => {
    reply.head(200, eventStream);
    await reply.write(`data: ${payloads[0]}\n\n`);
  };

  test('an aborted signal ends the stream and closes the provider’s connection', async () => {
    const client = new AbortController();
    const answer = await stream(endless, { signal: client.signal });
    const reading = readStream(answer);
    client.abort();
    expect(await reading).toMatchObject({
      error: failing('call_aborted', 'unavailable'),
      summary: { complete: false },
    });
    await rig.upstream.until(() => rig.upstream.connections().open === 0);
  });

  test('leaving the loop does the same', async () => {
    const answer = await stream(endless);
    for await (const batch of answer.events) {
      expect(batch).toEqual([payloads[0]]);
      break;
    }
    expect((await answer.done).complete).toBe(false);
    await rig.upstream.until(() => rig.upstream.connections().open === 0);
  });

  test('a hundred clients that leave in a hundred ways leave nothing behind', async () => {
    rig = await startForwardingRig(endless);
    for (let round = 0; round < 100; round += 1) {
      const client = new AbortController();
      const call = rig.forwarder.settle(chatRequest({ text, stream: true, signal: client.signal }), rig.target);
      if (round % 4 === 0) client.abort();
      if (round % 4 === 1) setImmediate(() => client.abort());
      const outcome = await call;
      if (round % 4 === 2 && outcome.kind === 'stream') await outcome.events[Symbol.asyncIterator]().return?.();
      client.abort();
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
    await rig.upstream.until(() => rig.upstream.connections().open === 0); // cut off a second later
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
