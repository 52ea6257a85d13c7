import { expect, test } from 'vitest';
import { ConfigInput } from '#libs/contracts/configs/config.ts';
import { plannedCall } from '#test/planned-call.ts';
import type { WaitWithoutPermit, JsonAnswer, Wait } from './call.ts';
import { runCall } from './calls.ts';
import { listAttempts, type Call } from './planned-call.ts';
import type { PlanDeps, Resolve } from './plan/run-plan.ts';
import { createRetries } from './retry.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { chatRequest } from '#test/forwarding-rig.ts';
import { compileConfig } from './plan/compile-config.ts';

const answer = (status: number): JsonAnswer => ({
  kind: 'json',
  status,
  headers: {},
  providerRequestId: null,
  attempts: [{ startedAt: 0, durationMs: 1, status, errorCode: null }],
  usage: null,
  model: null,
  finishReason: null,
  body: Buffer.from('{}'),
  contentType: 'application/json',
});

const target = {
  provider: 'openai',
  baseUrl: new URL('https://a.example'),
  apiKey: null,
  settings: {},
  secrets: {},
  secretOrigin: null,
  label: 'a',
};
const plan = compileConfig(ConfigInput.parse({ strategy: { mode: 'fallback' }, targets: [{}, {}] }));

/** Runs a line with a plan of two targets that answer with these statuses, with the retries of its batch. */
async function run(
  statuses: number[],
  options: {
    attemptsMax?: number;
    deadlineAt?: number;
    abort?: AbortController;
    waitWithoutPermit?: WaitWithoutPermit;
  } = {},
) {
  const waits: number[] = [];
  const { signal } = options.abort ?? new AbortController();
  const retries = createRetries({
    clock: { now: () => 0 },
    random: () => 0,
    stopping: new AbortController().signal,
    sleep: async (ms) => {
      waits.push(ms);
      options.abort?.abort();
    },
  });
  const planDeps: PlanDeps = {
    callTarget: async () => answer(statuses.shift() ?? 200),
    search: () => false,
    random: () => 0,
    now: () => 0,
  };
  const call = plannedCall(
    plan,
    chatRequest({ signal, ...(options.waitWithoutPermit ? { waitWithoutPermit: options.waitWithoutPermit } : {}) }),
  );
  const again = {
    attemptsMax: options.attemptsMax ?? 3,
    baseDelayMs: 10,
    maxDelayMs: 100,
    deadlineAt: options.deadlineAt ?? 1_000,
  };
  const resolve: Resolve<Call> = async (_call, _leaf, model) => ({ target, model });
  const outcome = await runCall({ planDeps, retries }, call, { resolve, again });
  return { outcome, attempts: listAttempts(call, outcome), leaf: call.leaf, waits };
}

test('when every target has failed, the plan is run again from the top', async () => {
  const { outcome, attempts, leaf, waits } = await run([500, 503, 500, 200]);
  expect(outcome).toMatchObject({ status: 200 });
  expect(attempts.map(({ status }) => status)).toEqual([500, 503, 500, 200]);
  expect(leaf.path).toBe('config.targets[1]');
  expect(waits).toEqual([5]);
});

test('an outcome that is not retryable, the maximum of attempts and the deadline each end the line', async () => {
  expect((await run([400, 422])).attempts).toHaveLength(2);
  const always = Array.from({ length: 9 }, () => 500);
  expect((await run(always, { attemptsMax: 2 })).attempts).toHaveLength(4);
  const late = await run([500, 500], { deadlineAt: 5 });
  expect(late.outcome).toMatchObject({ status: 500 });
  expect(late.waits).toEqual([]);
});

test('a line that is stopped between two runs of its plan fails with the attempts that it has made', async () => {
  const { outcome, attempts } = await run([500, 500], { abort: new AbortController() });
  expect(outcome).toMatchObject({ kind: 'failed', error: { code: 'call_aborted' } });
  expect(attempts).toHaveLength(2);
});

test('between two runs a line waits without its permit, and is not run again when it must not go on', async () => {
  const waits: Wait[] = [];
  const waitWithoutPermit: WaitWithoutPermit = async (what, wait) => {
    waits.push(what);
    await wait(new AbortController().signal);
    if (waits.length === 2) throw new GatewayError('unavailable', 'call_aborted', 'not to go on');
  };
  const statuses = [500, 503, 429, 429, 200];
  const { outcome } = await run(statuses, { waitWithoutPermit });
  expect(outcome).toMatchObject({ kind: 'failed', error: { message: 'not to go on' } });
  expect(waits).toEqual([
    { reason: 'retry', label: 'a', model: 'gpt-test', untilMs: 5 },
    { reason: 'rate_limited', label: 'a', model: 'gpt-test', untilMs: expect.any(Number) },
  ]);
  expect(statuses).toEqual([200]);
});
