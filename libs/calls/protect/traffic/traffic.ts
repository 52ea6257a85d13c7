import type { ForwardRequest, Target, Wait } from '#libs/calls/call.ts';
import { callAborted, shuttingDown } from '#libs/calls/cancelled.ts';
import { rateLimitWaitMs, spreadWait, type Ended } from '#libs/calls/retry-waits.ts';
import type { Clock } from '#libs/kernel/clock.ts';
import { sleep as realSleep } from '#libs/kernel/sleep.ts';
import { reasonOf, resultOf } from './call-result.ts';
import type { CallResult } from './circuit.ts';
import { createCircuits, type Circuits, type KnownCircuit } from './circuits.ts';
import { forgetOne } from './forget-one.ts';
import { createCallQueue, type CallQueue } from './queue.ts';
import { shortModel } from './short-model.ts';
import { refusals } from './traffic-refusals.ts';

/** The members of a call's request that are used here. */
export type TrafficRequest = Pick<
  ForwardRequest,
  'model' | 'breaker' | 'backgroundUntil' | 'waitWithoutPermit' | 'signal'
>;

type TrafficCall = { request: TrafficRequest; target: Target; model: string; obeysRateLimit: boolean };

/** The right to make one call with a credential. It must be released exactly once. */
export type Permit = {
  /** Call this when the call is over; for a stream, when it has ended. */
  release: (ended: Ended) => void;
  /** Call this when a stream has begun, which is enough for a probe to succeed. */
  begun?: () => void;
};

export type Traffic = {
  /**
   * Acquires a permit, synchronously if one is free. A live call is rejected with the time after which to try again:
   * `rate_limited` during the rate-limit wait of this credential and model, `unavailable` while the circuit is open
   * (`circuit_open`) or the queue is full or slow (`provider_busy`). A background call waits, behind live ones, but not
   * beyond its deadline. `obeysRateLimit` false: this call ignores the rate-limit wait.
   */
  acquire: (request: TrafficRequest, target: Target, obeysRateLimit?: boolean) => Permit | Promise<Permit>;
  circuits: Circuits;
  stats: () => { inFlight: number; waitingLive: number; waitingBackground: number; rateLimited: number };
  /** Ends all waits, and new ones at once. Idempotent. */
  stop: () => void;
};

type Deps = {
  clock: Clock;
  /** Returns a number from 0 to 1, to spread calls that waited for the same time. */
  random: () => number;
  sleep?: (ms: number, signal: AbortSignal) => Promise<void>;
  /** Calls in flight with one credential. Default 256. */
  inFlightMax?: number;
  /** Live calls that wait for a permit. Default 256, as many as may be in flight. */
  waitingMax?: number;
  /** How long a live call waits for a permit. Default 10 s, as long as for a connection. */
  waitMsMax?: number;
};

const whatWaits = ({ target, model }: TrafficCall, reason: Wait['reason'], untilMs: number | null): Wait => ({
  reason,
  label: target.label,
  model,
  untilMs,
});

/** The calls of one credential for one model. */
type Lane = {
  queue: CallQueue;
  rateLimitedUntilMs: number;
  /** Shared by all calls without a breaker, so that no object is made for each of them. */
  permit: Permit;
};
type Channel = { queue: CallQueue; lanes: Map<string, Lane> };

// Limits the memory for credentials and models to about 100 MB. Idle ones are forgotten first.
const channelsMax = 2_000;
const lanesMax = 200;
// A live call that comes this much too early waits instead of being rejected, because a client that returns at the time
// it was given must not fail when its clock is slightly fast.
const earlyMsMax = 100;

/**
 * Decides when a provider may be called: rate-limit waits, circuit breakers and bounded queues, by credential and
 * model.
 */
export function createTraffic(deps: Deps): Traffic {
  const { clock, random, sleep = realSleep } = deps;
  const { inFlightMax = 256, waitingMax = 256, waitMsMax = 10_000 } = deps;
  const stopping = new AbortController();
  const channels = new Map<string, Channel>();
  const circuits = createCircuits(clock);

  const laneOf = (credentialId: string, model: string): Lane => {
    let channel = channels.get(credentialId);
    if (!channel) {
      channel = { queue: createCallQueue({ inFlightMax, waitingMax }), lanes: new Map() };
      if (channels.size >= channelsMax) forgetOne(channels, ({ queue }) => queue.stats().inFlight === 0);
      channels.set(credentialId, channel);
    }
    let lane = channel.lanes.get(model);
    if (!lane) {
      lane = createLane(channel.queue);
      if (channel.lanes.size >= lanesMax) forgetOne(channel.lanes, (one) => one.rateLimitedUntilMs <= clock.now());
      channel.lanes.set(model, lane);
    }
    return lane;
  };

  const createLane = (queue: CallQueue): Lane => {
    const lane: Lane = {
      queue,
      rateLimitedUntilMs: 0,
      permit: {
        release: (ended) => {
          noteRateLimit(lane, ended);
          queue.release();
        },
      },
    };
    return lane;
  };

  /** A 429 that says how long to wait starts the rate-limit wait of this model only. */
  const noteRateLimit = (lane: Lane, ended: Ended): void => {
    if (ended === null || 'error' in ended || ended.status !== 429) return;
    const now = clock.now();
    const waitMs = rateLimitWaitMs(ended, now);
    if (waitMs !== null) lane.rateLimitedUntilMs = Math.max(lane.rateLimitedUntilMs, now + waitMs);
  };

  /** What blocks a call now, and for how long. */
  const blockOf = (lane: Lane, call: TrafficCall, known: KnownCircuit | undefined) => {
    const now = clock.now();
    const rateLimitedMs = call.obeysRateLimit ? lane.rateLimitedUntilMs - now : 0;
    const openMs = known?.circuit.blockedMs(now) ?? 0;
    return { ms: Math.max(rateLimitedMs, openMs, 0), isRateLimit: rateLimitedMs >= openMs };
  };

  const aborted = (call: TrafficCall) =>
    call.request.signal.aborted ? callAborted(call.target.label) : shuttingDown();

  /** Waits for the end of a rate-limit wait or of an open circuit. Returns when it makes sense to try again. */
  const waitUntilUnblocked = async (
    call: TrafficCall,
    { ms, isRateLimit }: ReturnType<typeof blockOf>,
    sinceMs: number,
  ): Promise<void> => {
    const { backgroundUntil, waitWithoutPermit, signal } = call.request;
    const now = clock.now();
    const isEarly = isRateLimit && ms <= earlyMsMax && now - sinceMs < waitMsMax;
    const waits = backgroundUntil === undefined ? isEarly : now + ms < backgroundUntil;
    if (!waits) throw isRateLimit ? refusals.rateLimited(call, ms) : refusals.open(call, ms);
    const waitMs = spreadWait(ms, random);
    const wait = (end: AbortSignal): Promise<void> => sleep(waitMs, AbortSignal.any([end, stopping.signal]));
    if (waitWithoutPermit === undefined) await wait(signal);
    else await waitWithoutPermit(whatWaits(call, isRateLimit ? 'rate_limited' : 'circuit_open', now + waitMs), wait);
    if (signal.aborted || stopping.signal.aborted) throw aborted(call);
  };

  const waitForPermit = async (call: TrafficCall, queue: CallQueue): Promise<void> => {
    const { backgroundUntil, waitWithoutPermit, signal } = call.request;
    const isLive = backgroundUntil === undefined;
    if (isLive && queue.isFull()) throw refusals.busy(call);
    const wait = async (end: AbortSignal): Promise<void> => {
      const signals = [end, stopping.signal];
      if (isLive) signals.push(AbortSignal.timeout(waitMsMax));
      try {
        await queue.wait(isLive, AbortSignal.any(signals));
      } catch {
        throw end.aborted || stopping.signal.aborted ? aborted(call) : refusals.busy(call);
      }
    };
    if (waitWithoutPermit === undefined) return wait(signal);
    let hasPermit = false;
    try {
      await waitWithoutPermit(whatWaits(call, 'provider_busy', null), async (end) => {
        await wait(end);
        hasPermit = true;
      });
    } catch (error) {
      // It has this permit, but could not get the permit of its batch again.
      if (hasPermit) queue.release();
      throw error;
    }
  };

  const acquireSlowly = async (call: TrafficCall, lane: Lane, known: KnownCircuit | undefined): Promise<Permit> => {
    const { queue } = lane;
    const sinceMs = clock.now();
    for (;;) {
      let block = blockOf(lane, call, known);
      if (block.ms === 0) {
        if (!queue.tryAcquire()) await waitForPermit(call, queue);
        // Other calls may have failed or been rate-limited while this one waited for its permit.
        block = blockOf(lane, call, known);
        if (block.ms === 0) return known ? ticketOf(lane, known, call.request.breaker?.statuses ?? null) : lane.permit;
        queue.release();
      }
      await waitUntilUnblocked(call, block, sinceMs);
    }
  };

  /** The permit of one call with a breaker. */
  const ticketOf = (lane: Lane, known: KnownCircuit, statuses: readonly number[] | null): Permit => {
    const { circuit } = known;
    const isProbe = circuit.start();
    let isJudged = false;
    const judge = (result: CallResult): void => {
      circuit.end(result, isProbe && !isJudged, clock.now());
      isJudged = true;
    };
    return {
      ...(isProbe ? { begun: () => judge('success') } : {}),
      release: (ended) => {
        const result = resultOf(ended, statuses);
        if (result === 'failure') known.reason = reasonOf(ended);
        // A probe that began to stream has succeeded. After that, only a failure changes the circuit.
        if (!isJudged || result === 'failure') judge(result);
        noteRateLimit(lane, ended);
        lane.queue.release();
      },
    };
  };

  return {
    acquire: (request, target, obeysRateLimit = true) => {
      const model = target.model ?? request.model ?? '';
      const lane = laneOf(target.credentialId ?? '', shortModel(model));
      const { breaker } = request;
      if (breaker === undefined) {
        const isFree = lane.rateLimitedUntilMs === 0 || !obeysRateLimit || lane.rateLimitedUntilMs <= clock.now();
        if (isFree && lane.queue.tryAcquire()) return lane.permit;
      }
      const known = breaker && circuits.of(target, model, breaker);
      return acquireSlowly({ request, target, model, obeysRateLimit }, lane, known);
    },
    circuits,
    stats: () => {
      const total = { inFlight: 0, waitingLive: 0, waitingBackground: 0, rateLimited: 0 };
      const now = clock.now();
      for (const { queue, lanes } of channels.values()) {
        const { inFlight, waitingLive, waitingBackground } = queue.stats();
        total.inFlight += inFlight;
        total.waitingLive += waitingLive;
        total.waitingBackground += waitingBackground;
        for (const lane of lanes.values()) if (lane.rateLimitedUntilMs > now) total.rateLimited += 1;
      }
      return total;
    },
    stop: () => stopping.abort(),
  };
}
