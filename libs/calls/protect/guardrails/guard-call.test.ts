import { afterAll, describe, expect, test } from 'vitest';
import { GuardrailList, type Guardrail } from '#libs/contracts/configs/guardrails.ts';
import type {
  GuardrailRun,
  ForwardRequest,
  JsonAnswer,
  Outcome,
  StreamAnswer,
  StreamSummary,
  Target,
} from '#libs/calls/call.ts';
import { createEgress } from '#libs/calls/upstream/egress/egress.ts';
import { parseEgressAllow } from '#libs/calls/upstream/egress/egress-allow.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { createLogger } from '#libs/kernel/logging/logger.ts';
import { createMemoryBudget } from '#libs/kernel/sharing/memory-budget.ts';
import { chatRequest, completion } from '#test/forwarding-rig.ts';
import { createRetryBudget } from '#libs/calls/retry.ts';
import { guardCall, type GuardedCall } from './guard-call.ts';
import { createGuardrails } from './guardrails.ts';
import { createAnswerTexts } from './texts/answer-texts.ts';
import { createTextChecker } from './text-checker.ts';

const egress = createEgress({ allow: parseEgressAllow('') });
afterAll(() => egress.stop());
const logger = createLogger({ name: 'test', level: 'silent' });
const textChecker = createTextChecker({ threads: 1 });
const answerTexts = createAnswerTexts({ threads: 1 });
afterAll(() => Promise.all([textChecker.stop(), answerTexts.stop()]));
const guardrails = createGuardrails({ egress, clock: { now: () => 0 }, logger, textChecker, answerTexts });

const attempt = { startedAt: 0, durationMs: 1, status: 200, errorCode: null };
const answer = (content: string, more: Partial<JsonAnswer> = {}): JsonAnswer => ({
  kind: 'json',
  status: 200,
  headers: { 'x-gateway-cache-status': 'MISS' },
  providerRequestId: 'req_1',
  attempts: [attempt],
  usage: { inputTokens: 1, cachedTokens: 0, outputTokens: 2, reasoningTokens: 0 },
  model: 'm',
  finishReason: 'stop',
  body: Buffer.from(
    JSON.stringify({ ...completion, choices: [{ index: 0, message: { role: 'assistant', content } }] }),
  ),
  contentType: 'application/json',
  ...more,
});
async function allOf(events: StreamAnswer['events']): Promise<(readonly string[])[]> {
  const batches = [];
  for await (const batch of events) batches.push(batch);
  return batches;
}

type Result = { status: number; body: Record<string, unknown>; made: boolean[]; outcome: JsonAnswer };

async function guard(
  lists: { input?: object[]; output?: object[] },
  answers: readonly Outcome[] = [answer('fine')],
  more: Partial<GuardedCall> = {},
): Promise<Result> {
  const made: boolean[] = [];
  const outcome = (await guardCall(guardrails, {
    input: GuardrailList.parse(lists.input ?? []),
    output: GuardrailList.parse(lists.output ?? []),
    request: chatRequest(),
    target: { provider: 'openai' } as Target,
    model: 'gpt-test',
    metadata: null,
    mayRepeat: () => false,
    make: async (isRepeat) => {
      made.push(isRepeat);
      return answers[made.length - 1] ?? (answers.at(-1) as Outcome);
    },
    ...more,
  })) as JsonAnswer;
  const body = outcome.kind === 'json' ? (JSON.parse(outcome.body.toString()) as Record<string, unknown>) : {};
  return { status: outcome.status, body, made, outcome };
}

/** What the retries of a call with at most `attemptsMax` attempts say of an answer that was rejected. */
const repeats = (statuses: readonly number[], attemptsMax: number) =>
  createRetryBudget({ statuses, attemptsMax, baseDelayMs: 1, maxDelayMs: 1, deadlineAt: Infinity }, () => 0)
    .repeatRejected;

const never = { contains: { words: ['never said'] } };
const denyBad = { contains: { words: ['bad'], operator: 'none' }, deny: true };

test("a denied input is answered with 446, in Portkey's format, and no call is made", async () => {
  const { status, body, made, outcome } = await guard({ input: [{ ...never, deny: true }] });
  expect([status, made, outcome.attempts]).toEqual([446, [], []]);
  expect(body).toMatchObject({
    error: {
      type: 'hooks_failed',
      param: null,
      code: null,
      message: expect.stringContaining('hook_results') as string,
    },
    hook_results: {
      before_request_hooks: [{ type: 'guardrail', verdict: false, deny: true, checks: [{ id: 'default.contains' }] }],
      after_request_hooks: [],
    },
  });
});

test('a denied output is answered with 446, keeps its usage, and does not show the answer', async () => {
  const { status, body, outcome } = await guard({ output: [denyBad] }, [answer('a bad word')]);
  expect(status).toBe(446);
  expect(outcome.usage).toEqual({ inputTokens: 1, cachedTokens: 0, outputTokens: 2, reasoningTokens: 0 });
  expect([outcome.attempts.length, outcome.providerRequestId]).toEqual([1, 'req_1']);
  expect(outcome.headers).toEqual({ 'x-gateway-cache-status': 'MISS' });
  expect(JSON.stringify(body)).not.toContain('a bad word');
});

test('a failure without deny turns a success into 246, with its bytes kept and the results added', async () => {
  const [made] = [answer('fine')];
  const { status, body, outcome } = await guard({ input: [never], output: [{ ...never, id: 'out' }] }, [made]);
  expect(status).toBe(246);
  expect(outcome.body.toString().startsWith(made.body.toString().slice(0, -1))).toBe(true);
  expect(body['hook_results']).toMatchObject({
    before_request_hooks: [{ verdict: false }],
    after_request_hooks: [{ id: 'out', verdict: false }],
  });
});

test('results of checks that passed are shown only without strict compliance', async () => {
  const input = [{ characterCount: { min: 1 } }];
  const made = answer('fine');
  expect((await guard({ input }, [made])).outcome.body).toBe(made.body);
  const { status, body } = await guard({ input }, [made], { request: chatRequest({ strict: false }) });
  expect(status).toBe(200);
  expect(body['hook_results']).toMatchObject({ before_request_hooks: [{ verdict: true }], after_request_hooks: [] });
});

test('the body of an answer can be freed after it was sent unless a guardrail of its output can still read it', async () => {
  const freeBody = (): void => {};
  const guarded = async (lists: Parameters<typeof guard>[0]): Promise<JsonAnswer> =>
    (await guard(lists, [answer('fine', { freeBody })])).outcome;
  expect((await guarded({ input: [{ ...never, async: true }] })).freeBody).toBe(freeBody);
  expect((await guarded({ output: [{ ...never, async: true }] })).freeBody).toBeUndefined();
});

test('each run of guardrails is told of, with what it found', async () => {
  const runs: GuardrailRun[] = [];
  await guard({ input: [{ contains: { words: ['Hello'] } }], output: [denyBad] }, [answer('a bad word')], {
    ran: (run) => runs.push(run),
  });
  expect(runs).toMatchObject([
    { kind: 'input_guardrails', durationMs: expect.any(Number) },
    { kind: 'output_guardrails', outcome: 'denied' },
  ]);
  expect(runs).toHaveLength(2);
});

test('each result has the stored guardrail that it comes from, without those that run in the background', async () => {
  const runs: GuardrailRun[] = [];
  const [inline, async, denying] = GuardrailList.parse([never, { ...never, async: true }, denyBad]) as Guardrail[];
  const record = { id: 'guardrail_1', slug: 'no-bad', version: 4 };
  const input = [inline, async, { ...denying, id: 'no-bad', record }] as Guardrail[];
  await guard({}, [answer('fine')], {
    input,
    ran: (run) => runs.push(run),
  });
  expect(runs.map(({ verdicts }) => verdicts)).toEqual([
    [
      { id: 'input_guardrail_1', slug: null, version: null, verdict: 'failed' },
      { ...record, verdict: 'passed' },
    ],
  ]);
});

test('an error keeps its status and body', async () => {
  const { status, body } = await guard({ input: [never], output: [denyBad] }, [answer('bad', { status: 429 })]);
  expect(status).toBe(429);
  expect(body['hook_results']).toBeUndefined();
});

describe('a stream', () => {
  const request = chatRequest({ stream: true });
  const chunk = (delta: object, more: object = {}): string =>
    JSON.stringify({ id: 'c1', object: 'chat.completion.chunk', model: 'm', choices: [{ index: 0, delta, ...more }] });
  const finished = chunk({}, { finish_reason: 'stop' });
  const usage = { inputTokens: 1, cachedTokens: 0, outputTokens: 2, reasoningTokens: 0 };

  /** A stream of these payloads, which can break off. Returns how it was answered. */
  function streamed(payloads: readonly string[], error: GatewayError | null = null) {
    const done = Promise.withResolvers<StreamSummary>();
    const state = { read: 0, isLeft: false };
    const summary = { usage, model: 'm', finishReason: 'stop', complete: error === null, firstEventMs: 3, error };
    const events = (async function* () {
      try {
        for (const payload of payloads) {
          state.read += 1;
          yield [payload];
        }
        if (error !== null) throw error;
      } finally {
        state.isLeft = state.read < payloads.length;
        done.resolve(summary);
      }
    })();
    const head = { ...answer(''), usage: null, model: null, finishReason: null };
    return { outcome: { ...head, kind: 'stream' as const, events, done: done.promise }, state };
  }

  const pass = async (
    lists: Parameters<typeof guard>[0],
    payloads: readonly string[],
    more: Partial<ForwardRequest> = {},
  ) => {
    const { outcome, state } = streamed(payloads);
    const result = (await guard(lists, [outcome], { request: { ...request, ...more } })).outcome as Outcome;
    if (result.kind !== 'stream') return { result, state, said: [] as string[], done: null };
    const readBefore = state.read;
    const said = (await allOf(result.events)).flat();
    return { result, state, said, done: await result.done, readBefore };
  };

  test('is denied by input guardrails before it begins, and has status 246 if they only report a failure', async () => {
    expect((await pass({ input: [{ ...never, deny: true }] }, [finished])).result).toMatchObject({ status: 446 });
    const { result, said } = await pass({ input: [never] }, [finished]);
    expect([result, said]).toMatchObject([{ status: 246 }, [finished]]);
  });

  test('is held until a guardrail that denies has checked all of it, and is then sent unchanged', async () => {
    const payloads = [chunk({ role: 'assistant', content: 'very ba' }), chunk({ content: 'd words' }), finished];
    const denied = await pass({ output: [denyBad] }, payloads);
    expect(denied.result).toMatchObject({ kind: 'json', status: 446, usage, attempts: [attempt] });
    const good = [chunk({ role: 'assistant', content: 'very go' }), chunk({ content: 'od words' }), finished];
    const { result, said, readBefore, done } = await pass({ output: [denyBad] }, good);
    expect([result, said, readBefore]).toMatchObject([{ status: 200 }, good, good.length]);
    expect(done).toMatchObject({ usage, complete: true, error: null });
  });

  test.each<[string, object[]]>([
    ['what it thinks', [{ reasoning_content: 'b' }, { reasoning_content: 'ad' }]],
    ['what it thinks, by another name', [{ reasoning: 'bad' }]],
    ['a refusal', [{ refusal: 'bad' }]],
    ['parts of a content', [{ content: [{ type: 'text', text: 'bad' }] }]],
    ['the words of audio', [{ audio: { transcript: 'ba' } }, { audio: { transcript: 'd' } }]],
    [
      'arguments of a tool call',
      [0, 1].map((n) => ({ tool_calls: [{ index: 3, function: { arguments: ['b', 'ad'][n] } }] })),
    ],
    ['the name of a tool', [{ tool_calls: [{ index: 0, id: 'c', function: { name: 'bad', arguments: '' } }] }]],
    ['the input of a custom tool', [{ tool_calls: [{ index: 0, custom: { name: 'f', input: 'bad' } }] }]],
    [
      'arguments of a function call',
      [{ function_call: { name: 'f', arguments: 'b' } }, { function_call: { arguments: 'ad' } }],
    ],
  ])('is judged by %s', async (_what, deltas) => {
    const payloads = [...deltas.map((delta) => chunk(delta)), finished];
    expect((await pass({ output: [denyBad] }, payloads)).result).toMatchObject({ status: 446 });
  });

  test('is checked in each of its choices, and words are not joined from pieces of different choices', async () => {
    const of = (index: number, content: string) => chunk({ content }, { index });
    const mixed = [of(0, 'b'), of(1, 'ad'), of(0, 'ig'), of(1, 'd')];
    expect((await pass({ output: [denyBad] }, mixed)).result).toMatchObject({ status: 200 });
    const second = [of(0, 'b'), of(1, 'b'), of(0, 'ig'), of(1, 'ad')];
    expect((await pass({ output: [denyBad] }, second)).result).toMatchObject({ status: 446 });
  });

  test('of completions is checked by its texts', async () => {
    const payloads = ['ba', 'd'].map((text) => JSON.stringify({ choices: [{ index: 0, text }] }));
    expect((await pass({ output: [denyBad] }, payloads, { operation: 'completions' })).result).toMatchObject({
      status: 446,
    });
  });

  test('that is held has status 246 and the results in its last event when a guardrail that only reports fails', async () => {
    const output = [{ ...never, id: 'mine', stream_mode: 'hold' }];
    const { result, said, done } = await pass({ output }, [chunk({ content: 'x' }), finished], { includeUsage: true });
    expect([result.kind, result.kind === 'stream' && result.status, said.length]).toEqual(['stream', 246, 3]);
    expect(JSON.parse(said.at(-1) ?? '')).toMatchObject({
      id: 'c1',
      object: 'chat.completion.chunk',
      choices: [],
      usage: null,
      hook_results: { before_request_hooks: [], after_request_hooks: [{ id: 'mine', verdict: false }] },
    });
    expect(done?.status).toBeUndefined();
  });

  test('that is annotated is sent as it arrives, and its last event has the results, passed or failed', async () => {
    for (const [word, status] of [
      ['bad', 246],
      ['good', undefined],
    ] as const) {
      const payloads = [chunk({ content: word }), finished];
      const { result, said, readBefore, done } = await pass({ output: [{ ...denyBad, deny: false }] }, payloads);
      expect([result.kind === 'stream' && result.status, readBefore, said.slice(0, -1)]).toEqual([200, 0, payloads]);
      const { hook_results: results } = JSON.parse(said.at(-1) ?? '') as { hook_results: object };
      expect(results).toMatchObject({ after_request_hooks: [{ verdict: word === 'good', deny: false }] });
      expect([done?.status, done?.usage]).toEqual([status, usage]);
    }
  });

  test('that only async guardrails check has no additional event', async () => {
    const { said } = await pass({ output: [{ ...never, async: true }] }, [finished]);
    expect(said).toEqual([finished]);
  });

  test('that is annotated can be left by its client, and breaks off like any other', async () => {
    const left = streamed([finished, finished]);
    const first = (await guard({ output: [never] }, [left.outcome], { request })).outcome as unknown as StreamAnswer;
    const iterator = first.events[Symbol.asyncIterator]();
    await iterator.next();
    await iterator.return?.();
    expect(left.state.isLeft).toBe(true);
    expect(await first.done).toMatchObject({ usage });
    const error = new GatewayError('provider_failed', 'upstream_truncated', 'cut');
    const dead = streamed([finished], error);
    const second = (await guard({ output: [never] }, [dead.outcome], { request })).outcome as unknown as StreamAnswer;
    await expect(allOf(second.events)).rejects.toBe(error);
    expect(await second.done).toMatchObject({ error });
  });

  test('that breaks off while it is held is a failure with its usage', async () => {
    const error = new GatewayError('provider_failed', 'upstream_truncated', 'cut');
    const { outcome } = await guard({ output: [denyBad] }, [streamed([chunk({ content: 'x' })], error).outcome], {
      request,
    });
    expect(outcome).toMatchObject({ kind: 'failed', error: { code: 'upstream_truncated' }, lostAnswer: { usage } });
  });

  test('is held within the memory of its call, and up to the length that guardrails read', async () => {
    const long = chunk({ content: 'x'.repeat(100_000) });
    const memory = createMemoryBudget(4_000_000).open('a');
    const outcomes = [];
    for (const held of [memory, undefined]) {
      const { outcome, state } = streamed(Array.from({ length: 400 }, () => long));
      const more = { request: { ...request, memory: held } };
      outcomes.push([(await guard({ output: [denyBad] }, [outcome], more)).outcome, state.isLeft]);
    }
    expect(outcomes).toMatchObject([
      [{ kind: 'failed', error: { code: 'server_overloaded' }, lostAnswer: { usage } }, true],
      [{ kind: 'failed', error: { code: 'upstream_response_too_large' } }, true],
    ]);
  });

  test('that is denied is requested again where a retry lists 446', async () => {
    const [bad, good] = [streamed([chunk({ content: 'bad' })]), streamed([chunk({ content: 'good' })])];
    const mayRepeat = repeats([446], 2);
    const { outcome, made } = await guard({ output: [denyBad] }, [bad.outcome, good.outcome], { request, mayRepeat });
    expect([outcome.status, made]).toEqual([200, [false, true]]);
  });
});

test('an output that fails with a listed status is requested again, up to the maximum of attempts', async () => {
  const good = await guard({ output: [denyBad] }, [answer('bad'), answer('good')], { mayRepeat: repeats([446], 3) });
  expect([good.status, good.made, good.outcome.attempts.length]).toEqual([200, [false, true], 2]);
  const bad = await guard({ output: [denyBad] }, [answer('bad')], { mayRepeat: repeats([446], 3) });
  expect([bad.status, bad.made.length, bad.outcome.attempts.length]).toEqual([446, 3, 3]);
  const unlisted = await guard({ output: [denyBad] }, [answer('bad')], { mayRepeat: repeats([500], 3) });
  expect(unlisted.made).toHaveLength(1);
});

test('checks see the request that the provider gets, with overrides applied', async () => {
  const request = chatRequest({ edits: { messages: '[{"role":"user","content":"a bad override"}]' } });
  expect((await guard({ input: [denyBad] }, undefined, { request })).status).toBe(446);
});

test('a guardrail that cannot be used is an error of the request', async () => {
  const { outcome } = await guard({ input: [{ regexMatch: { rule: '(?=x)' } }] });
  expect(outcome).toMatchObject({ kind: 'failed', error: { kind: 'invalid_request' } });
});

test('an answer that nests too deeply for a webhook is a failure with the usage of the call', async () => {
  const deep = Buffer.from(`{"choices":${'['.repeat(500_000)}${']'.repeat(500_000)}}`);
  const hook = { webhook: { webhookURL: 'https://example.com/' } };
  const { outcome } = await guard({ output: [hook] }, [answer('', { body: deep })]);
  expect(outcome).toMatchObject({
    kind: 'failed',
    error: { code: 'upstream_invalid_response' },
    attempts: [attempt],
    lostAnswer: { usage: { inputTokens: 1, outputTokens: 2 } },
  });
});

test('a call held for an async guardrail counts with the values of its bodies', async () => {
  const sizes: number[] = [];
  const watching = {
    ...guardrails,
    evaluate: (...given: Parameters<typeof guardrails.evaluate>) => {
      sizes.push(given[1].sizeBytes);
      return guardrails.evaluate(...given);
    },
  };
  const memory = createMemoryBudget(100_000_000).open('ws_test');
  memory.charge(4_000_000); // a body of 200 kB, parsed
  const dense = Buffer.from(JSON.stringify({ ...completion, x: Array.from({ length: 50_000 }, () => ({})) }));
  await guardCall(watching, {
    input: GuardrailList.parse([{ contains: { words: ['a'] } }]),
    output: GuardrailList.parse([{ contains: { words: ['a'] } }]),
    request: { ...chatRequest(), memory },
    target: { provider: 'openai' } as Target,
    model: 'gpt-test',
    metadata: null,
    mayRepeat: () => false,
    make: async () => answer('', { body: dense }),
  });
  expect(sizes[0]).toBe(4_000_000);
  expect(sizes[1]).toBeGreaterThan(4_000_000 + 50_000 * 64);
});

describe('a large answer', () => {
  const large = (choice: object): JsonAnswer => {
    const body = { ...completion, choices: [{ index: 0, message: { role: 'assistant', content: 'fine' }, ...choice }] };
    return answer('', { body: Buffer.from(JSON.stringify(body)) });
  };
  const said = (content: string) => ({ message: { role: 'assistant', content } });

  test('is checked by its texts, wherever they stand', async () => {
    const good = large(said('good '.repeat(100_000)));
    expect((await guard({ output: [denyBad] }, [good])).outcome).toMatchObject({ status: 200, body: good.body });
    expect(await guard({ output: [denyBad] }, [large(said(`${'good '.repeat(100_000)}bad`))])).toMatchObject({
      status: 446,
    });
  });

  test('with very many values is checked, and counts in the memory of its call', async () => {
    const memory = createMemoryBudget(400_000_000).open('a');
    const request = { ...chatRequest(), memory };
    const dense = large({ logprobs: { content: Array.from({ length: 200_000 }, () => ({})) } });
    expect(await guard({ output: [denyBad] }, [dense], { request })).toMatchObject({ status: 200 });
    expect(memory.usedBytes).toBeGreaterThan(200_000 * 64);
    const wide = large({ logprobs: { content: Array.from({ length: 3_000_000 }, () => ({})) } });
    const { outcome } = await guard({ output: [denyBad] }, [wide], { request });
    expect(outcome).toMatchObject({
      kind: 'failed',
      error: { code: 'upstream_response_too_large' },
      lostAnswer: { usage: { outputTokens: 2 } },
    });
  });

  test('without texts passes checks of texts, whatever its size', async () => {
    const body = Buffer.concat([Buffer.from('{"data":['), Buffer.alloc(20_000_000, '1,'), Buffer.from('1]}')]);
    const request = chatRequest({ operation: 'embeddings' });
    expect(await guard({ output: [denyBad] }, [answer('', { body })], { request })).toMatchObject({ status: 200 });
  });
});
