import { expect, test } from 'vitest';
import { ConfigInput } from '#libs/contracts/config.ts';
import type { Aside, JsonAnswer, Outcome, Wait } from '#libs/calls/call.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { chatRequest } from '#test/forwarding-rig.ts';
import { compileConfig } from './compile-config.ts';
import { runPlanWithin } from './run-plan-within.ts';

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

function run(
  statuses: number[],
  options: { attemptsMax?: number; deadlineAt?: number; abort?: AbortController; aside?: Aside } = {},
) {
  const waits: number[] = [];
  const signal = (options.abort ?? new AbortController()).signal;
  const running = runPlanWithin(
    {
      resolve: (_leaf, model) => ({ target, model }),
      callLeaf: async (): Promise<Outcome> => answer(statuses.shift() ?? 200),
      search: () => false,
      random: () => 0,
      now: () => 0,
      sleep: async (ms) => {
        waits.push(ms);
        options.abort?.abort();
      },
    },
    plan,
    {
      request: chatRequest({ signal, ...(options.aside ? { aside: options.aside } : {}) }),
      call: { params: {}, metadata: null, pathname: '/' },
    },
    {
      attemptsMax: options.attemptsMax ?? 3,
      baseDelayMs: 10,
      maxDelayMs: 100,
      deadlineAt: options.deadlineAt ?? 1_000,
    },
  );
  return { running, waits };
}

test('a pass in which every target failed is followed by another, from the top', async () => {
  const { running, waits } = run([500, 503, 500, 200]);
  const { outcome, attempts, leaf } = await running;
  expect(outcome).toMatchObject({ status: 200 });
  expect(attempts.map(({ status }) => status)).toEqual([500, 503, 500, 200]);
  expect(leaf.path).toBe('config.targets[1]');
  expect(waits).toEqual([5]);
});

test('what cannot be retried ends it, and so do the attempts of the policy and its deadline', async () => {
  expect((await run([400, 422]).running).attempts).toHaveLength(2);
  expect(
    (
      await run(
        Array.from({ length: 9 }, () => 500),
        { attemptsMax: 2 },
      ).running
    ).attempts,
  ).toHaveLength(4);
  const late = run([500, 500], { deadlineAt: 5 });
  expect((await late.running).outcome).toMatchObject({ status: 500 });
  expect(late.waits).toEqual([]);
});

test('a line that is stopped between two passes has no outcome', async () => {
  await expect(run([500, 500], { abort: new AbortController() }).running).rejects.toThrow(/abort/i);
});

test('a line waits aside between two passes, and is not run again when it is not to go on', async () => {
  const waits: Wait[] = [];
  const aside: Aside = async (what, wait) => {
    waits.push(what);
    await wait(new AbortController().signal);
    if (waits.length === 2) throw new GatewayError('unavailable', 'call_aborted', 'not to go on');
  };
  const statuses = [500, 503, 429, 429, 200];
  await expect(run(statuses, { aside }).running).rejects.toThrow('not to go on');
  expect(waits).toEqual([
    { reason: 'retry', label: 'a', model: 'gpt-test', untilMs: 5 },
    { reason: 'rate_limited', label: 'a', model: 'gpt-test', untilMs: expect.any(Number) },
  ]);
  expect(statuses).toEqual([200]);
});
