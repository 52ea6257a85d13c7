import { expect, test, vi } from 'vitest';
import type { ForwardRequest, JsonAnswer, Outcome, Wait } from '#libs/calls/call.ts';
import { runCall } from '#libs/calls/calls.ts';
import { plainPlan } from '#libs/calls/plan/plain-plan.ts';
import { createRetries } from '#libs/calls/retry.ts';
import { asGatewayError, GatewayError } from '#libs/kernel/errors.ts';
import { createMemoryBudget } from '#libs/kernel/sharing/memory-budget.ts';
import checkOutput, { type OutputWork } from '#libs/validation/outputs/check-output-worker.ts';
import type { BatchRow } from '../batch/batch-model.ts';
import { createCallLine } from './call-line.ts';

const schema = { type: 'object', properties: { n: { type: 'integer' } }, required: ['n'] };
const withSchema = { model: 'm', response_format: { type: 'json_schema', json_schema: { name: 'n', schema } } };
const usage = { inputTokens: 10, cachedTokens: 0, outputTokens: 5, reasoningTokens: 0 };
const attempt = { startedAt: 0, durationMs: 1, status: 200, errorCode: null };

const answerOf = (content: string, finish = 'stop', status = 200): Outcome =>
  ({
    kind: 'json',
    status,
    headers: {},
    providerRequestId: 'req_1',
    body: Buffer.from(JSON.stringify({ choices: [{ finish_reason: finish, message: { content } }] })),
    model: 'm',
    usage,
    finishReason: finish,
    attempts: [attempt],
  }) as unknown as JsonAnswer;
const good = answerOf('{"n":1}');
const bad = answerOf('{"n":"one"}');

type Options = { retries?: number | null; request?: object; endpoint?: string; isStopped?: boolean };

/** Runs a line whose calls have these outcomes in turn. */
async function runLine(outcomes: Outcome[], { retries = 2, request = withSchema, endpoint, isStopped }: Options = {}) {
  const left = [...outcomes];
  const requests: ForwardRequest[] = [];
  const callTarget = (_call: unknown, sent: ForwardRequest): Promise<Outcome> => {
    requests.push({ ...sent });
    return Promise.resolve(left.shift() ?? good);
  };
  const clock = { now: () => 0 };
  const retrying = createRetries({ clock, random: () => 0, stopping: new AbortController().signal });
  const planDeps = { callTarget, search: () => false, random: () => 0, now: () => 0 };
  const onCalled = vi.fn(() => ({ cost: '0.5', price_version: 'v1' }));
  const check = vi.fn((work: OutputWork) => Promise.resolve(checkOutput(work)));
  const callLine = createCallLine({
    calls: { run: (call, course) => runCall({ planDeps, retries: retrying }, call, course) },
    boundOf: () => null,
    planOf: async () => ({ plan: plainPlan, stored: null }),
    resolve: () => Promise.resolve({ target: { provider: 'openai', label: 'p' } as never, model: null }),
    outputs: { check },
    policy: () => ({ attemptsMax: 1, baseDelayMs: 1, maxDelayMs: 1, deadlineAt: 10_000 }),
    onCalled,
    now: () => 0,
    clock,
  });
  const waits: Wait[] = [];
  const permit = {
    waitWithoutPermit(what: Wait) {
      waits.push(what);
      return isStopped === true
        ? Promise.reject(new GatewayError('unavailable', 'call_aborted', 'stopped'))
        : Promise.resolve();
    },
    isAbandoned: () => isStopped === true && waits.length > 0,
  };
  const batch = {
    id: 'batch_1',
    workspace_id: 'ws_1',
    endpoint: endpoint ?? '/v1/chat/completions',
    gateway_options: retries === null ? {} : { validate_outputs: { retries } },
    headers: {},
  } as unknown as BatchRow;
  const result = await callLine({
    batch,
    line: 1,
    id: 'batch_req_1',
    body: Buffer.from(JSON.stringify(request)),
    signal: new AbortController().signal,
    permit,
    memory: createMemoryBudget(1_000_000).open(null),
  }).catch((error: unknown) => asGatewayError(error));
  return { result, requests, onCalled, check, waits };
}

test('an answer that matches its schema is the result of its line', async () => {
  const { result, requests, waits } = await runLine([good]);
  expect(result).toMatchObject({ outcome: { kind: 'response', statusCode: 200 }, output: 'passed' });
  expect([requests.length, waits.length]).toEqual([1, 0]);
});

test('a line is called again until its answer matches, and all of its answers are paid for', async () => {
  const { result, requests, onCalled, waits } = await runLine([bad, bad, good]);
  expect(result).toMatchObject({
    outcome: { kind: 'response', statusCode: 200, body: (good as JsonAnswer).body },
    output: 'passed_after_retry',
    usage: { input_tokens: 30, output_tokens: 15, cost: '0.5' },
  });
  expect(waits).toMatchObject([
    { reason: 'retry', label: 'p' },
    { reason: 'retry', label: 'p' },
  ]);
  expect(onCalled).toHaveBeenCalledOnce();
  expect(onCalled).toHaveBeenCalledWith(
    expect.objectContaining({
      errorCode: null,
      attempts: [attempt],
      call: expect.objectContaining({ retries: 2, earlierAttempts: [attempt, attempt] }) as unknown,
    }),
  );
  // Otherwise the cache would give the same answer.
  expect(requests.map(({ headers }) => headers?.['x-gateway-cache-force-refresh'])).toEqual([
    undefined,
    'true',
    'true',
  ]);
});

test('a line whose answers never match fails with the path of the last violation', async () => {
  const { result, requests, onCalled } = await runLine([bad, bad, bad, good]);
  expect(result).toMatchObject({
    outcome: {
      kind: 'error',
      code: 'output_schema_mismatch',
      message:
        "The model did not answer with JSON that matches the schema of the request in 3 calls: '/n' must be integer.",
    },
    output: 'failed',
    usage: { input_tokens: 30, output_tokens: 15, cost: '0.5' },
  });
  expect(requests).toHaveLength(3);
  expect(onCalled).toHaveBeenCalledWith(
    expect.objectContaining({ errorCode: 'output_schema_mismatch', answer: expect.objectContaining({ status: 200 }) }),
  );
});

test.each([
  ['without retries', [bad], { retries: 0 }],
  ['when its answer was cut off', [answerOf('{"n":', 'length')], {}],
])('a line is called once %s', async (_name, outcomes, options) => {
  const { result, requests } = await runLine(outcomes, options);
  expect(requests).toHaveLength(1);
  expect(result).toMatchObject({ outcome: { code: 'output_schema_mismatch' }, output: 'failed' });
});

test.each([
  ['its batch does not ask for it', [bad], { retries: null }],
  ['its request has no schema', [bad], { request: { model: 'm', response_format: { type: 'json_object' } } }],
  ['its endpoint has no schemas', [bad], { endpoint: '/v1/completions' }],
  ['its answer is an error', [answerOf('', 'stop', 400)], {}],
])('an answer is not checked if %s', async (_name, outcomes, options) => {
  const { result, check } = await runLine(outcomes, options);
  expect(result).toMatchObject({ outcome: { kind: 'response' }, output: null });
  expect(check).not.toHaveBeenCalled();
});

test('an error after an answer that did not match is the result of the line, with the usage of both', async () => {
  const failed: Outcome = {
    kind: 'failed',
    error: new GatewayError('provider_failed', 'upstream_truncated', 'truncated'),
    attempts: [attempt],
  };
  const { result } = await runLine([bad, failed]);
  expect(result).toMatchObject({
    outcome: { kind: 'error', code: 'upstream_truncated' },
    output: null,
    usage: { input_tokens: 10, output_tokens: 5 },
  });
});

test('a line that is stopped before it is called again is abandoned, and its call is recorded', async () => {
  const { result, requests, onCalled } = await runLine([bad, good], { isStopped: true });
  expect(result).toMatchObject({ code: 'call_aborted' });
  expect(requests).toHaveLength(1);
  expect(onCalled).toHaveBeenCalledWith(
    expect.objectContaining({ answer: expect.objectContaining({ status: 200, usage }) }),
  );
});
