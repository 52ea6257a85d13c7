import { expect, test } from 'vitest';
import { ConfigInput } from '#libs/contracts/configs/config.ts';
import type { Failure, JsonAnswer } from '#libs/calls/call.ts';
import { createRetryBudget, retryVerdict } from '#libs/calls/retry.ts';
import { GatewayError, type ErrorKind } from '#libs/kernel/errors.ts';
import { chatRequest } from '#test/forwarding-rig.ts';
import { plannedCall } from '#test/planned-call.ts';
import { compileConfig } from './compile-config.ts';
import { runPlan } from './run-plan.ts';

const failure = (kind: ErrorKind, code: string): Failure => ({
  kind: 'failed',
  error: new GatewayError(kind, code, 'x', { retryAfterMs: 30_000 }),
  attempts: [],
});
const open = failure('unavailable', 'circuit_open');
const answer: JsonAnswer = {
  kind: 'json',
  status: 200,
  headers: {},
  providerRequestId: null,
  attempts: [],
  usage: null,
  model: null,
  finishReason: null,
  body: Buffer.from('{}'),
  contentType: 'application/json',
};

/**
 * Runs a strategy over three targets, some of which have an open circuit. Returns the names of those that were tried.
 */
async function tried(
  strategy: object,
  closed: readonly string[],
  { draws = [], session, refusal = open }: { draws?: number[]; session?: string; refusal?: Failure } = {},
) {
  const called: (string | null)[] = [];
  const targets = ['a', 'b', 'c'].map((name) => ({ name, virtual_key: name }));
  const request = chatRequest();
  const plan = compileConfig(ConfigInput.parse({ strategy, targets }));
  const outcome = await runPlan(
    {
      callTarget: async ({ leaf }) => {
        called.push(leaf.name);
        return closed.includes(leaf.name ?? '') ? answer : refusal;
      },
      search: () => false,
      random: () => draws.shift() ?? 0,
      now: () => 0,
    },
    plannedCall(
      plan,
      request,
      session === undefined ? {} : { session: { sessionId: session, agentId: null, parentAgentId: null } },
    ),
    {
      resolve: async (_call, leaf) => ({
        target: {
          provider: 'openai',
          baseUrl: new URL('https://a.example'),
          apiKey: null,
          settings: {},
          secrets: {},
          secretOrigin: null,
          label: leaf.name ?? '',
        },
        model: null,
      }),
    },
  );
  return { called, isAnswer: outcome.kind === 'json' };
}

test('a fallback skips a target whose circuit is open, whatever statuses it lists', async () => {
  const strategy = { mode: 'fallback', on_status_codes: [429] };
  expect(await tried(strategy, ['c'])).toEqual({ called: ['a', 'b', 'c'], isAnswer: true });
});

test('a loadbalance chooses again among the other targets, each once', async () => {
  expect(await tried({ mode: 'loadbalance' }, ['c'])).toEqual({ called: ['a', 'b', 'c'], isAnswer: true });
  expect(await tried({ mode: 'loadbalance' }, ['a'], { draws: [0.99, 0.99] })).toEqual({
    called: ['c', 'b', 'a'],
    isAnswer: true,
  });
  expect(await tried({ mode: 'loadbalance' }, [])).toEqual({ called: ['a', 'b', 'c'], isAnswer: false });
});

test('a loadbalance chooses again while a target waits for a rate limit, but not after an answer with 429', async () => {
  const refusal = failure('rate_limited', 'provider_rate_limited');
  expect(await tried({ mode: 'loadbalance' }, ['c'], { refusal })).toEqual({
    called: ['a', 'b', 'c'],
    isAnswer: true,
  });
  const limited = failure('rate_limited', 'rate_limit_exceeded');
  expect(await tried({ mode: 'loadbalance' }, ['c'], { refusal: limited })).toEqual({ called: ['a'], isAnswer: false });
});

test('a conversation whose target is open has the same second choice each time, and returns to its first one', async () => {
  const strategy = { mode: 'loadbalance' };
  const [first = ''] = (await tried(strategy, ['a', 'b', 'c'], { session: 's' })).called;
  const others = ['a', 'b', 'c'].filter((name) => name !== first);
  const seen = new Set<string>();
  for (const draw of [0, 0.5, 0.99]) {
    const { called } = await tried(strategy, others, { session: 's', draws: [draw, draw] });
    seen.add(called.join(' '));
  }
  expect(seen.size).toBe(1);
  expect([...seen][0]).toMatch(new RegExp(`^${first} [abc]$`));
  expect((await tried(strategy, ['a', 'b', 'c'], { session: 's' })).called).toEqual([first]);
});

test('a sticky caller whose target is open gets another target', async () => {
  const strategy = { mode: 'loadbalance', sticky: { hash_fields: ['metadata.user'] } };
  const { called, isAnswer } = await tried(strategy, ['a', 'b', 'c'].slice(0, 1));
  expect([called.at(-1), isAnswer]).toEqual(['a', true]);
});

test('a retry of a rejected call waits as long as the rejection says, and counts no attempt', () => {
  const budget = createRetryBudget(
    { attemptsMax: 2, baseDelayMs: 1, maxDelayMs: 1, deadlineAt: Number.POSITIVE_INFINITY },
    () => 0,
  );
  const waits = Array.from({ length: 5 }, () => budget.next(retryVerdict(open), open, 0));
  expect(waits).toEqual([30_000, 30_000, 30_000, 30_000, 30_000]);
});
