import { afterEach, expect, test } from 'vitest';
import type { BreakerPolicy } from '#libs/contracts/configs/circuit-breaker.ts';
import { createTraffic, type Traffic } from '#libs/calls/protect/traffic/traffic.ts';
import {
  chatRequest,
  completion,
  payloads,
  readStream,
  startForwardingRig,
  type ForwardingRig,
} from '#test/forwarding-rig.ts';
import { hang, type UpstreamScript } from '#test/upstream.ts';
import { CallAbort } from '#libs/kernel/call-signal.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { parseEgressAllow } from '#libs/calls/upstream/egress/egress-allow.ts';
import { createEgress } from '#libs/calls/upstream/egress/egress.ts';
import { createForwarder } from '#test/forwarder.ts';
import type { WaitWithoutPermit, Outcome, StreamAnswer, Target, Wait } from './call.ts';

let rig: ForwardingRig;
let traffic: Traffic;
afterEach(() => rig.stop());

/** A rig whose calls go through traffic control. Both use the rig's clock. */
async function start(
  script: UpstreamScript | readonly UpstreamScript[],
  limits: Partial<Parameters<typeof createTraffic>[0]> = {},
): Promise<Target> {
  let ready: ForwardingRig | undefined;
  const now = (): number => ready?.now() ?? 0;
  traffic = createTraffic({ clock: { now }, random: () => 0, ...limits });
  rig = ready = await startForwardingRig(script, { traffic });
  return { ...rig.target, credentialId: 'vk_1', workspaceId: 'ws' };
}

const ok: UpstreamScript = (reply) => reply.json(200, completion);
const limited =
  (headers: Record<string, string>): UpstreamScript =>
  (reply) =>
    reply.json(
      429,
      { error: { message: 'slow down', type: 'rate_limit_error', code: 'rate_limit_exceeded' } },
      headers,
    );
const codeOf = (outcome: Outcome): unknown => (outcome.kind === 'failed' ? outcome.error.code : outcome.status);

const breaker: BreakerPolicy = {
  failuresInRow: 2,
  failureShare: null,
  callsMin: 10,
  cooldownMs: 30_000,
  statuses: null,
};

test('after a 429 with a wait, the provider is not called earlier; other models are', async () => {
  const target = await start([limited({ 'retry-after': '30' }), ok]);
  expect(codeOf(await rig.forwarder.settle(chatRequest(), target))).toBe(429);
  const second = await rig.forwarder.settle(chatRequest(), target);
  expect(second).toMatchObject({
    kind: 'failed',
    error: { code: 'provider_rate_limited', retryAfterMs: 30_000 },
    attempts: [],
  });
  expect(rig.upstream.requests).toHaveLength(1);
  expect(codeOf(await rig.forwarder.settle(chatRequest({ model: 'other' }), target))).toBe(200);
});

test('a call whose policy retries waits as long as the provider says, and ignores its own rate-limit wait', async () => {
  const target = await start([limited({ 'retry-after': '30' }), ok]);
  const policy = { attemptsMax: 3, baseDelayMs: 1, maxDelayMs: 1, deadlineAt: Number.POSITIVE_INFINITY };
  const outcome = await rig.forwarder.settle(chatRequest(), target, policy);
  expect(codeOf(outcome)).toBe(200);
  expect(outcome.attempts).toHaveLength(2);
  expect(rig.waits).toEqual([30_000]);
});

test('an open circuit keeps calls from the provider, without an attempt', async () => {
  const target = await start((reply) => reply.json(500, {}));
  for (let n = 0; n < 2; n += 1) await rig.forwarder.settle(chatRequest({ breaker }), target);
  const outcome = await rig.forwarder.settle(chatRequest({ breaker }), target);
  expect(outcome).toMatchObject({ kind: 'failed', error: { code: 'circuit_open', kind: 'unavailable' }, attempts: [] });
  expect(rig.upstream.requests).toHaveLength(2);
  expect(codeOf(await rig.forwarder.settle(chatRequest(), target))).toBe(500);
});

test('a stream that breaks off counts as a failure, and its permit is free when it has ended', async () => {
  const dying: UpstreamScript = async (reply) => {
    reply.head(200, { 'content-type': 'text/event-stream' });
    await reply.write(`data: ${payloads[1] ?? ''}\n\n`);
    reply.cut();
  };
  const target = await start(dying);
  for (let n = 0; n < 2; n += 1) {
    const answer = (await rig.forwarder.settle(chatRequest({ stream: true, breaker }), target)) as StreamAnswer;
    expect((await readStream(answer)).summary.error).not.toBeNull();
  }
  expect(codeOf(await rig.forwarder.settle(chatRequest({ breaker }), target))).toBe('circuit_open');
  expect(traffic.stats().inFlight).toBe(0);
});

test('a stream holds its permit until it has ended, and a waiting call gets it then', async () => {
  const { promise: answered, resolve: tell } = Promise.withResolvers<void>();
  const slow: UpstreamScript = async (reply) => {
    reply.head(200, { 'content-type': 'text/event-stream' });
    await reply.write(`data: ${payloads[1] ?? ''}\n\n`);
    await answered;
    await reply.write(`data: ${payloads[2] ?? ''}\n\ndata: [DONE]\n\n`);
    reply.end();
  };
  const target = await start([slow, ok], { inFlightMax: 1 });
  const stream = (await rig.forwarder.settle(chatRequest({ stream: true }), target)) as StreamAnswer;
  const waiting = rig.forwarder.settle(chatRequest(), target);
  await rig.upstream.until(() => traffic.stats().waitingLive === 1);
  tell();
  await readStream(stream);
  expect(codeOf(await waiting)).toBe(200);
  expect(traffic.stats()).toMatchObject({ inFlight: 0, waitingLive: 0 });
});

test('a call whose caller leaves while it waits is never sent to the provider', async () => {
  const target = await start(hang, { inFlightMax: 1 });
  const holder = new CallAbort();
  const holding = rig.forwarder.settle(chatRequest({ signal: holder }), target);
  await rig.upstream.until(() => rig.upstream.requests.length === 1);
  const leaver = new CallAbort();
  const waiting = rig.forwarder.settle(chatRequest({ signal: leaver }), target);
  await rig.upstream.until(() => traffic.stats().waitingLive === 1);
  leaver.abort(new Error('left'));
  expect(codeOf(await waiting)).toBe('call_aborted');
  holder.abort(new Error('left'));
  expect(codeOf(await holding)).toBe('call_aborted');
  expect(rig.upstream.requests).toHaveLength(1);
  expect(traffic.stats()).toMatchObject({ inFlight: 0, waitingLive: 0 });
});

test('a call that is refused before it is made releases its permit', async () => {
  const target = await start(ok, { inFlightMax: 1 });
  const elsewhere = { ...target, secretOrigin: 'https://elsewhere.example' };
  expect(codeOf(await rig.forwarder.settle(chatRequest(), elsewhere))).toBe('credential_origin_mismatch');
  expect(codeOf(await rig.forwarder.settle(chatRequest(), target))).toBe(200);
});

test('a target without a credential id needs no permit', async () => {
  await start(limited({ 'retry-after': '30' }));
  for (let n = 0; n < 2; n += 1) expect(codeOf(await rig.forwarder.settle(chatRequest(), rig.target))).toBe(429);
});

/**
 * Records what a background call waits for without its permit. `leaveAt`: the wait after which it must not continue.
 */
function recordWaits(leaveAt = Number.POSITIVE_INFINITY) {
  const waits: Wait[] = [];
  const waitWithoutPermit: WaitWithoutPermit = async (what, wait) => {
    waits.push(what);
    await wait(new AbortController().signal);
    if (waits.length >= leaveAt) throw new GatewayError('unavailable', 'call_aborted', 'not to go on');
  };
  return { waitWithoutPermit, waits };
}

const retrying = { attemptsMax: 3, baseDelayMs: 10, maxDelayMs: 10, deadlineAt: Number.POSITIVE_INFINITY };
const background = { isBackground: true };
const noSleep = { sleep: () => Promise.resolve() };

test('a background call waits without its permit for the end of a rate limit and for its next attempt', async () => {
  const target = await start([limited({ 'retry-after': '30' }), (reply) => reply.json(503, {}), ok]);
  const { waitWithoutPermit, waits } = recordWaits();
  const now = rig.now();
  const outcome = await rig.forwarder.settle(chatRequest({ ...background, waitWithoutPermit }), target, retrying);
  expect(codeOf(outcome)).toBe(200);
  expect(waits).toEqual([
    { reason: 'rate_limited', label: 'test-key', model: 'gpt-test', untilMs: now + 30_000 },
    { reason: 'retry', label: 'test-key', model: 'gpt-test', untilMs: expect.any(Number) },
  ]);
});

test('a rate limit that counts as an attempt is reported as one', async () => {
  const target = await start([limited({}), ok]);
  const { waitWithoutPermit, waits } = recordWaits();
  await rig.forwarder.settle(chatRequest({ ...background, waitWithoutPermit }), target, {
    ...retrying,
    countsRateLimited: true,
  });
  expect(waits).toMatchObject([{ reason: 'retry' }]);
});

test('a background call waits without its permit for a rate-limit wait and for an open circuit', async () => {
  let later = 0;
  const target = await start([limited({ 'retry-after': '30' }), ok, (reply) => reply.json(500, {}), ok], {
    clock: { now: () => 1_000_000 + later },
    sleep: (ms) => {
      later += ms;
      return Promise.resolve();
    },
  });
  await rig.forwarder.settle(chatRequest(), target);
  const { waitWithoutPermit, waits } = recordWaits();
  const circuit = { ...breaker, failuresInRow: 1 };
  const request = chatRequest({ ...background, waitWithoutPermit, breaker: circuit });
  expect(codeOf(await rig.forwarder.settle(request, target))).toBe(200);
  expect(codeOf(await rig.forwarder.settle(request, target))).toBe(500);
  expect(codeOf(await rig.forwarder.settle(request, target))).toBe(200);
  expect(waits.map(({ reason }) => reason)).toEqual(['rate_limited', 'circuit_open']);
});

test.each(['rate_limited', 'retry'])(
  'a call that is not to go on after its wait (%s) is made no more',
  async (reason) => {
    const target = await start(reason === 'retry' ? (reply) => reply.json(500, {}) : limited({ 'retry-after': '30' }));
    const { waitWithoutPermit, waits } = recordWaits(1);
    const outcome = await rig.forwarder.settle(chatRequest({ ...background, waitWithoutPermit }), target, retrying);
    expect(codeOf(outcome)).toBe('call_aborted');
    expect(waits).toMatchObject([{ reason }]);
    expect(rig.upstream.requests).toHaveLength(1);
    expect(traffic.stats().inFlight).toBe(0);
    expect(rig.forwarder.counters().waitingRetries).toBe(0);
  },
);

test('a permit that is granted to a call that must not go on is passed to the next call', async () => {
  const target = await start([hang, ok], { inFlightMax: 1, ...noSleep });
  const holder = new CallAbort();
  const holding = rig.forwarder.settle(chatRequest({ signal: holder }), target);
  await rig.upstream.until(() => rig.upstream.requests.length === 1);
  const { waitWithoutPermit, waits } = recordWaits(1);
  const waiting = rig.forwarder.settle(chatRequest({ ...background, waitWithoutPermit }), target);
  await rig.upstream.until(() => traffic.stats().waitingBackground === 1);
  holder.abort(new Error('left'));
  await holding;
  expect(codeOf(await waiting)).toBe('call_aborted');
  expect(waits).toMatchObject([{ reason: 'provider_busy', label: 'test-key', model: 'gpt-test', untilMs: null }]);
  expect(traffic.stats()).toMatchObject({ inFlight: 0, waitingBackground: 0 });
  expect(codeOf(await rig.forwarder.settle(chatRequest(), target))).toBe(200);
});

test('a call beyond the connections of its workspace was never made, and waits for one if it has time', async () => {
  const { promise: answered, resolve: tell } = Promise.withResolvers<void>();
  rig = await startForwardingRig(async (reply) => {
    await answered;
    reply.json(200, completion);
  });
  const allow = parseEgressAllow(`127.0.0.1:${rig.upstream.port}`);
  const egress = createEgress({ allow, callsMax: 4 });
  const held: Promise<Outcome>[] = [];
  const forwarder = createForwarder({
    egress,
    clock: { now: () => 0 },
    random: () => 0,
    sleep: async () => {
      tell();
      await Promise.all(held);
    },
  });
  const target = { ...rig.target, workspaceId: 'ws' };
  for (let call = 0; call < 3; call += 1) held.push(forwarder.settle(chatRequest(), target));
  await rig.upstream.until(() => rig.upstream.requests.length === 3);
  expect(await forwarder.settle(chatRequest(), target)).toMatchObject({
    kind: 'failed',
    error: { kind: 'rate_limited', code: 'too_many_calls', retryAfterMs: 1_000 },
    attempts: [],
  });
  const policy = { attemptsMax: 1, baseDelayMs: 1, maxDelayMs: 1, deadlineAt: Number.POSITIVE_INFINITY };
  expect(await forwarder.settle(chatRequest(), target, policy)).toMatchObject({
    status: 200,
    attempts: [{ status: 200 }],
  });
  await egress.stop();
});
