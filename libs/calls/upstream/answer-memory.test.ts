import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { CallAbort } from '#libs/kernel/call-signal.ts';
import { createMemoryBudget, type MemoryBudget, type MemoryLease } from '#libs/kernel/sharing/memory-budget.ts';
import { sleep } from '#libs/kernel/sleep.ts';
import { chatRequest, completion, readStream, startForwardingRig, type ForwardingRig } from '#test/forwarding-rig.ts';
import { streamOf, type UpstreamScript } from '#test/upstream.ts';
import type { ForwardRequest, JsonAnswer, Outcome, StreamAnswer } from '#libs/calls/call.ts';

const mebibyte = 1_048_576;
const json = { 'content-type': 'application/json' };

let rig: ForwardingRig;
let memory: MemoryBudget;
let lease: MemoryLease;

beforeEach(() => {
  memory = createMemoryBudget(32 * mebibyte);
  lease = memory.open('a');
});
afterEach(async () => rig.stop());

const retrying = { attemptsMax: 3, baseDelayMs: 1, maxDelayMs: 1, deadlineAt: Number.MAX_SAFE_INTEGER };

async function settle(script: UpstreamScript, request: Partial<ForwardRequest> = {}): Promise<Outcome> {
  rig = await startForwardingRig(script);
  return await rig.forwarder.settle(chatRequest({ memory: lease, ...request }), rig.target, retrying);
}

const held = (): number => memory.stats().heldBytes;
const chatWith = (member: string): string => `${JSON.stringify(completion).slice(0, -1)},"x":${member}}`;
const vectors = (count: number): string => {
  const vector = Array.from({ length: 1_500 }, (_, index) => (Math.sin(index + 1) / 3).toFixed(9)).join();
  const items = Array.from({ length: count }, (_, index) => `{"index":${index},"embedding":[${vector}]}`);
  return `{"object":"list","model":"embed-1","data":[${items.join()}],"usage":{"prompt_tokens":7,"total_tokens":7}}`;
};
const embeddings = (format = ''): Partial<ForwardRequest> => ({
  operation: 'embeddings',
  body: Buffer.from(`{"model":"gpt-test","input":["a"]${format}}`),
});

test('an answer with more values than a call may ever have in memory is an error of that call, and is requested once', async () => {
  const outcome = await settle((reply) => reply.respond(200, `${' '.repeat(10)}[${'{},'.repeat(600_000)}{}]`, json), {
    stream: true,
  });
  expect(outcome).toMatchObject({ kind: 'failed', error: { code: 'upstream_response_too_large' } });
  expect(rig.upstream.requests).toHaveLength(1);
  expect(held()).toBe(0);
});

test('an answer that is larger than a call may ever have is refused because of its head', async () => {
  const outcome = await settle((reply) =>
    reply.raw('HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 30000000\r\n\r\n{'),
  );
  expect(outcome).toMatchObject({ kind: 'failed', error: { code: 'upstream_response_too_large' } });
  expect(held()).toBe(0);
});

test('an answer that is nested too deeply is not read', async () => {
  const deep = `${'['.repeat(20_000)}${']'.repeat(20_000)}`;
  const outcome = await settle((reply) => reply.respond(200, chatWith(deep), json));
  expect(outcome).toMatchObject({ kind: 'failed', error: { code: 'upstream_invalid_response' } });
});

test('a large answer passes without being parsed, and its usage and model are read', async () => {
  const body = vectors(600); // 11 MB, and three times as much as values.
  const outcome = await settle((reply) => reply.respond(200, body, json), embeddings());
  expect(outcome).toMatchObject({ kind: 'json', status: 200, model: 'embed-1', usage: { inputTokens: 7 } });
  expect((outcome as JsonAnswer).body.equals(Buffer.from(body))).toBe(true);
  expect(held()).toBe(body.length);
  lease.release();
  expect(held()).toBe(0);
});

test('the memory of an answer of more than 1 MiB can be freed, and a smaller one can be kept by a cache', async () => {
  const large = await settle((reply) => reply.respond(200, vectors(100), json), embeddings());
  const { body, freeBody } = large as JsonAnswer;
  freeBody?.();
  expect(body.buffer.byteLength).toBe(0);
  await rig.stop();
  const small = await settle((reply) => reply.respond(200, vectors(50), json), embeddings());
  expect(small).not.toHaveProperty('freeBody');
});

test('a large answer of numbers becomes base64 if the caller asked for that', async () => {
  const outcome = await settle(
    (reply) => reply.respond(200, vectors(100), json),
    embeddings(',"encoding_format":"base64"'),
  );
  const value = JSON.parse((outcome as JsonAnswer).body.toString()) as { data: { embedding: string }[]; usage: object };
  expect(value.data).toHaveLength(100);
  expect(Buffer.from(value.data[99]?.embedding ?? '', 'base64').readFloatLE(0)).toBeCloseTo(Math.sin(1) / 3, 6);
  expect(value.usage).toEqual({ prompt_tokens: 7, total_tokens: 7 });
});

test('the first finish reason of a large chat answer is read', async () => {
  const choices = [{ index: 0, message: { role: 'assistant', content: 'x'.repeat(300_000) }, finish_reason: 'length' }];
  const outcome = await settle((reply) => reply.json(200, { ...completion, choices }));
  expect(outcome).toMatchObject({ kind: 'json', finishReason: 'length', model: completion.model });
});

test('a large answer that is an error in spite of its status is an error', async () => {
  const body = { error: { message: 'Overloaded.', type: 'server_error' }, padding: 'x'.repeat(300_000) };
  const outcome = await settle((reply) => reply.json(200, body));
  expect(outcome).toMatchObject({ kind: 'json', status: 502 });
  expect(JSON.parse((outcome as JsonAnswer).body.toString())).toMatchObject({ error: { message: 'Overloaded.' } });
});

test('a large answer whose structure is not JSON is an error', async () => {
  const outcome = await settle((reply) => reply.respond(200, chatWith(`"${'x'.repeat(300_000)}"`).slice(0, -1), json));
  expect(outcome).toMatchObject({ kind: 'failed', error: { code: 'upstream_invalid_response' } });
  expect(held()).toBe(0);
});

test('while there is no memory for an answer its socket is not read, and the answer arrives when there is', async () => {
  const other = memory.open('a');
  other.charge(20 * mebibyte);
  const body = vectors(300);
  const settling = settle((reply) => reply.respond(200, body, json), embeddings());
  await vi.waitFor(() => expect(memory.stats().waiting).toBe(1));
  expect(held()).toBeLessThan(21 * mebibyte);
  other.release();
  expect(await settling).toMatchObject({ kind: 'json', status: 200 });
  expect(held()).toBe(body.length);
});

test('a caller that leaves while its answer waits for memory holds nothing', async () => {
  const controller = new CallAbort();
  memory.open('a').charge(23 * mebibyte);
  const body = vectors(300);
  const settling = settle((reply) => reply.respond(200, body, json), { ...embeddings(), signal: controller });
  await vi.waitFor(() => expect(memory.stats().waiting).toBe(1));
  controller.abort(new Error('left'));
  expect(await settling).toMatchObject({ kind: 'failed', error: { code: 'call_aborted' } });
  await vi.waitFor(() => expect(memory.stats()).toMatchObject({ waiting: 0, heldBytes: 23 * mebibyte }));
});

test('an event of a stream that grows past what the call may have ends the stream', async () => {
  const outcome = await settle(
    async (reply) => {
      reply.head(200, { 'content-type': 'text/event-stream' });
      for (let sent = 0; sent < 16 && !reply.isClosed(); sent += 1) {
        await reply.write(`${sent === 0 ? 'data: ' : ''}${'x'.repeat(mebibyte)}`);
      }
    },
    { stream: true },
  );
  expect(outcome).toMatchObject({ kind: 'failed', error: { code: 'server_overloaded' } });
  expect(held()).toBe(0);
});

test('an event with so many values that it would block other calls ends the stream, and one long text does not', async () => {
  const eventOf = (x: string): UpstreamScript => {
    const payload = JSON.stringify({
      id: 'c',
      choices: [{ index: 0, delta: { content: 'a' }, finish_reason: 'stop' }],
    });
    return streamOf([`${payload.slice(0, -1)},"x":${x}}`]);
  };
  const dense = await settle(eventOf(`[${'{},'.repeat(60_000)}{}]`), { stream: true });
  expect(dense).toMatchObject({ kind: 'failed', error: { code: 'upstream_response_too_large' } });
  expect(rig.upstream.requests).toHaveLength(1);
  await rig.stop();
  const text = await settle(eventOf(JSON.stringify('word '.repeat(200_000))), { stream: true });
  expect((await readStream(text as StreamAnswer)).summary).toMatchObject({ complete: true });
});

test('the usage of an answer that passes is not read if there is no memory for a copy of it', async () => {
  const budget = createMemoryBudget(100_000);
  const body = JSON.stringify({ model: 'm', usage: { input_tokens: 1, output_tokens: 2 }, text: 'x'.repeat(90_000) });
  rig = await startForwardingRig((reply) => reply.respond(200, body, json));
  const call = {
    area: 'responses',
    method: 'GET',
    path: '/responses/1',
    accept: null,
    headers: {},
    model: null,
  } as const;
  const send = async (memory?: MemoryLease) => {
    const signal = new AbortController().signal;
    const sent = { ...call, body: null, contentType: null, contentLength: null, signal, memory };
    const answer = await rig.forwarder.relay(sent, rig.target);
    const received = Buffer.concat(await answer.body.toArray());
    expect(received.toString()).toBe(body);
    return await answer.done;
  };
  expect(await send()).toMatchObject({ model: 'm', usage: { outputTokens: 2 } });
  const crowded = budget.open('a');
  expect(await send(crowded)).toMatchObject({ model: null, usage: null });
  expect(budget.stats().heldBytes).toBeLessThan(90_000);
});

test('what a stream holds for a slow reader is counted, and without memory the stream is not read', async () => {
  memory = createMemoryBudget(mebibyte / 4);
  lease = memory.open('a');
  let written = 0;
  const event = `data: ${JSON.stringify({ choices: [{ index: 0, delta: { content: 'x'.repeat(4_000) } }] })}\n\n`;
  const outcome = await settle(
    async (reply) => {
      reply.head(200, { 'content-type': 'text/event-stream' });
      for (; written < 4_000 && !reply.isClosed(); written += 1) await reply.write(event);
      await reply.write('data: [DONE]\n\n');
      reply.end();
    },
    { stream: true },
  );
  if (outcome.kind !== 'stream') throw new Error(`no stream: ${outcome.kind}`);
  await vi.waitFor(() => expect(held()).toBeGreaterThan(100_000));
  let received = 0;
  for await (const payloads of outcome.events) received += payloads.length;
  expect(received).toBe(4_000);
  expect(held()).toBe(0);
});

test('an incomplete event of a stream that passes is counted as well, and without memory it is not read', async () => {
  const memory = createMemoryBudget(mebibyte);
  const lease = memory.open('a');
  rig = await startForwardingRig(async (reply) => {
    reply.head(200, { 'content-type': 'text/event-stream' });
    await reply.write(`data: ${'x'.repeat(200_000)}`);
    await new Promise((resolve) => setTimeout(resolve, 100));
    await reply.write(`${'x'.repeat(700_000)}","usage":{"input_tokens":1,"output_tokens":2}}\n\n`);
    reply.end();
  });
  const signal = new AbortController().signal;
  const call = { area: 'responses', method: 'GET', path: '/responses/1', accept: null, headers: {} } as const;
  const sent = { ...call, model: null, body: null, contentType: null, contentLength: null, signal, memory: lease };
  const answer = await rig.forwarder.relay(sent, rig.target);
  let most = 0;
  for await (const _chunk of answer.body) most = Math.max(most, memory.stats().heldBytes);
  expect(most).toBeGreaterThan(200_000);
  expect(await answer.done).toMatchObject({ usage: null, error: null });
  expect(memory.stats().heldBytes).toBe(0);
});

test('little is kept of an answer that passes and is not read', async () => {
  rig = await startForwardingRig((reply) =>
    reply.respond(200, 'x'.repeat(8_000_000), { 'content-type': 'audio/mpeg' }),
  );
  const signal = new AbortController().signal;
  const call = { area: 'audio', method: 'POST', path: '/audio/speech', accept: null, headers: {} } as const;
  const sent = { ...call, model: null, body: null, contentType: null, contentLength: null, signal };
  const answer = await rig.forwarder.relay(sent, rig.target);
  await vi.waitFor(() => expect(answer.body.readableLength).toBeGreaterThanOrEqual(65_536));
  await sleep(100);
  expect(answer.body.readableLength).toBeLessThan(140_000);
  expect(Buffer.concat(await answer.body.toArray())).toHaveLength(8_000_000);
});
