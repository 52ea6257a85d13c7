import { expect, test, vi } from 'vitest';
import type { Answer, JsonAnswer, Outcome, Wait } from '#libs/calls/call.ts';
import { runCall, type Calls } from '#libs/calls/calls.ts';
import { plainPlan } from '#libs/calls/plan/plain-plan.ts';
import { createRetries } from '#libs/calls/retry.ts';
import { CallAbort } from '#libs/kernel/call-signal.ts';
import { createMemoryBudget } from '#libs/kernel/sharing/memory-budget.ts';
import { asGatewayError, GatewayError } from '#libs/kernel/errors.ts';
import { SecretError } from '#libs/secret-managers/secret-error.ts';
import type { BatchRow } from '../batch/batch-model.ts';
import { createCallLine } from './call-line.ts';

const batch = {
  id: 'batch_1',
  endpoint: '/v1/chat/completions',
  gateway_options: {},
  headers: {},
  expires_at: new Date(10_000),
} as unknown as BatchRow;
const body = Buffer.from('{"model":"m"}');
const target = { provider: 'openai' };
const noPermit = {
  waitWithoutPermit: (_what: Wait, wait: (signal: AbortSignal) => Promise<void>) => wait(new AbortController().signal),
  isAbandoned: () => false,
};

/** Runs calls as in production, except that the answers of targets are given. */
function callsOf(callTarget: () => Promise<Outcome>): Pick<Calls, 'run'> {
  const clock = { now: () => 0 };
  const planDeps = { callTarget, search: () => false, random: () => 0, now: () => 0 };
  const retries = createRetries({ clock, random: () => 0, stopping: new AbortController().signal });
  return { run: (call, course) => runCall({ planDeps, retries }, call, course) };
}

function setUp(options: { resolve: () => Promise<unknown>; model?: string; body?: object; endpoint?: string }) {
  const answer = {
    kind: 'json',
    status: 200,
    headers: {},
    providerRequestId: 'req_1',
    body: Buffer.from('{}'),
    model: options.model ?? 'm',
    usage: { inputTokens: 1, cachedTokens: 0, outputTokens: 2, reasoningTokens: 0 },
    finishReason: 'stop',
    attempts: [],
  } as unknown as Answer;
  const forward = vi.fn(() => Promise.resolve(answer as Outcome));
  const callLine = createCallLine({
    calls: callsOf(forward),
    planOf: async () => ({ plan: plainPlan, stored: null }),
    resolve: options.resolve as never,
    boundOf: () => null,
    policy: () => ({ attemptsMax: 1, baseDelayMs: 1, maxDelayMs: 1, deadlineAt: 10_000 }),
    onCalled: () => ({ cost: '0.5', price_version: 'v1' }),
    now: () => 0,
    clock: { now: () => 0 },
  });
  const called = options.endpoint === undefined ? batch : { ...batch, endpoint: options.endpoint };
  const sent = options.body === undefined ? body : Buffer.from(JSON.stringify({ model: 'm', ...options.body }));
  const call = (signal = new CallAbort(), permit = noPermit) =>
    callLine({
      batch: called,
      line: 1,
      id: 'batch_req_1',
      body: sent,
      signal,
      permit,
      memory: createMemoryBudget(1_000_000).open(null),
    });
  return { call, forward };
}

const away = (): GatewayError => new GatewayError('unavailable', 'access_unavailable', 'the database does not answer');
const reset = (): Error => Object.assign(new Error('read ECONNRESET'), { code: 'ECONNRESET' });

test.each([away(), reset()])('a line waits while its target cannot be looked up: %s', async (failure) => {
  const resolve = vi.fn(() => Promise.resolve({ target, model: null }) as Promise<unknown>);
  resolve.mockRejectedValueOnce(failure);
  const { call, forward } = setUp({ resolve });
  expect((await call()).outcome).toMatchObject({ kind: 'response', statusCode: 200 });
  expect(resolve).toHaveBeenCalledTimes(2);
  expect(forward).toHaveBeenCalledTimes(1);
});

test('a line waits for its secret in a way that lets its chunk be snoozed', async () => {
  const resolve = vi.fn(() => Promise.resolve({ target, model: null }) as Promise<unknown>);
  resolve.mockRejectedValueOnce(new SecretError('denied', 'openai', 'was rejected by its Vault (403)'));
  resolve.mockRejectedValueOnce(away());
  const waits: Partial<Wait>[] = [];
  const permit = {
    ...noPermit,
    waitWithoutPermit: (what: Wait, wait: (signal: AbortSignal) => Promise<void>) => {
      waits.push(what);
      return wait(AbortSignal.abort());
    },
  };
  const { call } = setUp({ resolve });
  expect((await call(undefined, permit)).outcome).toMatchObject({ kind: 'response', statusCode: 200 });
  expect(waits).toEqual([
    { reason: 'secret_unavailable', label: "the secret reference 'openai'", model: null, untilMs: 2_000 },
    { reason: 'gateway', label: null, model: null, untilMs: 500 },
  ]);
});

test('a secret that is not there is the error of its line at once', async () => {
  const { call } = setUp({ resolve: () => Promise.reject(new SecretError('not_found', 'openai', 'is gone')) });
  expect((await call()).outcome).toMatchObject({ kind: 'error', code: 'secret_not_found' });
});

test('a line that waits for its target is abandoned with its worker', async () => {
  const ended = new CallAbort();
  const { call } = setUp({
    resolve() {
      ended.abort(new Error('the worker ends'));
      return Promise.reject(away());
    },
  });
  await expect(call(ended)).rejects.toThrow('the worker ends');
});

test('a target that is refused is the error of its line at once', async () => {
  const refused = new GatewayError('invalid_request', 'virtual_key_deleted', 'deleted');
  const { call } = setUp({ resolve: () => Promise.reject(refused) });
  expect((await call()).outcome).toEqual({ kind: 'error', code: 'virtual_key_deleted', message: 'deleted' });
});

test("a provider's name for its model is recorded in a form that the log can store", async () => {
  const model = `m\u0000\ud800${'x'.repeat(1_000)}`;
  const { call } = setUp({ resolve: () => Promise.resolve({ target, model: null }), model });
  const { usage } = await call();
  expect(usage?.model).toMatch(/^m\u{FFFD}\u{FFFD}x+$/u);
  expect(usage?.model?.length).toBe(512);
});

test('a call that was made is recorded, even if a step after it fails or its line is abandoned', async () => {
  const called = vi.fn(() => ({ cost: '0', price_version: null }));
  const attempts = [{ startedAt: 0, durationMs: 1, status: 200, errorCode: null }];
  const run = async (outcome: Outcome, isAbandoned: boolean): Promise<unknown> => {
    const callLine = createCallLine({
      calls: callsOf(() => Promise.resolve(outcome)),
      planOf: async () => ({ plan: plainPlan, stored: null }),
      resolve: () => Promise.resolve({ target: target as never, model: null }),
      boundOf: () => null,
      policy: () => ({ attemptsMax: 1, baseDelayMs: 1, maxDelayMs: 1, deadlineAt: 10_000 }),
      onCalled: called,
      now: () => 0,
      clock: { now: () => 0 },
    });
    const signal = new CallAbort();
    const memory = createMemoryBudget(1_000_000).open(null);
    return await callLine({
      batch,
      line: 1,
      id: 'batch_req_1',
      body,
      signal,
      permit: { ...noPermit, isAbandoned: () => isAbandoned },
      memory,
    }).catch((error: unknown) => error);
  };
  const bug = asGatewayError(new TypeError('a bug after the call'));
  const lostAnswer = { status: 200, usage: null } as unknown as JsonAnswer;
  expect(await run({ kind: 'failed', error: bug, attempts, lostAnswer }, false)).toBe(bug);
  expect(called).toHaveBeenLastCalledWith(expect.objectContaining({ attempts, answer: lostAnswer }));
  const left = new GatewayError('unavailable', 'call_aborted', 'left');
  expect(await run({ kind: 'failed', error: left, attempts }, true)).toBe(left);
  expect(called).toHaveBeenCalledTimes(2);
  expect(await run({ kind: 'failed', error: left, attempts: [] }, true)).toBe(left);
  expect(called).toHaveBeenCalledTimes(2);
});

test.each([
  ['/v1/chat/completions', { max_tokens: 0 }, 400],
  ['/v1/responses', { n: -1e6 }, 400],
  ['/v1/completions', { max_tokens: -1 }, 400],
  ['/v1/completions', { max_tokens: 0, echo: true }, 200],
])('a line of %s with %j ends with status %i', async (endpoint, sent, status) => {
  const { call, forward } = setUp({ resolve: () => Promise.resolve({ target, model: 'm' }), endpoint, body: sent });
  const { outcome } = await call();
  expect(forward).toHaveBeenCalledTimes(status === 200 ? 1 : 0);
  expect(outcome).toMatchObject({ kind: 'response', statusCode: status });
});
