import fc from 'fast-check';
import { afterEach, describe, expect, test, vi } from 'vitest';
import { chatRequest, completion, startForwardingRig, type ForwardingRig } from '#test/forwarding-rig.ts';
import { streamOf, type UpstreamScript } from '#test/upstream.ts';
import type { Outcome, StreamAnswer } from './call.ts';
import type { createForwarder } from '#test/forwarder.ts';
import { CallAbort } from '#libs/kernel/call-signal.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { readRetryAfter } from './retry-waits.ts';
import { createRetryBudget, retryVerdict, type RetryPolicy } from './retry.ts';

let rig: ForwardingRig;
afterEach(async () => rig?.stop());

const minute = 60_000;
const ok: UpstreamScript = (reply) => reply.json(200, completion);
const error = (code: string | null) => ({ error: { message: 'no', type: 'server_error', param: null, code } });
const status =
  (code: number, headers: Record<string, string> = {}, errorCode: string | null = null): UpstreamScript =>
  (reply) =>
    reply.json(code, error(errorCode), headers);

async function settle(
  scripts: readonly UpstreamScript[],
  policy: Partial<RetryPolicy> = {},
  deps: Partial<Parameters<typeof createForwarder>[0]> = {},
  request: Parameters<typeof chatRequest>[0] = {},
): Promise<Outcome> {
  rig = await startForwardingRig(scripts, deps);
  const deadlineAt = rig.now() + 60 * minute;
  return rig.forwarder.settle(chatRequest(request), rig.target, {
    attemptsMax: 4,
    baseDelayMs: 1_000,
    maxDelayMs: 8_000,
    deadlineAt,
    ...policy,
  });
}

describe('retries', () => {
  test('without a policy a call is made once', async () => {
    rig = await startForwardingRig([status(503), ok]);
    expect((await rig.forwarder.settle(chatRequest(), rig.target)).attempts).toHaveLength(1);
    expect(rig.upstream.requests).toHaveLength(1);
  });

  test('a retryable failure is retried with the same bytes, after growing waits', async () => {
    const outcome = await settle([(reply) => reply.reset(), status(500), (reply) => reply.respond(200, '<html>'), ok]);
    expect(outcome).toMatchObject({
      kind: 'json',
      status: 200,
      attempts: [
        { status: null, errorCode: 'upstream_connection_lost' },
        { status: 500, errorCode: null },
        { status: null, errorCode: 'upstream_invalid_response' },
        { status: 200, errorCode: null },
      ],
    });
    expect(rig.waits).toEqual([500, 1_000, 2_000]);
    expect(new Set(rig.upstream.requests.map(({ body }) => body.toString())).size).toBe(1);
  });

  test.each([408, 409, 500, 502, 503, 504, 529])('%i is tried again until the attempts are used up', async (code) => {
    const outcome = await settle([status(code)], { attemptsMax: 3 });
    expect(outcome).toMatchObject({ kind: 'json', status: code });
    expect(rig.upstream.requests).toHaveLength(3);
  });

  test.each([400, 401, 403, 404, 413, 422])('%i is final', async (code) => {
    expect(await settle([status(code)])).toMatchObject({ status: code, attempts: [{}] });
    expect(rig.upstream.requests).toHaveLength(1);
  });

  test('a policy’s own statuses replace the default ones', async () => {
    await settle([status(404), status(500)], { statuses: [404] });
    expect(rig.upstream.requests).toHaveLength(2);
  });

  test('x-should-retry overrides the status in both directions', async () => {
    await settle([status(500, { 'x-should-retry': 'false' })]);
    expect(rig.upstream.requests).toHaveLength(1);
    await rig.stop();
    await settle([status(404, { 'x-should-retry': 'true' }), ok]);
    expect(rig.upstream.requests).toHaveLength(2);
  });

  test('an exhausted quota is not retried although it is a 429', async () => {
    await settle([status(429, {}, 'insufficient_quota')]);
    expect(rig.upstream.requests).toHaveLength(1);
  });

  test('429s do not count as attempts: a call succeeds after fifty of them and three failures, with four attempts', async () => {
    const storm = Array.from({ length: 50 }, () => status(429, { 'retry-after': '1' }));
    const outcome = await settle([status(500), ...storm, status(500), status(500), ok]);
    expect(outcome).toMatchObject({ kind: 'json', status: 200 });
    expect(outcome.attempts).toHaveLength(54);
    expect(rig.waits.slice(1, 51).every((ms) => ms >= 1_000)).toBe(true);
  });

  test.each([
    ['that gives no time', {}, 8_000],
    ['that asks for a day', { 'retry-after': '86400' }, 5 * minute],
    ['that asks for longer than the world is old', { 'retry-after': '9'.repeat(30) }, 5 * minute],
  ])(
    'a call that only its signal ends is repeated at least every few minutes after a 429 %s, however often and past any deadline',
    async (_what, headers, waitMsMax) => {
      const signal = new AbortController();
      const waits: number[] = [];
      const sleep = (ms: number): Promise<void> => {
        waits.push(ms);
        if (waits.length === 1_100) signal.abort();
        return Promise.resolve();
      };
      const outcome = await settle([status(429, headers)], { deadlineAt: 0 }, { sleep }, { signal: signal.signal });
      expect(outcome).toMatchObject({ kind: 'failed', error: { code: 'call_aborted' } });
      expect(rig.upstream.requests).toHaveLength(1_100);
      expect(Math.max(...waits)).toBeLessThanOrEqual(waitMsMax);
    },
  );

  test('429s that count as attempts end with the deadline', async () => {
    const outcome = await settle([status(429, { 'retry-after': '600' })], { attemptsMax: 9, countsRateLimited: true });
    expect(outcome).toMatchObject({ kind: 'json', status: 429 });
    expect(rig.waits).toEqual([600_000, 600_000, 600_000, 600_000, 600_000]);
  });

  test('a stream that fails before its first event is retried', async () => {
    const payload = JSON.stringify({ choices: [{ index: 0, delta: {}, finish_reason: 'stop' }] });
    const early: UpstreamScript = (reply) =>
      reply.respond(200, 'data: {"error":{"message":"busy","code":503}}\n\n', { 'content-type': 'text/event-stream' });
    const outcome = await settle([early, streamOf([]), streamOf([payload])], {}, {}, { stream: true });
    expect(outcome).toMatchObject({
      kind: 'stream',
      status: 200,
      attempts: [{ status: 503 }, { status: null }, { status: 200 }],
    });
    const read: string[] = [];
    for await (const batch of (outcome as StreamAnswer).events) read.push(...batch);
    expect(read).toEqual([payload]);
  });

  test.each([
    ['a redirect', (reply) => reply.respond(302, '', { location: '/' })],
    ['an answer too large', (reply) => reply.respond(200, 'x', { 'content-length': '99999999999' })],
  ] as [string, UpstreamScript][])('%s is final', async (_name, script) => {
    expect(await settle([script, ok])).toMatchObject({ kind: 'failed', attempts: [{ status: null }] });
    expect(rig.upstream.requests).toHaveLength(1);
  });

  test('a waiting call ends when its caller leaves or the process stops', async () => {
    const client = new CallAbort();
    const leave = (): Promise<void> => Promise.resolve(client.abort(new Error('left')));
    const left = await settle([status(503)], {}, { sleep: leave }, { signal: client });
    expect(left).toMatchObject({ kind: 'failed', error: { code: 'call_aborted' }, attempts: [{ status: 503 }] });
    await rig.stop();
    const stop = (): Promise<void> => Promise.resolve(rig.forwarder.stop());
    const stopped = await settle([status(503)], {}, { sleep: stop });
    expect(stopped).toMatchObject({ kind: 'failed', error: { kind: 'unavailable', code: 'shutting_down' } });
    expect(await rig.forwarder.settle(chatRequest(), rig.target)).toMatchObject({ error: { code: 'shutting_down' } });
    expect(rig.upstream.requests).toHaveLength(1);
  });
});

describe('Retry-After', () => {
  const now = Date.parse('2026-11-21T10:00:00Z');

  test.each([
    [{ 'retry-after': '120' }, 120_000],
    [{ 'retry-after': '0' }, 0],
    [{ 'retry-after': '1.5' }, 1_500],
    [{ 'retry-after': ' 2 ' }, 2_000],
    [{ 'retry-after': 'Sat, 21 Nov 2026 10:00:30 GMT' }, 30_000],
    [{ 'retry-after': 'Saturday, 21-Nov-26 10:00:30 GMT' }, 30_000],
    [{ 'retry-after': 'Sat Nov 21 10:00:30 2026' }, 30_000],
    [{ 'retry-after': '9'.repeat(30) }, Number.MAX_SAFE_INTEGER],
    [{ 'retry-after-ms': '9'.repeat(400) }, Number.MAX_SAFE_INTEGER],
    [{ 'retry-after-ms': '250' }, 250],
    [{ 'retry-after-ms': '250.4', 'retry-after': '9' }, 251],
    [{ 'x-ms-retry-after-ms': '300', 'retry-after': '9' }, 300],
    [{ 'retry-after-ms': 'soon', 'retry-after': '9' }, 9_000],
    [{ 'retry-after': 'Sat, 21 Nov 2026 09:59:00 GMT' }, null],
    [{ 'retry-after': '-1' }, null],
    [{ 'retry-after': '1e9' }, null],
    [{ 'retry-after': '0x10' }, null],
    [{ 'retry-after': '2027-01-01' }, null],
    [{ 'retry-after': 'tomorrow' }, null],
    [{ 'retry-after': '' }, null],
    [{ 'retry-after': 'NaN' }, null],
    [{}, null],
  ] as [Record<string, string>, number | null][])('%j is %s ms', (headers, expected) => {
    expect(readRetryAfter(headers, now)).toBe(expected);
  });

  test('a date without a zone is in GMT, whatever the zone of this machine', () => {
    vi.stubEnv('TZ', 'America/New_York');
    expect(readRetryAfter({ 'retry-after': 'Sat Nov 21 10:00:30 2026' }, now)).toBe(30_000);
    vi.unstubAllEnvs();
  });

  test('a wait that counts is never shorter than the provider asks, never goes past the deadline, and has a limit when the provider asks for none', () => {
    const answer = (headers: Record<string, string>) => ({ kind: 'json', status: 429, headers }) as unknown as Outcome;
    const bounds = { attemptsMax: 1_000, baseDelayMs: 100, maxDelayMs: 5_000, deadlineAt: now + 1_000_000 };
    const policy = { ...bounds, countsRateLimited: true };
    fc.assert(
      fc.property(
        fc.array(
          fc.record({
            askedMs: fc.option(fc.nat({ max: 2_000_000 })),
            random: fc.double({ min: 0, max: 0.999, noNaN: true }),
          }),
          { minLength: 1, maxLength: 60 },
        ),
        (steps) => {
          let draw = 0;
          const budget = createRetryBudget(policy, () => draw);
          for (const { askedMs, random } of steps) {
            draw = random;
            const wait = budget.next(
              'rate_limited',
              answer(askedMs === null ? {} : { 'retry-after-ms': String(askedMs) }),
              now,
            );
            const least = askedMs ?? 50;
            const most = askedMs === null ? 5_000 : askedMs + Math.max(5_000, askedMs / 4) + 1;
            expect(
              wait === null
                ? askedMs !== null && askedMs > 700_000
                : wait >= least && wait <= most && wait <= 1_000_000,
            ).toBe(true);
          }
        },
      ),
    );
  });

  test('calls with the same retry time do not all return at it', () => {
    const answer = { kind: 'json', status: 429, headers: { 'retry-after': '60' } } as unknown as Outcome;
    const policy = { attemptsMax: 3, baseDelayMs: 100, maxDelayMs: 5_000, deadlineAt: now + 10 * minute };
    const waits = [0, 0.25, 0.5, 0.75].map((draw) =>
      createRetryBudget(policy, () => draw).next('rate_limited', answer, now),
    );
    expect(waits).toEqual([60_000, 63_750, 67_500, 71_250]);
  });
});

test('failures of the provider and answers that guardrails reject count as attempts of one call', () => {
  const policy = { attemptsMax: 3, statuses: [446, 500], baseDelayMs: 1, maxDelayMs: 1, deadlineAt: Infinity };
  const budget = createRetryBudget(policy, () => 0);
  const failed = { kind: 'json', status: 500, headers: {}, attempts: [] } as unknown as Outcome;
  expect(budget.next('retryable', failed, 0)).toBe(1);
  expect([budget.repeatRejected(246), budget.repeatRejected(446)]).toEqual([false, true]);
  expect([budget.repeatRejected(446), budget.next('retryable', failed, 0)]).toEqual([false, null]);
});

test('while limits cannot be checked a call waits, however many times it asks', () => {
  const error = new GatewayError('unavailable', 'limits_unavailable', 'The database is away.', { retryAfterMs: 1_000 });
  const outcome: Outcome = { kind: 'failed', error, attempts: [] };
  const policy = { attemptsMax: 2, baseDelayMs: 100, maxDelayMs: 1_000, deadlineAt: 60 * minute };
  const budget = createRetryBudget(policy, () => 0);
  for (let round = 0; round < 20; round += 1) expect(budget.next(retryVerdict(outcome), outcome, 0)).toBe(1_000);
  expect(budget.next(retryVerdict(outcome), outcome, 60 * minute - 500)).toBe(1_000);
});
