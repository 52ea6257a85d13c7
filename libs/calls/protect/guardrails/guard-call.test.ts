import { afterAll, describe, expect, test } from 'vitest';
import { GuardrailList } from '#libs/contracts/guardrails.ts';
import type { JsonAnswer, Outcome, StreamAnswer, Target } from '#libs/calls/call.ts';
import { createEgress } from '#libs/calls/upstream/egress.ts';
import { parseEgressAllow } from '#libs/calls/upstream/egress-allow.ts';
import { createLogger } from '#libs/kernel/logger.ts';
import { createMemoryBudget } from '#libs/kernel/memory-budget.ts';
import { chatRequest, completion } from '#test/forwarding-rig.ts';
import { guardCall, type GuardedCall } from './guard-call.ts';
import { createGuardrails } from './guardrails.ts';
import { createAnswerTexts } from './answer-texts.ts';
import { createTextJudge } from './text-judge.ts';

const egress = createEgress({ allow: parseEgressAllow('') });
afterAll(() => egress.stop());
const logger = createLogger({ name: 'test', level: 'silent' });
const textJudge = createTextJudge({ threads: 1 });
const answerTexts = createAnswerTexts({ threads: 1 });
afterAll(() => Promise.all([textJudge.stop(), answerTexts.stop()]));
const guardrails = createGuardrails({ egress, clock: { now: () => 0 }, logger, textJudge, answerTexts });

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
const stream = (): StreamAnswer => ({
  ...answer(''),
  kind: 'stream',
  events: (async function* () {
    yield ['{}'];
  })(),
  done: new Promise(() => {}),
});

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
    make: async (isRepeat) => {
      made.push(isRepeat);
      return answers[made.length - 1] ?? (answers.at(-1) as Outcome);
    },
    ...more,
  })) as JsonAnswer;
  const body = outcome.kind === 'json' ? (JSON.parse(outcome.body.toString()) as Record<string, unknown>) : {};
  return { status: outcome.status, body, made, outcome };
}

const never = { contains: { words: ['never said'] } };
const denyBad = { contains: { words: ['bad'], operator: 'none' }, deny: true };

test('a denied input is answered with 446, in the shape of Portkey, and no call is made', async () => {
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

test('a denied output is answered with 446, keeps what it cost, and does not show the answer', async () => {
  const { status, body, outcome } = await guard({ output: [denyBad] }, [answer('a bad word')]);
  expect(status).toBe(446);
  expect(outcome.usage).toEqual({ inputTokens: 1, cachedTokens: 0, outputTokens: 2, reasoningTokens: 0 });
  expect([outcome.attempts.length, outcome.providerRequestId]).toEqual([1, 'req_1']);
  expect(outcome.headers).toEqual({ 'x-gateway-cache-status': 'MISS' });
  expect(JSON.stringify(body)).not.toContain('a bad word');
});

test('a failure without deny makes a success 246, its bytes kept and the results added', async () => {
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

test('an error stays the error that it is', async () => {
  const { status, body } = await guard({ input: [never], output: [denyBad] }, [answer('bad', { status: 429 })]);
  expect(status).toBe(429);
  expect(body['hook_results']).toBeUndefined();
});

test('input guardrails deny a stream before it begins; output ones do not see it', async () => {
  const request = chatRequest({ stream: true });
  expect((await guard({ input: [{ ...never, deny: true }] }, [stream()], { request })).status).toBe(446);
  expect((await guard({ output: [{ ...never, deny: true }] }, [stream()], { request })).status).toBe(200);
  expect((await guard({ input: [never] }, [stream()], { request })).status).toBe(246);
});

test('an output that fails with a listed status is asked for again, and no more than so often', async () => {
  const repeat = { statuses: [446], attempts: 3 };
  const good = await guard({ output: [denyBad] }, [answer('bad'), answer('good')], { repeat });
  expect([good.status, good.made, good.outcome.attempts.length]).toEqual([200, [false, true], 2]);
  const bad = await guard({ output: [denyBad] }, [answer('bad')], { repeat });
  expect([bad.status, bad.made.length, bad.outcome.attempts.length]).toEqual([446, 3, 3]);
  const unlisted = await guard({ output: [denyBad] }, [answer('bad')], { repeat: { statuses: [500], attempts: 3 } });
  expect(unlisted.made).toHaveLength(1);
});

test('checks see what the provider gets: overrides applied', async () => {
  const request = chatRequest({ edits: { messages: '[{"role":"user","content":"a bad override"}]' } });
  expect((await guard({ input: [denyBad] }, undefined, { request })).status).toBe(446);
});

test('a guardrail that cannot be used is an error of the request', async () => {
  const { outcome } = await guard({ input: [{ regexMatch: { rule: '(?=x)' } }] });
  expect(outcome).toMatchObject({ kind: 'failed', error: { kind: 'invalid_request' } });
});

test('an answer that nests too deeply for a webhook is a failure that tells what the call had cost', async () => {
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

test('what is held for a guardrail beside the call is what its bodies take as values', async () => {
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

  test('is judged by what it says, wherever that stands', async () => {
    const good = large(said('good '.repeat(100_000)));
    expect((await guard({ output: [denyBad] }, [good])).outcome).toMatchObject({ status: 200, body: good.body });
    expect(await guard({ output: [denyBad] }, [large(said(`${'good '.repeat(100_000)}bad`))])).toMatchObject({
      status: 446,
    });
  });

  test('of very many values is judged, and counts in the memory of its call', async () => {
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
