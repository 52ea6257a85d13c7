import { afterEach, expect, test } from 'vitest';
import { ConfigInput } from '#libs/contracts/config.ts';
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

type Options = { config?: object; script?: UpstreamScript; request?: Partial<ForwardRequest>; again?: boolean };

/** Makes one call under a policy; what the policy was asked and told, and in which order what is around a call was done. */
async function run(admit: Admit, { config, script, request, again }: Options = {}) {
  const steps: string[] = [];
  const rig = await startForwardingRig((reply, received) => {
    steps.push('provider');
    return (script ?? ((to) => to.json(200, completion)))(reply, received);
  });
  undo.push(rig.stop);
  const guardrails = {
    textsOf: async () => ({ said: [], measured: [], hasUnreadable: false }),
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
    admit: (call) => {
      steps.push('admit');
      asked.push(call);
      return admit(call);
    },
  });
  const plan = config === undefined ? plainPlan : compileConfig(ConfigInput.parse(config));
  const call = plannedCall(plan, chatRequest(request), { keyId: 'key_1', metadata: { team: 'red' } });
  const target = { ...rig.target, credentialId: 'vk_1', workspaceId: 'ws_1' };
  const policy = { attemptsMax: 3, baseDelayMs: 1, maxDelayMs: 1, deadlineAt: Number.POSITIVE_INFINITY };
  const outcome: Outcome = await calls.run(call, {
    resolve: (_call, leaf, model) => ({ target: { ...target, label: leaf.name ?? 'plain' }, model }),
    ...(again === true ? { again: policy } : {}),
  });
  return { outcome, steps, asked, call };
}

/** A policy that reserves for every call, and what its reservations were told. */
function reserving(): { admit: Admit; spent: Spent[] } {
  const spent: Spent[] = [];
  return { admit: () => ({ settle: (told) => void spent.push(told) }), spent };
}

const refusing: Admit = () => {
  throw new GatewayError('rate_limited', 'budget_used_up', 'no', { retryAfterMs: 5 });
};

test('everything around a call happens in one order, admission first', async () => {
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

test('a policy learns whose call it is, where it goes and what it may use', async () => {
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
  expect(asked[0]?.estimate()).toEqual({ inputTokens: Math.ceil(text.length / 4), outputTokensMax: 200 });
});

test('without a bound in the request the output is not bounded in the estimate', () => {
  expect(estimateUsage({ body: Buffer.from('{"model":"m"}') })).toEqual({ inputTokens: 4, outputTokensMax: null });
  expect(estimateUsage({ body: Buffer.alloc(0) })).toEqual({ inputTokens: 0, outputTokensMax: null });
});

test('a call that is not admitted reaches nothing behind its policy', async () => {
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

test('a fallback goes on to a target that is admitted', async () => {
  const config = { strategy: { mode: 'fallback' }, targets: [{ name: 'a' }, { name: 'b' }] };
  const onlyB: Admit = (call) => (call.target.label === 'a' ? refusing(call) : null);
  const { outcome, call } = await run(onlyB, { config });
  expect(outcome).toMatchObject({ kind: 'json', status: 200 });
  expect(call.target?.label).toBe('b');
});

test('a batch line waits as long as its policy tells, and is asked for again', async () => {
  let asks = 0;
  const second: Admit = (call) => {
    asks += 1;
    return asks === 1 ? refusing(call) : null;
  };
  const { outcome, steps } = await run(second, { again: true });
  expect(outcome).toMatchObject({ kind: 'json', status: 200 });
  expect(steps).toEqual(['admit', 'wait', 'admit', 'provider']);
});

test('a reservation is told once what its call has used', async () => {
  const { admit, spent } = reserving();
  await run(admit);
  const usage = { inputTokens: 12, cachedTokens: 4, outputTokens: 7, reasoningTokens: 3 };
  expect(spent).toEqual([{ usage, attempts: 1, status: 200 }]);
});

test('a reservation for a stream is told when the stream has ended', async () => {
  const { admit, spent } = reserving();
  const request = { stream: true, includeUsage: true, body: Buffer.from('{"model":"gpt-test","stream":true}') };
  const gate = Promise.withResolvers<void>();
  const script: UpstreamScript = async (reply) => {
    reply.head(200, eventStream);
    await reply.write(`data: ${payloads[0]}\n\n`);
    await gate.promise;
    for (const payload of payloads.slice(1)) await reply.write(`data: ${payload}\n\n`);
    reply.end();
  };
  const { outcome } = await run(admit, { request, script });
  expect(spent).toEqual([]);
  gate.resolve();
  if (outcome.kind !== 'stream') throw new Error('no stream');
  await readStream(outcome);
  expect(spent).toMatchObject([{ usage: { inputTokens: 3, outputTokens: 2 }, attempts: 1, status: 200 }]);
});

test('a reservation for a call without an answer is told that, too', async () => {
  const { admit, spent } = reserving();
  await run(admit, { script: (reply) => reply.cut() });
  expect(spent).toMatchObject([{ usage: null, status: null }]);
});
