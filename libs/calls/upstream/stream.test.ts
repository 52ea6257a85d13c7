import { payloadNames, payloadSets, readPayloadLines } from '#test/fixtures/provider-payloads.ts';
import { afterEach, describe, expect, test } from 'vitest';
import {
  chatRequest,
  chunk,
  eventStream,
  payloads,
  readStream,
  sse,
  startForwardingRig,
  usageChunk,
  type ForwardingRig,
} from '#test/forwarding-rig.ts';
import { streamOf, waitUntil, type UpstreamScript } from '#test/upstream.ts';
import type { Answer, StreamAnswer } from '#libs/calls/call.ts';
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

describe('payloads', () => {
  test('each payload’s text is what the provider wrote, without [DONE]', async () => {
    const odd =
      '{ "choices" : [{"index":0,"delta":{},"big":12345678901234567890,"finish_reason":null}], "usage":null }';
    const answer = await stream(streamOf([odd, ...payloads.slice(1)]), { includeUsage: true });
    expect(answer).toMatchObject({ status: 200, usage: null, finishReason: null });
    expect((await readStream(answer)).payloads).toEqual([odd, ...payloads.slice(1)]);
  });

  test('usage, model and finish reason are known at the end', async () => {
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

  test('the usage of a stream that was left or cut off before its usage came is estimated from what was streamed', async () => {
    const said = { choices: [{ index: 0, delta: { content: 'forty characters are about ten tokens ..' } }] };
    const usage = { inputTokens: 12, cachedTokens: 0, outputTokens: 10, reasoningTokens: 0 };
    const cut = await readStream(await stream(sse(`data: ${JSON.stringify(said)}\n\n`)));
    expect(cut.summary).toMatchObject({ complete: false, isEstimate: true, usage });
    await rig.stop();
    const left = await stream(async (reply) => {
      reply.head(200, eventStream);
      await reply.write(`data: ${JSON.stringify(said)}\n\n`);
    });
    for await (const _events of left.events) break;
    expect(await left.done).toMatchObject({ complete: false, isEstimate: true, usage });
  });

  test('comments, CRLF, ids and a leading byte order mark are removed', async () => {
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
      sent.shift()?.(); // The provider writes the next one only now.
    }
    expect(await reader.next()).toEqual({ done: true, value: undefined });
  });

  test('choices whose chunks alternate are all waited for', async () => {
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
  test('is requested from the provider and removed from a stream whose client did not request it', async () => {
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

  test('stays, and the body is not changed, when the client requested it', async () => {
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

  test('is not requested from a provider that always gives it, and an empty first chunk without usage is kept', async () => {
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

  test.each(['end', 'cut', 'reset'] as const)('by %s is never taken for a whole one', async (how) => {
    rig = await startForwardingRig();
    const finishedAt = recorded.indexOf('"stop"');
    for (let at = 0; at < recorded.length; at += 7) {
      rig.upstream.script(async (reply) => {
        reply.head(200, eventStream);
        await reply.write(recorded.subarray(0, at));
        reply[how]();
      });
      const outcome = await rig.forwarder.settle(chatRequest({ text, stream: true, includeUsage: true }), rig.target);
      // If it ended before the first event, the attempt has failed. If it ended later, the reader gets the error.
      const read = outcome.kind === 'stream' ? await readStream(outcome) : null;
      const error = outcome.kind === 'failed' ? outcome.error : read?.error;
      const code = error === null || error === undefined ? null : (error as { code: string }).code;
      const expected = at <= finishedAt + 20 ? 'upstream_truncated' : null;
      const lost = code === 'upstream_truncated' || code === 'upstream_connection_lost' ? 'upstream_truncated' : code;
      // At the finish reason itself either result is right, because a reset can overtake the bytes before it.
      const either = Math.abs(at - finishedAt) < 80 || how === 'reset';
      expect([at, either && lost === 'upstream_truncated' ? expected : lost]).toEqual([at, expected]);
      expect(read === null || payloads.join('').startsWith(read.payloads.join(''))).toBe(true);
      expect(read?.summary.complete ?? false).toBe(code === null && outcome.kind === 'stream');
    }
  });
});

describe.each(payloadSets)('whole streams of real providers (%s)', (set) => {
  test('pass unchanged', async () => {
    const names = payloadNames(set, /^(openai|azure|deepseek|groq|mistral).*\.chunks\.txt$/);
    for (const name of names) {
      const lines = readPayloadLines(name, set);
      const read = await readStream(await stream(streamOf(lines), { includeUsage: true }));
      await rig.stop();
      expect([name, read.payloads.slice(0, lines.length), read.error]).toEqual([name, lines, null]);
      expect([name, read.summary.finishReason]).toEqual([name, expect.any(String)]);
    }
    expect(names.length).toBeGreaterThan(2);
  });
});
