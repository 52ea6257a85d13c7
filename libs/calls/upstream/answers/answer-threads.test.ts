import { afterAll, afterEach, beforeEach, describe, expect, test } from 'vitest';
import type { GatewayError } from '#libs/kernel/errors.ts';
import { createMemoryBudget, type MemoryBudget, type MemoryLease } from '#libs/kernel/sharing/memory-budget.ts';
import { Secret } from '#libs/kernel/logging/secret.ts';
import { chatRequest, completion, readStream, startForwardingRig, type ForwardingRig } from '#test/forwarding-rig.ts';
import type { UpstreamScript } from '#test/upstream.ts';
import type { ForwardRequest, JsonAnswer, Outcome, StreamAnswer, Target } from '#libs/calls/call.ts';
import { createAnswerThreads, type AnswerThreads } from './answer-threads.ts';

const mebibyte = 1_048_576;
const json = { 'content-type': 'application/json' };
const retrying = { attemptsMax: 3, baseDelayMs: 1, maxDelayMs: 1, deadlineAt: Number.MAX_SAFE_INTEGER };

const leaseBytesMax = 96 * mebibyte;
const threads = createAnswerThreads({ threads: 2, leaseBytesMax });
afterAll(() => threads.stop());

let memory: MemoryBudget;
let lease: MemoryLease;
let rig: ForwardingRig;
beforeEach(() => {
  memory = createMemoryBudget((leaseBytesMax * 4) / 3);
  lease = memory.open('a');
});
afterEach(() => rig.stop());

async function settle(
  script: UpstreamScript,
  request: Partial<ForwardRequest> & { text?: string } = {},
  target: Partial<Target> = {},
  over: AnswerThreads | null = threads,
): Promise<Outcome> {
  rig = await startForwardingRig(script, over === null ? {} : { threads: over });
  return await rig.forwarder.settle(chatRequest({ memory: lease, ...request }), { ...rig.target, ...target }, retrying);
}

const said = 'It is a long story. '.repeat(20_000);
const numbers = Array.from({ length: 1_500 }, (_value, index) => Number((Math.sin(index + 1) / 3).toFixed(9)));
const vectors = Array.from({ length: 40 }, () => numbers);
const embed = (format = '', model = 'amazon.titan-embed-text-v2:0'): Partial<ForwardRequest> => ({
  operation: 'embeddings',
  body: Buffer.from(`{"model":"${model}","input":"a"${format}}`),
});
const tools =
  '{"model":"m","messages":[{"role":"user","content":"hi"}],"functions":[{"name":"f","parameters":{"type":"object"}}]}';

const aws = { settings: { aws_region: 'eu-west-1' } };
const answers: [string, object, Partial<ForwardRequest> & { text?: string }, Partial<Target>?][] = [
  [
    'anthropic',
    {
      id: 'msg_1',
      content: [
        { type: 'text', text: said },
        { type: 'tool_use', id: 't', name: 'f', input: { x: [1, { y: 2 }] } },
      ],
      stop_reason: 'tool_use',
      usage: { input_tokens: 5, output_tokens: 7 },
    },
    { text: tools },
  ],
  [
    'gemini',
    {
      responseId: 'r1',
      createTime: '2026-01-01T00:00:00Z',
      candidates: [{ index: 0, content: { parts: [{ text: said }] }, finishReason: 'MAX_TOKENS' }],
      usageMetadata: { promptTokenCount: 5, candidatesTokenCount: 7 },
    },
    {},
  ],
  [
    'cohere',
    {
      id: 'c1',
      message: { role: 'assistant', content: [{ type: 'text', text: said }] },
      finish_reason: 'COMPLETE',
      usage: { tokens: { input_tokens: 5, output_tokens: 7 } },
    },
    {},
  ],
  [
    'bedrock',
    {
      output: { message: { role: 'assistant', content: [{ text: said }] } },
      stopReason: 'end_turn',
      usage: { inputTokens: 5, outputTokens: 7 },
    },
    {},
    aws,
  ],
  ['bedrock', { embedding: numbers.concat(...vectors), inputTextTokenCount: 3 }, embed(), aws],
  ['cohere', { embeddings: { float: vectors }, meta: { billed_units: { input_tokens: 3 } } }, embed()],
  [
    'gemini',
    { embeddings: vectors.map((values) => ({ values })) },
    embed(',"encoding_format":"base64"', 'gemini-embedding-001'),
  ],
  [
    'deepseek',
    { ...completion, choices: [{ index: 0, message: { role: 'assistant', reasoning: said }, finish_reason: 'stop' }] },
    {},
  ],
];

/** The members in which two readings of one answer can differ: times and generated IDs. */
const comparable = (outcome: Outcome): object => {
  expect(outcome).toMatchObject({ kind: 'json', status: 200 });
  const { body, usage, model, finishReason } = outcome as JsonAnswer;
  const { id: _id, created: _created, ...value } = JSON.parse(body.toString()) as Record<string, unknown>;
  return { value, usage, model, finishReason };
};

describe('a large answer that has to be translated', () => {
  test.each(answers)(
    'of %s is read in a thread as it would be read here',
    async (provider, answer, request, target) => {
      const script: UpstreamScript = (reply) => reply.json(200, answer);
      const { begun } = threads.stats();
      const there = await settle(script, request, { provider, ...target });
      expect(threads.stats().begun).toBe(begun + 2);
      expect(memory.stats().heldBytes).toBe((there as JsonAnswer).body.length);
      await rig.stop();
      const here = await settle(script, { ...request, memory: memory.open('b') }, { provider, ...target }, null);
      expect(comparable(there)).toEqual(comparable(here));
    },
  );

  test('whose value and translation never fit into the memory of a call is an error, and is requested once', async () => {
    const small = createMemoryBudget(4 * mebibyte);
    const content = [{ type: 'text', text: 'x'.repeat(900_000) }];
    const answer = { id: 'msg_1', content, stop_reason: 'end_turn', usage: { input_tokens: 5, output_tokens: 7 } };
    const outcome = await settle(
      (reply) => reply.json(200, answer),
      { memory: small.open('a') },
      { provider: 'anthropic' },
    );
    expect(outcome).toMatchObject({ kind: 'failed', error: { code: 'upstream_response_too_large' } });
    expect(rig.upstream.requests).toHaveLength(1);
    expect(small.stats().heldBytes).toBe(0);
  });

  test('becomes the stream that was asked for', async () => {
    const choices = [{ index: 0, message: { role: 'assistant', content: said }, finish_reason: 'stop' }];
    const outcome = await settle((reply) => reply.json(200, { ...completion, choices }), { stream: true });
    const { payloads, summary } = await readStream(outcome as StreamAnswer);
    expect(payloads.join('')).toContain(said);
    expect(summary).toMatchObject({ complete: true, usage: { outputTokens: 7 }, finishReason: 'stop' });
  });

  test('is a failure if its translation finds one, and is requested again', async () => {
    const lost = { candidates: [{ index: 0, finishReason: 'MALFORMED_FUNCTION_CALL', finishMessage: said }] };
    const outcome = await settle((reply) => reply.json(200, lost), {}, { provider: 'gemini' });
    expect(outcome).toMatchObject({ kind: 'failed', error: { code: 'upstream_invalid_response' } });
    expect(rig.upstream.requests).toHaveLength(3);
    expect(memory.stats().heldBytes).toBe(0);
  });
});

test('a small answer with so many values that it would block others is read in a thread, any other is not', async () => {
  const answerWith = (x: object[]): UpstreamScript => {
    const content = [{ type: 'tool_use', id: 't', name: 'f', input: { x } }];
    return (reply) => reply.json(200, { id: 'msg_1', content, stop_reason: 'tool_use', usage: {} });
  };
  const { begun } = threads.stats();
  const dense = Array.from({ length: 40_000 }, () => ({}));
  const outcome = await settle(answerWith(dense), { text: tools }, { provider: 'anthropic' });
  expect(threads.stats().begun).toBe(begun + 2);
  expect(comparable(outcome)).toMatchObject({ finishReason: 'function_call' });
  await rig.stop();
  await settle(answerWith(dense.slice(0, 1_000)), { text: tools }, { provider: 'anthropic' });
  expect(threads.stats().begun).toBe(begun + 2);
});

test('a large answer that passes unchanged keeps its bytes, whether or not its length is known', async () => {
  const body = Buffer.from(JSON.stringify({ ...completion, x: 'ü'.repeat(2 * mebibyte) }));
  const chunked: UpstreamScript = async (reply) => {
    reply.head(200, json);
    for (let at = 0; at < body.length; at += 100_000) await reply.write(body.subarray(at, at + 100_000));
    reply.end();
  };
  for (const script of [chunked, ((reply) => reply.respond(200, body, json)) satisfies UpstreamScript]) {
    const { begun } = threads.stats();
    const outcome = await settle(script);
    expect(threads.stats().begun).toBe(begun + 1);
    expect(outcome).toMatchObject({ kind: 'json', status: 200, model: completion.model });
    expect((outcome as JsonAnswer).body.equals(body)).toBe(true);
    expect(memory.stats().heldBytes).toBe(body.length);
    lease.become(0);
    await rig.stop();
  }
});

test('a large answer that passes unchanged is read in a thread only if that takes long', async () => {
  const padded = (more: object): Buffer => Buffer.from(JSON.stringify({ ...completion, x: said, ...more }));
  const cases: [Buffer, number][] = [
    [padded({}), 0],
    [padded({ y: numbers }), 0],
    [padded({ y: vectors }), 1],
    [padded({ y: 'x'.repeat(mebibyte) }), 1],
    [Buffer.from(`${JSON.stringify(completion).slice(0, -1)},"x":"${said}"`), 0],
  ];
  for (const [body, moved] of cases) {
    const script: UpstreamScript = (reply) => reply.respond(200, body, json);
    const { begun } = threads.stats();
    const there = await settle(script);
    expect(threads.stats().begun).toBe(begun + moved * there.attempts.length);
    lease.become(0);
    await rig.stop();
    const here = await settle(script, { memory: undefined }, {}, null);
    const figures = ({
      kind,
      body,
      usage,
      model,
      finishReason,
      error,
    }: Partial<JsonAnswer & { error: GatewayError }>) => [
      kind,
      body?.toString(),
      usage,
      model,
      finishReason,
      error?.code,
    ];
    expect(figures(there as JsonAnswer)).toEqual(figures(here as JsonAnswer));
    await rig.stop();
  }
});

describe('an answer that cannot be read', () => {
  const failed = async (outcome: Promise<Outcome>, code: string, calls: number): Promise<void> => {
    expect(await outcome).toMatchObject({ kind: 'failed', error: { code }, attempts: { length: calls } });
    expect(memory.stats().heldBytes).toBe(0);
  };
  const claude = { provider: 'anthropic' };

  test('because there is no memory is an error of its call, and is requested once', async () => {
    const many = `{"content":[${'{},'.repeat(2_000_000)}{}]}`;
    await failed(
      settle((reply) => reply.respond(200, many, json), {}, claude),
      'upstream_response_too_large',
      1,
    );
  });

  test('because there is no time is an error of its call, and is requested once', async () => {
    const hurried = createAnswerThreads({ threads: 1, leaseBytesMax, timeoutMs: 1 });
    try {
      const body = `{"content":[{"type":"text","text":"${said}"}]}`;
      const outcome = settle((reply) => reply.respond(200, body, json), {}, claude, hurried);
      await failed(outcome, 'upstream_response_too_large', 1);
    } finally {
      await hurried.stop();
    }
  });

  test('because it nests too deeply, or is not JSON, is an error', async () => {
    const deep = `{"content":${'['.repeat(200_000)}${']'.repeat(200_000)}}`;
    await failed(
      settle((reply) => reply.respond(200, deep, json), {}, claude),
      'upstream_invalid_response',
      3,
    );
    await rig.stop();
    await failed(
      settle((reply) => reply.respond(200, said, json), {}, claude),
      'upstream_invalid_response',
      3,
    );
    expect(await settle((reply) => reply.respond(200, said, json), {}, claude)).toMatchObject({
      error: { message: expect.stringContaining('It starts with: "It is a long story.') },
    });
  });

  test('because its caller left holds nothing', async () => {
    const controller = new AbortController();
    const slow = createAnswerThreads({ threads: 1, leaseBytesMax });
    try {
      const leaving: AnswerThreads = {
        ...slow,
        read: (body) => {
          const reading = slow.read(body);
          controller.abort();
          return reading;
        },
      };
      const body = `{"content":[{"type":"text","text":"${said}"}]}`;
      const { signal } = controller;
      await failed(
        settle((reply) => reply.respond(200, body, json), { signal }, claude, leaving),
        'call_aborted',
        1,
      );
    } finally {
      await slow.stop();
    }
  });
});

test('a credential in a large answer that is an error is not shown', async () => {
  const apiKey = new Secret('sk-of-nobody-else-0123456789');
  const body = { error: { message: `Not ${apiKey.reveal()}.`, type: 'server_error' }, padding: said };
  const outcome = await settle((reply) => reply.json(200, body), {}, { apiKey });
  expect(outcome).toMatchObject({ kind: 'json', status: 502 });
  expect((outcome as JsonAnswer).body.toString()).not.toContain(apiKey.reveal());
});
