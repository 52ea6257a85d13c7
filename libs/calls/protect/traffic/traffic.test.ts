import { beforeEach, describe, expect, test } from 'vitest';
import type { BreakerPolicy } from '#libs/contracts/configs/circuit-breaker.ts';
import type { JsonAnswer, Outcome, Target, Wait, WaitWithoutPermit } from '#libs/calls/call.ts';
import { CallAbort } from '#libs/kernel/call-signal.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { firstLimit } from '#libs/limits/call-limit.ts';
import type { Permit } from './lanes.ts';
import type { TrafficRequest } from './call-waits.ts';
import { createTraffic, type Traffic } from './traffic.ts';

let now: number;
let waits: number[];
let traffic: Traffic;

const clock = { now: () => now };
const sleep = (ms: number): Promise<void> => {
  waits.push(ms);
  now += ms;
  return Promise.resolve();
};

beforeEach(() => {
  now = 1_000_000;
  waits = [];
  traffic = createTraffic({ clock, random: () => 0, sleep, inFlightMax: 2, waitingMax: 2 });
});

const target = (credentialId: string): Target => ({
  provider: 'openai',
  baseUrl: new URL('https://api.openai.com/v1'),
  apiKey: null,
  settings: {},
  secrets: {},
  secretOrigin: null,
  label: `label-${credentialId}`,
  credentialId,
  workspaceId: 'ws',
});

type Call = Partial<TrafficRequest> & { key?: string; obeysRateLimit?: boolean };

const isOpen = ({ circuits }: Traffic): boolean => circuits.of(target('vk_1'), 'm', breaker).circuit.blockedMs(now) > 0;
const enter = ({ key = 'vk_1', obeysRateLimit = true, ...more }: Call = {}): Permit | Promise<Permit> =>
  traffic.acquire({ model: 'm', signal: new AbortController().signal, ...more }, target(key), obeysRateLimit);

const answer = (status: number, headers: Record<string, string> = {}): JsonAnswer => ({
  kind: 'json',
  status,
  headers,
  providerRequestId: null,
  attempts: [],
  usage: null,
  model: null,
  finishReason: null,
  body: Buffer.from('{}'),
  contentType: 'application/json',
});
const failed = (kind: 'provider_failed' | 'provider_timeout' | 'unavailable' | 'invalid_request'): Outcome => ({
  kind: 'failed',
  error: new GatewayError(kind, kind, 'x'),
  attempts: [],
});

/** Enters, and leaves with an outcome. */
async function make(outcome: Outcome | null, more: Call = {}): Promise<void> {
  const permit = await enter(more);
  permit.release(outcome);
}
/** Returns why a call is rejected; undefined when it is admitted (and ended again). */
async function readRefusal(more: Call = {}): Promise<GatewayError | undefined> {
  try {
    (await enter(more)).release(null);
    return undefined;
  } catch (error) {
    if (!(error instanceof GatewayError)) throw error;
    return error;
  }
}

const breaker: BreakerPolicy = Object.freeze({
  failuresInRow: 3,
  failureShare: null,
  callsMin: 10,
  cooldownMs: 30_000,
  statuses: null,
});

describe('a plain call', () => {
  test('goes at once, without an object of its own', () => {
    const first = enter();
    const second = enter();
    expect(first).not.toBeInstanceOf(Promise);
    expect(second).toBe(first);
    (first as Permit).release(answer(200));
    (second as Permit).release(answer(500));
    expect(traffic.stats().inFlight).toBe(0);
  });
});

describe('a rate-limit wait', () => {
  test.each([
    [{ 'retry-after': '7' }, 7_000],
    [{ 'retry-after-ms': '1500' }, 1_500],
    [{ 'x-ms-retry-after-ms': '250' }, 250],
    [{ 'retry-after': new Date(1_009_000).toUTCString() }, 9_000],
  ])('after 429 with %j lasts exactly as long as the provider says', async (headers, waitMs) => {
    await make(answer(429, headers));
    const refusal = await readRefusal();
    expect(refusal).toMatchObject({ kind: 'rate_limited', code: 'provider_rate_limited', retryAfterMs: waitMs });
    now += waitMs - 101;
    expect((await readRefusal())?.retryAfterMs).toBe(101);
    // A call that comes slightly too early waits for the rest of the time.
    now += 100;
    expect(await readRefusal()).toBeUndefined();
    expect(waits).toEqual([1]);
    expect(await readRefusal()).toBeUndefined();
    expect(waits).toHaveLength(1);
  });

  test('does not reject live calls when a batch line tried one call more, unless it takes longer than a moment', async () => {
    const line = await enter({ isBackground: true });
    line.release(answer(429, { 'retry-after': '1' }));
    expect(await readRefusal()).toBeUndefined();
    const signal = AbortSignal.abort();
    expect(await readRefusal({ isBackground: true, signal })).toBeDefined();
    now += 1_000;
    const next = await enter({ isBackground: true });
    next.release(answer(429, { 'retry-after': '20' }));
    expect(await readRefusal()).toMatchObject({ code: 'provider_rate_limited' });
  });

  test('does not affect another model or another credential', async () => {
    await make(answer(429, { 'retry-after': '60' }));
    expect(await readRefusal({ model: 'other' })).toBeUndefined();
    expect(await readRefusal({ key: 'vk_2' })).toBeUndefined();
    expect(await readRefusal()).toBeDefined();
  });

  test('does not begin with a 429 that gives no time, with an exhausted quota, or with a shorter time later', async () => {
    await make(answer(429));
    expect(await readRefusal()).toBeUndefined();
    (await enter()).release({ ...answer(429, { 'retry-after': '60' }), errorCode: 'insufficient_quota' });
    expect(await readRefusal()).toBeUndefined();
    const [long, short] = [await enter(), await enter()];
    long.release(answer(429, { 'retry-after': '60' }));
    short.release(answer(429, { 'retry-after': '1' }));
    expect((await readRefusal())?.retryAfterMs).toBe(60_000);
  });

  test('is waited for by a batch line, never for a shorter time', async () => {
    await make(answer(429, { 'retry-after': '60' }));
    expect(await readRefusal({ isBackground: true })).toBeUndefined();
    expect(waits).toEqual([60_000]);
  });

  describe('that lasts for a day or longer', () => {
    const minute = 60_000;
    beforeEach(() => make(answer(429, { 'retry-after': '9'.repeat(20) })));

    test('lets one call through every five minutes, and tells all others what the provider asked for', async () => {
      now += 5 * minute - 1;
      expect((await readRefusal())?.retryAfterMs).toBe(86_400_000 - 5 * minute + 1);
      now += 1;
      const probe = await enter();
      expect(await readRefusal()).toMatchObject({ code: 'provider_rate_limited' });
      probe.release(answer(429, { 'retry-after': '86400' }));
      expect(await readRefusal()).toMatchObject({ code: 'provider_rate_limited' });
      now += 5 * minute;
      await make(answer(429));
      expect(await readRefusal()).toMatchObject({ code: 'provider_rate_limited' });
    });

    test('ends with a probe that succeeds, and the batch lines that wait go at once', async () => {
      const sleeping: (() => void)[] = [];
      const waitUntilAborted = (_ms: number, signal: AbortSignal): Promise<void> =>
        new Promise((resolve) => {
          sleeping.push(resolve);
          signal.addEventListener('abort', () => resolve(), { once: true });
        });
      traffic = createTraffic({ clock, random: () => 0, sleep: waitUntilAborted });
      await make(answer(429, { 'retry-after': '86400' }));
      const lines = Array.from({ length: 3 }, () => Promise.resolve(enter({ isBackground: true })));
      expect(sleeping).toHaveLength(3);
      now += 5 * minute;
      sleeping[0]?.();
      const probe = await (lines[0] as Promise<Permit>);
      expect(traffic.stats().inFlight).toBe(1);
      probe.release(answer(200));
      for (const permit of await Promise.all(lines.slice(1))) permit.release(answer(200));
      expect(traffic.stats()).toMatchObject({ inFlight: 0, rateLimited: 0 });
    });

    test('passes the probe on when it fails for another reason', async () => {
      now += 5 * minute;
      await make(failed('provider_failed'));
      await make(answer(400));
      await make(answer(200));
      expect(await readRefusal()).toBeUndefined();
      expect(await readRefusal()).toBeUndefined();
    });

    test('ends with a stream that begins', async () => {
      now += 5 * minute;
      (await enter()).begun?.();
      expect(await readRefusal()).toBeUndefined();
    });

    test('is probed at once with a changed credential, by a batch line that has resolved it again', async () => {
      const sleepUntilAborted = (_ms: number, signal: AbortSignal): Promise<void> =>
        new Promise((resolve) => signal.addEventListener('abort', () => resolve(), { once: true }));
      traffic = createTraffic({ clock, random: () => 0, sleep: sleepUntilAborted });
      await make(answer(429, { 'retry-after': '86400' }));
      const waiting = readRefusal({ isBackground: true });
      const change = traffic.changeOf('vk_1');
      traffic.credentialChanged('vk_2');
      expect(change.aborted).toBe(false);
      traffic.credentialChanged('vk_1');
      expect(change.aborted).toBe(true);
      expect(await waiting).toMatchObject({ kind: 'rate_limited', code: 'credential_changed', retryAfterMs: 0 });
      const probe = await enter({ isBackground: true });
      expect(await readRefusal()).toMatchObject({ code: 'provider_rate_limited' });
      probe.release(answer(200));
      expect(await readRefusal()).toBeUndefined();
    });
  });

  test('does not apply to a call that ignores rate-limit waits', async () => {
    await make(answer(429, { 'retry-after': '60' }));
    expect(await readRefusal({ obeysRateLimit: false })).toBeUndefined();
  });
});

describe('a queue', () => {
  test('serves live calls before batch lines, each in order, and rejects calls beyond its limit', async () => {
    const passes = [await enter(), await enter()];
    const order: string[] = [];
    const wait = (name: string, more: Call = {}): Promise<Permit> => {
      const entered = Promise.resolve(enter(more));
      return entered.then((pass) => {
        order.push(name);
        return pass;
      });
    };
    const waiting = [wait('line', { isBackground: true }), wait('first'), wait('second')];
    expect(traffic.stats()).toMatchObject({ inFlight: 2, waitingLive: 2, waitingBackground: 1 });
    expect(await readRefusal()).toMatchObject({ kind: 'unavailable', code: 'provider_busy', retryAfterMs: 1_000 });
    expect(await readRefusal({ key: 'vk_2' })).toBeUndefined();
    for (const permit of passes) permit.release(answer(200));
    const [first, second] = await Promise.all(waiting.slice(1));
    expect(order).toEqual(['first', 'second']);
    first?.release(answer(200));
    (await waiting[0])?.release(answer(200));
    second?.release(answer(200));
    expect(order).toEqual(['first', 'second', 'line']);
    expect(traffic.stats()).toMatchObject({ inFlight: 0, waitingLive: 0, waitingBackground: 0 });
  });

  test('forgets a caller who leaves, and the calls behind it keep their turn', async () => {
    const held = [await enter(), await enter()];
    const controller = new CallAbort();
    const leaving = Promise.resolve(enter({ signal: controller }));
    const staying = Promise.resolve(enter());
    controller.abort(new Error('left'));
    await expect(leaving).rejects.toMatchObject({ code: 'call_aborted' });
    for (const permit of held) permit.release(answer(200));
    (await staying).release(answer(200));
    expect(traffic.stats().inFlight).toBe(0);
  });

  test('lets no call wait longer than its limit', async () => {
    traffic = createTraffic({ clock, random: () => 0, sleep, inFlightMax: 1, waitMsMax: 5 });
    await enter();
    expect(await readRefusal()).toMatchObject({ code: 'provider_busy' });
    expect(traffic.stats()).toMatchObject({ inFlight: 1, waitingLive: 0 });
  });

  test('ends its waits when the process stops', async () => {
    traffic = createTraffic({ clock, random: () => 0, sleep, inFlightMax: 1 });
    await enter();
    const waiting = readRefusal();
    traffic.stop();
    expect(await waiting).toMatchObject({ code: 'shutting_down' });
  });

  test('does not send a call that waited when a rate-limit wait began meanwhile', async () => {
    traffic = createTraffic({ clock, random: () => 0, sleep, inFlightMax: 1 });
    const held = await enter();
    const waiting = readRefusal();
    held.release(answer(429, { 'retry-after': '5' }));
    expect(await waiting).toMatchObject({ code: 'provider_rate_limited', retryAfterMs: 5_000 });
    expect(traffic.stats().inFlight).toBe(0);
  });
});

describe('a place that is held', () => {
  const line = { isBackground: true, turn: 'ws' };

  /** Uses up the learned limit, and returns the permits and how the next call waits. */
  async function useUp(key = 'vk_1') {
    traffic = createTraffic({ clock, random: () => 0, sleep });
    const permits: Permit[] = [];
    for (let call = 0; call < firstLimit; call += 1) permits.push(await enter({ ...line, key }));
    const waits: Wait[] = [];
    const waitWithoutPermit: WaitWithoutPermit = (what) => {
      waits.push(what);
      throw new GatewayError('unavailable', 'call_aborted', 'x');
    };
    await expect(enter({ ...line, key, waitWithoutPermit })).rejects.toMatchObject({ code: 'call_aborted' });
    const hold = waits[0]?.hold;
    if (hold === undefined) throw new Error('no place can be held');
    return { permits, hold: (signal = new AbortController().signal) => hold(signal) };
  }

  test('is given when a call ends, and its call begins without a wait', async () => {
    const { permits, hold } = await useUp();
    const holding = hold();
    expect(traffic.stats()).toMatchObject({ inFlight: firstLimit, waitingBackground: 1 });
    permits.pop()?.release(answer(200));
    const place = await holding;
    const permit = enter({ ...line, place });
    expect(permit).not.toBeInstanceOf(Promise);
    expect(place.isTaken()).toBe(true);
    place.release();
    const next = hold();
    expect(traffic.stats().waitingBackground).toBe(1);
    (permit as Permit).release(answer(200));
    (await next).release();
    for (const each of permits) each.release(answer(200));
    expect(traffic.stats()).toMatchObject({ inFlight: 0, waitingBackground: 0 });
  });

  test('goes to the next waiter when it is given back, or to a call that asks for it later', async () => {
    const { permits, hold } = await useUp();
    permits.pop()?.release(answer(200));
    const place = await hold();
    const second = hold();
    place.release();
    place.release();
    const given = await second;
    expect(place.isTaken()).toBe(false);
    const late = enter({ ...line, place });
    expect(late).toBeInstanceOf(Promise);
    given.release();
    (await late).release(answer(200));
  });

  test('is given back immediately by a call with another credential', async () => {
    const { permits, hold } = await useUp();
    permits.pop()?.release(answer(200));
    const place = await hold();
    const waiting = hold();
    await enter({ ...line, key: 'vk_2', place });
    expect(place.isTaken()).toBe(false);
    (await waiting).release();
    expect(enter(line)).not.toBeInstanceOf(Promise);
  });

  test('is not waited for any longer when the signal aborts', async () => {
    const { permits, hold } = await useUp();
    const leaving = new AbortController();
    const holding = hold(leaving.signal);
    leaving.abort(new Error('left'));
    await expect(holding).rejects.toThrow('left');
    permits.pop()?.release(answer(200));
    expect(enter(line)).not.toBeInstanceOf(Promise);
  });
});

describe('a circuit', () => {
  const fail = (times: number, outcome: Outcome = failed('provider_failed')) =>
    Array.from({ length: times }).reduce<Promise<void>>(
      (before) => before.then(() => make(outcome, { breaker })),
      Promise.resolve(),
    );

  test('opens after a number of failures in a row, for its credential and model only, and names its target', async () => {
    await fail(2);
    expect(await readRefusal({ breaker })).toBeUndefined();
    await fail(1);
    const refusal = await readRefusal({ breaker });
    expect(refusal).toMatchObject({ kind: 'unavailable', code: 'circuit_open', retryAfterMs: 30_000 });
    expect(refusal?.message).toContain('label-vk_1');
    expect(isOpen(traffic)).toBe(true);
    expect(await readRefusal({ breaker, model: 'other' })).toBeUndefined();
    expect(await readRefusal({ breaker, key: 'vk_2' })).toBeUndefined();
    expect(await readRefusal()).toBeUndefined();
  });

  test('starts its count again after a success, and ignores outcomes that say nothing about the provider', async () => {
    await fail(2);
    await make(answer(400), { breaker });
    await fail(2);
    for (const outcome of [answer(429), failed('unavailable'), failed('invalid_request'), null]) {
      await make(outcome, { breaker });
    }
    expect(await readRefusal({ breaker })).toBeUndefined();
    await fail(1, answer(503));
    expect(await readRefusal({ breaker })).toMatchObject({ code: 'circuit_open' });
  });

  test('is half open after its cooldown: one probe goes, other calls are rejected, and its success closes the circuit', async () => {
    await fail(3);
    now += 30_000;
    expect(isOpen(traffic)).toBe(false);
    const probe = await enter({ breaker });
    expect(await readRefusal({ breaker })).toMatchObject({ code: 'circuit_open' });
    probe.release(answer(200));
    expect(await readRefusal({ breaker })).toBeUndefined();
    await fail(2);
    expect(await readRefusal({ breaker })).toBeUndefined();
  });

  test('opens again when a probe fails; when the caller of a probe leaves, the next call is the probe', async () => {
    await fail(3);
    now += 30_000;
    await make(null, { breaker });
    await make(answer(500), { breaker });
    expect((await readRefusal({ breaker }))?.retryAfterMs).toBe(30_000);
  });

  test('closes when a probe starts to stream', async () => {
    await fail(3);
    now += 30_000;
    const probe = await enter({ breaker });
    probe.begun?.();
    expect(await readRefusal({ breaker })).toBeUndefined();
    probe.release(failed('provider_failed'));
    await fail(1);
    expect(await readRefusal({ breaker })).toBeUndefined();
    await fail(1);
    expect(await readRefusal({ breaker })).toBeDefined();
  });

  test('uses the share of failures once there were enough calls', async () => {
    const share: BreakerPolicy = { ...breaker, failuresInRow: null, failureShare: 0.5, callsMin: 4 };
    for (const status of [500, 500, 200]) await make(answer(status), { breaker: share });
    expect(await readRefusal({ breaker: share })).toBeUndefined();
    await make(answer(200), { breaker: share });
    await make(answer(500), { breaker: share });
    expect(await readRefusal({ breaker: share })).toMatchObject({ code: 'circuit_open' });
    const all: BreakerPolicy = { ...share, failureShare: 1, callsMin: 2 };
    for (const status of [500, 500]) await make(answer(status), { breaker: all });
    expect(await readRefusal({ breaker: all })).toMatchObject({ code: 'circuit_open' });
  });

  test('uses the share of the last hundred calls only', async () => {
    const share: BreakerPolicy = { ...breaker, failuresInRow: null, failureShare: 0.5, callsMin: 4 };
    const times = async (count: number, status: number): Promise<void> => {
      for (let made = 0; made < count; made += 1) await make(answer(status), { breaker: share });
    };
    await times(1_000, 200);
    await times(49, 500);
    expect(await readRefusal({ breaker: share })).toBeUndefined();
    await times(1, 500);
    expect(await readRefusal({ breaker: share })).toMatchObject({ code: 'circuit_open' });
  });

  test('counts the statuses that it lists, and no others', async () => {
    const listing: BreakerPolicy = { ...breaker, failuresInRow: 1, statuses: [401] };
    await make(answer(503), { breaker: listing });
    expect(await readRefusal({ breaker: listing })).toBeUndefined();
    await make(answer(401), { breaker: listing });
    expect(await readRefusal({ breaker: listing })).toBeDefined();
  });

  test('makes a batch line wait until it is half open', async () => {
    await fail(3);
    expect(await readRefusal({ breaker, isBackground: true })).toBeUndefined();
    expect(waits).toEqual([30_000]);
  });

  test('is taken over from another process, also by a process that uses it later', async () => {
    const events: string[] = [];
    traffic.circuits.listen((known, change) => events.push(`${known.id} ${change.state}`));
    await fail(3);
    const [known] = traffic.circuits.all();
    expect(events).toEqual([`${known?.id} open`]);
    const other = createTraffic({ clock, random: () => 0, sleep });
    other.circuits.adopt(known?.id ?? '', now + 10_000);
    expect(isOpen(other)).toBe(true);
    other.circuits.adopt(known?.id ?? '', null);
    expect(isOpen(other)).toBe(false);
  });
});

test('stores a short name for a model whose name has megabytes', async () => {
  const [one, two] = [`${'m'.repeat(2_000_000)}1`, `${'m'.repeat(2_000_000)}2`];
  await make(failed('provider_failed'), { model: one, breaker: { ...breaker, failuresInRow: 1 } });
  const [known] = traffic.circuits.all();
  expect(known?.model.length).toBeLessThan(300);
  await make(answer(429, { 'retry-after': '60' }), { model: one });
  expect(await readRefusal({ model: one })).toBeDefined();
  expect(await readRefusal({ model: two })).toBeUndefined();
});

test('limits what is remembered of models, and forgets rate-limit waits last', async () => {
  await make(answer(429, { 'retry-after': '60' }), { model: 'paused' });
  for (let n = 0; n < 500; n += 1) await make(answer(200), { model: `m${n}` });
  expect(await readRefusal({ model: 'paused' })).toBeDefined();
  expect(traffic.stats().rateLimited).toBe(1);
});
