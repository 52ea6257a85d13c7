import { afterEach, expect, test } from 'vitest';
import { ConfigInput } from '#libs/contracts/configs/config.ts';
import { CallAbort } from '#libs/kernel/call-signal.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import {
  chatRequest,
  completion,
  eventStream,
  payloads,
  readStream,
  startForwardingRig,
} from '#test/forwarding-rig.ts';
import { plannedCall } from '#test/planned-call.ts';
import type { UpstreamScript } from '#test/upstream.ts';
import { estimateUsage, type AdmissionRequest, type Admit, type Spent } from './admission.ts';
import type { ForwardRequest, Outcome } from './call.ts';
import { createCalls } from './calls.ts';
import { compileConfig } from './plan/compile-config.ts';
import { plainPlan } from './plan/plain-plan.ts';
import type { Guardrails } from './protect/guardrails/guardrails.ts';
import type { ResponseCache } from './protect/response-cache/response-cache.ts';

const undo: (() => Promise<void>)[] = [];
afterEach(async () => {
  for (const step of undo.splice(0)) await step();
});

type Options = {
  config?: object;
  script?: UpstreamScript;
  request?: Partial<ForwardRequest>;
  again?: boolean;
  isLimited?: boolean;
};

/**
 * Makes one call under a policy. Returns the policy's inputs, the reports to it, and the order of the steps around the
 * call.
 */
async function run(admit: Admit, { config, script, request, again, isLimited = true }: Options = {}) {
  const steps: string[] = [];
  const rig = await startForwardingRig((reply, received) => {
    steps.push('provider');
    return (script ?? ((to) => to.json(200, completion)))(reply, received);
  });
  undo.push(rig.stop);
  const guardrails = {
    textsOf: async () => ({ said: [], measured: [], unreadable: null }),
    evaluate: async (_guardrails: unknown, { response }: { response: unknown }) => {
      steps.push(response === null ? 'input guardrails' : 'output guardrails');
      return { outcome: 'passed', results: [] };
    },
  } as unknown as Guardrails;
  const responseCache: Pick<ResponseCache, 'through'> = {
    through: (_scope, _options, { make }) => {
      steps.push('cache');
      return make();
    },
  };
  const asked: AdmissionRequest[] = [];
  const calls = createCalls({
    egress: rig.egress,
    clock: { now: rig.now },
    random: () => 0,
    sleep: async () => void steps.push('wait'),
    guardrails,
    responseCache,
    admission: {
      isLimited: () => isLimited,
      admit: (call) => {
        steps.push('admit');
        asked.push(call);
        return admit(call);
      },
    },
  });
  const plan = config === undefined ? plainPlan : compileConfig(ConfigInput.parse(config));
  const call = plannedCall(plan, chatRequest(request), { keyId: 'key_1', metadata: { team: 'red' } });
  const target = { ...rig.target, credentialId: 'vk_1', workspaceId: 'ws_1' };
  const policy = { attemptsMax: 3, baseDelayMs: 1, maxDelayMs: 1, deadlineAt: Number.POSITIVE_INFINITY };
  const outcome: Outcome = await calls.run(call, {
    resolve: async (_call, leaf, model) => ({ target: { ...target, label: leaf.name ?? 'plain' }, model }),
    ...(again === true ? { again: policy } : {}),
  });
  return { outcome, steps, asked, call };
}

/** A policy that reserves for every call, and what each reservation was settled with. */
function reserving(): { admit: Admit; spent: Spent[] } {
  const spent: Spent[] = [];
  return { admit: () => ({ settle: (used) => void spent.push(used) }), spent };
}

const refusing: Admit = () => {
  throw new GatewayError('rate_limited', 'budget_used_up', 'no', { retryAfterMs: 5 });
};

test('the steps around a call happen in a fixed order, admission first', async () => {
  const { admit } = reserving();
  const guardrail = { contains: { words: ['x'] } };
  const config = {
    cache: { mode: 'simple' },
    input_guardrails: [guardrail],
    output_guardrails: [guardrail],
    retry: { attempts: 1, on_status_codes: [500] },
  };
  let answers = 0;
  const script: UpstreamScript = (reply) => {
    answers += 1;
    if (answers === 1) reply.json(500, { error: { message: 'no', type: null, param: null, code: null } });
    else reply.json(200, completion);
  };
  const { steps } = await run(admit, { config, script });
  expect(steps).toEqual(['admit', 'input guardrails', 'cache', 'provider', 'wait', 'provider', 'output guardrails']);
});

test('a call without any limit costs no admission', async () => {
  expect((await run(refusing, { isLimited: false })).steps).toEqual(['provider']);
});

test('a policy is given the owner of a call, its target and its estimated usage', async () => {
  const { admit } = reserving();
  const text = '{"model":"gpt-test","messages":[],"max_tokens":100,"n":2}';
  const { asked } = await run(admit, { request: { body: Buffer.from(text) } });
  expect(asked).toMatchObject([
    {
      workspaceId: 'ws_1',
      keyId: 'key_1',
      model: 'gpt-test',
      operation: 'chat',
      metadata: { team: 'red' },
      target: { label: 'plain', credentialId: 'vk_1' },
    },
  ]);
  expect(asked[0]?.estimate()).toEqual({ inputTokens: Math.ceil(text.length / 4), outputTokensMax: 200, choices: 2 });
});

test('a request without a bound on its output has none in its estimate', () => {
  const unbounded = { outputTokensMax: null, choices: 1 };
  const chat = { operation: 'chat' } as const;
  expect(estimateUsage({ ...chat, body: Buffer.from('{"model":"m"}') })).toEqual({ ...unbounded, inputTokens: 4 });
  expect(estimateUsage({ ...chat, body: Buffer.alloc(0) })).toEqual({ ...unbounded, inputTokens: 0 });
  for (const body of ['null', '[1]', '"x"', '7'])
    expect(estimateUsage({ operation: 'responses', body: Buffer.from(body) })).toEqual({
      ...unbounded,
      inputTokens: 1,
    });
});

test('an estimate is of the request with the edits of its config', () => {
  const body = Buffer.from('{"model":"m","max_tokens":1}');
  const edits = { max_tokens: undefined, max_completion_tokens: '500', n: '3', messages: '"' + 'x'.repeat(398) + '"' };
  const estimate = estimateUsage({ operation: 'chat', body, edits });
  expect(estimate).toEqual({ inputTokens: 101, outputTokensMax: 1_500, choices: 3 });
});

test('a call that is not admitted reaches none of the steps after admission', async () => {
  const { outcome, steps } = await run(refusing, { config: { cache: { mode: 'simple' } } });
  expect(outcome).toMatchObject({ kind: 'failed', error: { code: 'budget_used_up' }, attempts: [] });
  expect(steps).toEqual(['admit']);
});

test('a policy may wait before it decides', async () => {
  const slowly: Admit = async (call) => {
    await Promise.resolve();
    return refusing(call);
  };
  expect((await run(slowly)).outcome).toMatchObject({ kind: 'failed', error: { code: 'budget_used_up' } });
});

test('a fallback continues with a target that is admitted', async () => {
  const config = { strategy: { mode: 'fallback' }, targets: [{ name: 'a' }, { name: 'b' }] };
  const onlyB: Admit = (call) => (call.target.label === 'a' ? refusing(call) : null);
  const { outcome, call } = await run(onlyB, { config });
  expect(outcome).toMatchObject({ kind: 'json', status: 200 });
  expect(call.target?.label).toBe('b');
});

test('a batch line waits for as long as its policy says, and asks it again', async () => {
  let asks = 0;
  const second: Admit = (call) => {
    asks += 1;
    return asks === 1 ? refusing(call) : null;
  };
  const { outcome, steps } = await run(second, { again: true });
  expect(outcome).toMatchObject({ kind: 'json', status: 200 });
  expect(steps).toEqual(['admit', 'wait', 'admit', 'provider']);
});

test('a reservation is settled once, with what its call has used', async () => {
  const { admit, spent } = reserving();
  await run(admit);
  const usage = { inputTokens: 12, cachedTokens: 4, outputTokens: 7, reasoningTokens: 3 };
  expect(spent).toMatchObject([{ usage, attempts: [{ status: 200 }], status: 200 }]);
});

test('a reservation for a stream is settled when the stream has ended', async () => {
  const { admit, spent } = reserving();
  const request = { stream: true, includeUsage: true, body: Buffer.from('{"model":"gpt-test","stream":true}') };
  const gate = Promise.withResolvers<void>();
  const script: UpstreamScript = async (reply) => {
    reply.head(200, eventStream);
    await reply.write(`data: ${payloads[1]}\n\n`);
    await gate.promise;
    for (const payload of payloads.slice(1)) await reply.write(`data: ${payload}\n\n`);
    reply.end();
  };
  const { outcome } = await run(admit, { request, script });
  expect(spent).toEqual([]);
  gate.resolve();
  if (outcome.kind !== 'stream') throw new Error('no stream');
  await readStream(outcome);
  expect(spent).toMatchObject([
    { usage: { inputTokens: 3, outputTokens: 2 }, attempts: [{ status: 200 }], status: 200 },
  ]);
});

const refused: UpstreamScript = (reply) => reply.json(503, { error: { message: 'no' } });
const garbage: UpstreamScript = (reply) => reply.respond(200, 'no JSON', { 'content-type': 'application/json' });
const halfAnAnswer: UpstreamScript = (reply) => {
  reply.head(200, { 'content-type': 'application/json' });
  void reply.write('{"id":');
};

test.each<[string, UpstreamScript, boolean]>([
  ['closes the connection', (reply) => reply.cut(), true],
  ['resets the connection', (reply) => reply.reset(), true],
  ['answers what nobody can read', garbage, true],
  ['breaks off in its answer', async (reply) => (await halfAnAnswer(reply, null as never), reply.cut()), true],
  ['refuses the request', refused, false],
])('a provider that %s may be paid for what was sent, unless it refused', async (_what, script, isLost) => {
  const { admit, spent } = reserving();
  await run(admit, { script });
  expect(spent.map(({ attempts }) => attempts.map((attempt) => attempt.isLost === true))).toEqual([[isLost]]);
});

test.each<[string, UpstreamScript]>([
  ['before the answer', () => {}],
  ['in the middle of it', halfAnAnswer],
])('a request is lost whose caller leaves %s', async (_when, script) => {
  const { admit, spent } = reserving();
  const caller = new CallAbort();
  const leaving: UpstreamScript = async (reply, received) => {
    await script(reply, received);
    caller.abort(new Error('left'));
  };
  await run(admit, { script: leaving, request: { signal: caller } });
  expect(spent).toMatchObject([{ status: null, attempts: [{ isLost: true, errorCode: 'call_aborted' }] }]);
});

test('every attempt is lost that ends with a timeout of the caller', async () => {
  const { admit, spent } = reserving();
  const config = { request_timeout: 50, retry: { attempts: 2 } };
  await run(admit, { script: () => {}, config });
  const lost = { isLost: true, status: null };
  expect(spent).toMatchObject([{ attempts: [lost, lost, lost] }]);
});

test('a request that was never sent is not lost', async () => {
  const { admit, spent } = reserving();
  const caller = new CallAbort();
  caller.abort(new Error('left'));
  await run(admit, { request: { signal: caller } });
  expect(spent.flatMap(({ attempts }) => attempts).filter(({ isLost }) => isLost)).toEqual([]);
});

test('of a stream that broke off, usage that the provider did not report is partial', async () => {
  const { admit, spent } = reserving();
  const request = { stream: true, body: Buffer.from('{"model":"gpt-test","stream":true}') };
  const script: UpstreamScript = async (reply) => {
    reply.head(200, eventStream);
    await reply.write(`data: ${payloads[1]}\n\n`);
    reply.cut();
  };
  const { outcome } = await run(admit, { request, script });
  if (outcome.kind !== 'stream') throw new Error('no stream');
  await readStream(outcome);
  expect(spent).toMatchObject([{ usage: { inputTokens: 9 }, isPartial: true }]);
});

test.each<[string, number, boolean]>([
  ['before its usage arrived', 2, true],
  ['after its usage arrived', payloads.length, false],
])('the usage of a stream is partial if its caller leaves %s', async (_when, sent, isPartial) => {
  const { admit, spent } = reserving();
  const request = { stream: true, body: Buffer.from('{"model":"gpt-test","stream":true}') };
  const script: UpstreamScript = async (reply) => {
    reply.head(200, eventStream);
    await reply.write(
      payloads
        .slice(0, sent)
        .map((payload) => `data: ${payload}\n\n`)
        .join(''),
    );
  };
  const { outcome } = await run(admit, { request, script });
  if (outcome.kind !== 'stream') throw new Error('no stream');
  for await (const _events of outcome.events) break;
  await outcome.done;
  expect(spent).toMatchObject([{ isPartial }]);
});
