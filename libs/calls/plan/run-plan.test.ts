/* oxlint-disable unicorn/no-thenable -- the member's name is the interface's */
import { afterEach, expect, test } from 'vitest';
import { ConfigInput } from '#libs/contracts/configs/config.ts';
import type { Attempt, Failure, ForwardRequest, JsonAnswer, Outcome, Target } from '#libs/calls/call.ts';
import { GatewayError, type ErrorKind } from '#libs/kernel/errors.ts';
import {
  chatRequest,
  completion,
  eventStream,
  readStream,
  sse,
  startForwardingRig,
  type ForwardingRig,
} from '#test/forwarding-rig.ts';
import { listAttempts, type Call } from '#libs/calls/planned-call.ts';
import type { RetryPolicy } from '#libs/calls/retry.ts';
import { plannedCall } from '#test/planned-call.ts';
import { compileConfig } from './compile-config.ts';
import { createRandom } from '#test/faults/random.ts';
import { planHeaders } from './plan-headers.ts';
import { countRetries, runPlan, type PlanDeps } from './run-plan.ts';

const attempt = { startedAt: 0, durationMs: 1, status: 200, errorCode: null };
const answer = (status: number, headers: Record<string, string> = {}): JsonAnswer => ({
  kind: 'json',
  status,
  headers,
  providerRequestId: null,
  attempts: [attempt],
  usage: null,
  model: null,
  finishReason: null,
  body: Buffer.from('{}'),
  contentType: 'application/json',
});
const failure = (kind: ErrorKind, code: string): Failure => ({
  kind: 'failed',
  error: new GatewayError(kind, code, code),
  attempts: [attempt],
});
const target: Target = {
  provider: 'openai',
  baseUrl: new URL('https://a.example'),
  apiKey: null,
  settings: {},
  secrets: {},
  secretOrigin: null,
  label: 'a',
};

type Options = {
  random?: number[];
  metadata?: Record<string, string>;
  session?: string;
  signal?: AbortSignal;
  refuse?: string[];
  now?: number;
};

/** Runs a config whose leaves have names. Each outcome is what the leaf of that name answers; the default is 200. */
async function run(config: object, outcomes: Record<string, Outcome> = {}, options: Options = {}) {
  const calls: (Pick<Call, 'leaf' | 'target' | 'model'> & {
    request: ForwardRequest;
    policy: RetryPolicy | undefined;
  })[] = [];
  const draws = [...(options.random ?? [])];
  const deps: PlanDeps = {
    callTarget: async ({ leaf, target, model }, request, policy) => {
      calls.push({ leaf, target, model, request, policy });
      return outcomes[leaf.name ?? ''] ?? answer(200);
    },
    search: async (rule, text) => text.includes(rule.replaceAll(/[\^$]/g, '')),
    random: () => draws.shift() ?? 0,
    now: () => options.now ?? 0,
  };
  const request = chatRequest({ signal: options.signal ?? new AbortController().signal });
  const call = plannedCall(compileConfig(ConfigInput.parse(config)), request, {
    metadata: options.metadata ?? null,
    ...(options.session === undefined
      ? {}
      : { session: { sessionId: options.session, agentId: null, parentAgentId: null } }),
  });
  const outcome = await runPlan(deps, call, {
    resolve: async (_call, leaf, model) => {
      if (options.refuse?.includes(leaf.name ?? '')) throw new GatewayError('invalid_request', 'refused', 'no');
      return { target: { ...target, label: leaf.name ?? '' }, model };
    },
  });
  const attempts = listAttempts(call, outcome);
  return { ...call, outcome, attempts, called: calls.map(({ leaf }) => leaf.name), calls };
}

const three = (strategy: object, extra: object[] = [{}, {}, {}]) => ({
  strategy,
  targets: ['a', 'b', 'c'].map((name, index) => ({ name, virtual_key: name, ...extra[index] })),
});
const fallback = (statuses?: number[]) =>
  three({ mode: 'fallback', ...(statuses === undefined ? {} : { on_status_codes: statuses }) });

test.each<[string, Outcome, boolean]>([
  ['a server error', answer(500), true],
  ['a refusal of the provider', answer(400), true],
  ['a guardrail that denies', answer(446), true],
  ['a redirect-like status', answer(302), true],
  ['a success', answer(201), false],
  ['a guardrail that only tells', answer(246), false],
  ['an unreachable provider', failure('provider_failed', 'upstream_unreachable'), true],
  ['a timeout', failure('provider_timeout', 'upstream_answer_timeout'), true],
  ['an open breaker', failure('unavailable', 'circuit_open'), true],
  ['a full queue', failure('rate_limited', 'queue_full'), true],
  ['a destination that is not allowed', failure('invalid_request', 'destination_not_allowed'), false],
  ['an operation that the provider lacks', failure('unsupported_operation', 'unsupported_operation'), false],
  ['a caller who left', failure('unavailable', 'call_aborted'), false],
  ['a process that stops', failure('unavailable', 'shutting_down'), false],
])('a fallback without a list after %s goes on: %3$s', async (_what, outcome, goesOn) => {
  const { called } = await run(fallback(), { a: outcome });
  expect(called).toEqual(goesOn ? ['a', 'b'] : ['a']);
});

test.each<[string, Outcome, boolean]>([
  ['a listed status', answer(429), true],
  ['another status', answer(500), false],
  ['a timeout as 408', failure('provider_timeout', 'upstream_answer_timeout'), true],
  ['an unreachable provider, as 502', failure('provider_failed', 'upstream_unreachable'), false],
  ['a refusal, though 400 is listed', failure('invalid_request', 'destination_not_allowed'), false],
])('a fallback with a list after %s goes on: %3$s', async (_what, outcome, goesOn) => {
  const { called } = await run(fallback([429, 408, 400]), { a: outcome });
  expect(called).toEqual(goesOn ? ['a', 'b'] : ['a']);
});

test('the last outcome is the answer, and every call is counted', async () => {
  const result = await run(fallback(), { a: answer(500), b: failure('provider_failed', 'x'), c: answer(503) });
  expect(result.called).toEqual(['a', 'b', 'c']);
  expect(result.outcome).toMatchObject({ kind: 'json', status: 503 });
  expect(result.attempts).toHaveLength(3);
  expect(planHeaders(result, result.outcome)).toEqual({
    'x-gateway-last-used-option-index': 'config.targets[2]',
    'x-gateway-retry-attempt-count': '0',
    'x-gateway-provider': 'openai',
  });
});

test('a target that cannot be resolved ends the call instead of being skipped', async () => {
  const result = await run(fallback(), {}, { refuse: ['a'] });
  expect(result).toMatchObject({ called: [], target: null, outcome: { kind: 'failed', error: { code: 'refused' } } });
  expect(planHeaders(result, result.outcome)).not.toHaveProperty('x-gateway-provider');
});

test('no further target is called when the caller has left', async () => {
  expect((await run(fallback(), { a: answer(500) }, { signal: AbortSignal.abort() })).called).toEqual(['a']);
});

test('a nested fallback tries all of its targets before the outer one continues', async () => {
  const inner = { ...fallback([429]), name: 'inner' };
  const config = { strategy: { mode: 'fallback' }, targets: [inner, { name: 'last', virtual_key: 'z' }] };
  expect((await run(config, { a: answer(429), b: answer(500) })).called).toEqual(['a', 'b', 'last']);
  expect((await run(config, { a: answer(429), b: answer(200) })).called).toEqual(['a', 'b']);
});

test('load is shared by weight, a target with weight 0 is never chosen, and there is no failover', async () => {
  const config = three({ mode: 'loadbalance' }, [{ weight: 1 }, { weight: 0 }, { weight: 3 }]);
  const chosen = async (random: number) => (await run(config, { a: answer(500) }, { random: [random] })).called;
  expect(await chosen(0)).toEqual(['a']);
  expect(await chosen(0.2499)).toEqual(['a']);
  expect(await chosen(0.25)).toEqual(['c']);
  expect(await chosen(0.9999)).toEqual(['c']);
});

test('a sticky caller keeps its target, other callers are spread by weight, and a removed target moves only its own callers', async () => {
  const config = (names: string[]) => ({
    strategy: { mode: 'loadbalance', sticky: { hash_fields: ['metadata.user'] } },
    targets: names.map((name) => ({ name, virtual_key: name, weight: name === 'c' ? 2 : 1 })),
  });
  const users = Array.from({ length: 400 }, (_, index) => `user-${index}`);
  const placed = async (names: string[]) =>
    Promise.all(users.map(async (user) => (await run(config(names), {}, { metadata: { user } })).called[0]));
  const before = await placed(['a', 'b', 'c']);
  expect(await placed(['a', 'b', 'c'])).toEqual(before);
  expect(await placed(['c', 'b', 'a'])).toEqual(before);
  const share = (name: string) => before.filter((chosen) => chosen === name).length / users.length;
  expect(share('c')).toBeGreaterThan(0.42);
  expect(share('c')).toBeLessThan(0.58);
  const after = await placed(['b', 'c']);
  expect(users.filter((_, index) => before[index] !== 'a' && after[index] !== before[index])).toEqual([]);
});

test('with a ttl the choice is made again in each period, and without the fields it is random', async () => {
  const config = {
    strategy: { mode: 'loadbalance', sticky: { hash_fields: ['metadata.user'], ttl: 10 } },
    targets: ['a', 'b'].map((name) => ({ name, virtual_key: name })),
  };
  const chosen = async (now: number) => (await run(config, {}, { metadata: { user: 'u' }, now })).called[0];
  const periods = await Promise.all(Array.from({ length: 40 }, (_, index) => chosen(index * 10_000)));
  expect(new Set(periods).size).toBe(2);
  expect((await run(config, {}, { random: [0.9] })).called).toEqual(['b']);
});

test('without sticky, the calls of a session stay on one target, and sessions are spread by weight', async () => {
  const random = createRandom(20_261_129);
  for (let round = 0; round < 5; round += 1) {
    const weights = Array.from({ length: random.between(2, 5) }, () => random.between(1, 9));
    const config = (strategy: object = {}) => ({
      strategy: { mode: 'loadbalance', ...strategy },
      targets: weights.map((weight, index) => ({ name: `t${index}`, virtual_key: `t${index}`, weight })),
    });
    const sessions = Array.from({ length: 600 }, (_, index) => `session ${round} ${index}`);
    const draws = () => ({ random: [random.between(0, 999) / 1_000] });
    const targetOf = async (session: string, strategy?: object) =>
      (await run(config(strategy), {}, { session, ...draws() })).called[0];
    const placed = await Promise.all(sessions.map((session) => targetOf(session)));
    expect(await Promise.all(sessions.map((session) => targetOf(session)))).toEqual(placed);
    const sum = weights.reduce((all, weight) => all + weight, 0);
    for (const [index, weight] of weights.entries()) {
      const share = weight / sum;
      const found = placed.filter((name) => name === `t${index}`).length;
      // Five standard deviations of a binomial distribution.
      expect(Math.abs(found - 600 * share)).toBeLessThan(5 * Math.sqrt(600 * share * (1 - share)));
    }
    const free = await Promise.all(Array.from({ length: 50 }, () => targetOf('s', { sticky: { enabled: false } })));
    expect(new Set(free).size).toBeGreaterThan(1);
  }
});

test('a ttl without fields moves a conversation after each period', async () => {
  const config = {
    strategy: { mode: 'loadbalance', sticky: { ttl: 10 } },
    targets: ['a', 'b'].map((name) => ({ name, virtual_key: name })),
  };
  const chosen = async (now: number) => (await run(config, {}, { session: 's', now })).called[0];
  const periods = await Promise.all(Array.from({ length: 40 }, (_, index) => chosen(index * 10_000)));
  expect(new Set(periods).size).toBe(2);
  expect(await chosen(1)).toBe(await chosen(2));
});

test('the first condition that a call meets decides, and otherwise the default', async () => {
  const config = three({
    mode: 'conditional',
    conditions: [
      { query: { 'metadata.plan': 'pro' }, then: 'b' },
      { query: { 'params.model': { $regex: 'test$' } }, then: 'c' },
    ],
    default: 'a',
  });
  expect((await run(config, {}, { metadata: { plan: 'pro' } })).called).toEqual(['b']);
  expect((await run(config)).called).toEqual(['c']);
  const conditions = [{ query: { 'metadata.plan': 'pro' }, then: 'b' }];
  const onlyPro = three({ mode: 'conditional', conditions, default: 'a' });
  expect((await run(onlyPro, {}, { metadata: { plan: 'free' } })).called).toEqual(['a']);
});

test('a leaf applies its edits, model, timeouts and flags to its call', async () => {
  const { calls } = await run({
    name: 'a',
    virtual_key: 'a',
    override_params: { model: 'other', seed: 1 },
    request_timeout: 50,
    timeouts: { idle_ms: 60 },
    forward_headers: ['X-Team'],
    strict_open_ai_compliance: false,
    unsupported_params: 'refuse',
    retry: { attempts: 2, on_status_codes: [500], use_retry_after_headers: false, jitter: false },
  });
  expect(calls[0]).toMatchObject({
    model: 'other',
    target: { model: 'other' },
    request: {
      model: 'gpt-test',
      edits: { seed: '1' },
      timeouts: { answerMs: 50, idleMs: 60 },
      forwardHeaders: ['x-team'],
      strict: false,
      unsupportedParams: 'refuse',
    },
    policy: {
      attemptsMax: 3,
      statuses: [500],
      countsRateLimited: true,
      obeysRetryAfter: false,
      jitter: false,
      waitMsMax: 60_000,
    },
  });
});

// --- over the real forwarder

const rigs: ForwardingRig[] = [];
afterEach(async () => {
  for (const rig of rigs.splice(0)) await rig.stop();
});

async function over(
  config: object,
  script: Parameters<typeof startForwardingRig>[0],
  request = chatRequest(),
): Promise<{ run: { outcome: Outcome; attempts: readonly Attempt[]; retryAttempts: number }; rig: ForwardingRig }> {
  const rig = await startForwardingRig(script);
  rigs.push(rig);
  const deps: PlanDeps = {
    callTarget: ({ target }, request, policy) => rig.forwarder.settle(request, target ?? rig.target, policy),
    search: () => false,
    random: () => 0,
    now: rig.now,
  };
  const call = plannedCall(compileConfig(ConfigInput.parse(config)), request);
  const outcome = await runPlan(deps, call, {
    resolve: async (_call, _leaf, model) => ({ target: rig.target, model }),
  });
  const run = { outcome, attempts: listAttempts(call, outcome), retryAttempts: countRetries(call, outcome) };
  return { run, rig };
}

const ok = (reply: { json: (status: number, body: unknown) => void }) => reply.json(200, completion);
const busy =
  (headers: Record<string, string> = {}) =>
  (reply: { json: (status: number, body: unknown, headers?: Record<string, string>) => void }) =>
    reply.json(429, { error: { message: 'busy', type: 't', param: null, code: null } }, headers);

test('retries run inside a target, wait for as long as the provider says, and are counted', async () => {
  const { run, rig } = await over({ retry: { attempts: 2, jitter: false } }, [
    busy({ 'retry-after-ms': '1234' }),
    busy(),
    ok,
  ]);
  expect(run.outcome).toMatchObject({ kind: 'json', status: 200 });
  expect(run.retryAttempts).toBe(2);
  expect(rig.waits).toEqual([1_234, 2_000]);
});

test('429s count as attempts, so a config with one retry makes two calls, and -1 means that all were used up', async () => {
  const { run, rig } = await over({ retry: { attempts: 1 } }, busy());
  expect(rig.upstream.requests).toHaveLength(2);
  expect(run.retryAttempts).toBe(-1);
});

test('a wait of more than a minute is not waited for', async () => {
  const { run, rig } = await over({ retry: { attempts: 5 } }, busy({ 'retry-after': '61' }));
  expect(rig.waits).toEqual([]);
  expect(run).toMatchObject({ retryAttempts: 0, outcome: { status: 429 } });
});

test('the waits of one target last at most a minute together', async () => {
  const { rig } = await over({ retry: { attempts: 5 } }, busy({ 'retry-after': '25' }));
  expect(rig.waits).toEqual([25_000, 25_000]);
});

test('only the listed statuses are retried', async () => {
  const { rig } = await over({ retry: { attempts: 3, on_status_codes: [500] } }, busy());
  expect(rig.upstream.requests).toHaveLength(1);
});

test('a request timeout ends an attempt whose answer arrives too slowly, and the next target answers', async () => {
  const drip = async (reply: {
    head: (status: number) => void;
    write: (text: string) => Promise<void>;
    isClosed: () => boolean;
  }) => {
    reply.head(200);
    await reply.write('{"choices":');
  };
  const targets = [{ request_timeout: 150 }, {}];
  const { run, rig } = await over({ strategy: { mode: 'fallback' }, targets }, [drip, ok]);
  expect(run.outcome).toMatchObject({ kind: 'json', status: 200 });
  expect(run.attempts.map(({ errorCode }) => errorCode)).toEqual(['upstream_answer_timeout', null]);
  await rig.upstream.until(() => rig.upstream.connections().open === 1);
});

test('a request timeout does not cut a stream that has begun', async () => {
  let go: () => void = () => {};
  const gate = new Promise<void>((resolve) => (go = resolve));
  const slow = async (reply: {
    head: (status: number, headers: Record<string, string>) => void;
    write: (text: string) => Promise<void>;
    end: () => void;
  }) => {
    reply.head(200, eventStream);
    await reply.write('data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n');
    await gate;
    await reply.write('data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n');
    reply.end();
  };
  const request = chatRequest({ stream: true, text: '{"model":"gpt-test","messages":[],"stream":true}' });
  const { run } = await over({ request_timeout: 100 }, slow, request);
  setTimeout(go, 250);
  if (run.outcome.kind !== 'stream') throw new Error('not a stream');
  const { error, payloads } = await readStream(run.outcome);
  expect(error).toBeNull();
  expect(payloads).toHaveLength(2);
});

test('a stream whose first event is an error falls back, and one that fails later does not', async () => {
  const request = chatRequest({ stream: true, text: '{"model":"gpt-test","messages":[],"stream":true}' });
  const early = sse('data: {"error":{"message":"no","code":"x"}}\n\n');
  const late = sse(
    'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n',
    'data: {"error":{"message":"no"}}\n\n',
  );
  const { run, rig } = await over({ strategy: { mode: 'fallback' }, targets: [{}, {}, {}] }, [early, late], request);
  expect(rig.upstream.requests).toHaveLength(2);
  if (run.outcome.kind !== 'stream') throw new Error('not a stream');
  expect((await readStream(run.outcome)).error).toMatchObject({ kind: 'provider_failed' });
});

test('forwarded headers are sent to the provider and do not replace its own', async () => {
  const headers = { 'x-team': 'red', 'openai-beta': 'v2', 'x-other': 'no' };
  const { rig } = await over({ forward_headers: ['x-team', 'openai-beta', 'x-absent'] }, ok, chatRequest({ headers }));
  const sent = rig.upstream.requests[0]?.headers ?? {};
  expect(sent).toMatchObject({ 'x-team': 'red', 'openai-beta': 'v2', 'user-agent': 'sluice' });
  expect(sent).not.toHaveProperty('x-other');
});

test('an unchanged body is sent byte for byte, an edited one keeps everything else', async () => {
  const text = '{ "model":"gpt-test", "big": 12345678901234567890, "big":1, "messages":[] }';
  const plain = await over({ retry: { attempts: 1 } }, ok, chatRequest({ text }));
  expect(plain.rig.upstream.requests[0]?.body.toString()).toBe(text);
  const edited = await over({ override_params: { seed: 7 } }, ok, chatRequest({ text }));
  expect(edited.rig.upstream.requests[0]?.body.toString()).toBe(text.replace('[] }', '[],"seed":7 }'));
});
