import type { BreakerPolicy } from '#libs/contracts/circuit-breaker.ts';
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

/** A call's request and where it goes; the request is the forwarder's own, so that nothing is made for asking. */
export type TrafficRequest = Pick<
  ForwardRequest,
  'model' | 'breaker' | 'backgroundUntil' | 'waitWithoutPermit' | 'signal'
>;

type TrafficCall = { request: TrafficRequest; target: Target; model: string; heedsPauses: boolean };

/** A place among the calls of a credential; every one is left exactly once. */
export type Pass = {
  /** The call is over; of a stream, when it has ended. */
  leave: (ended: Ended) => void;
  /** A stream has begun: what a probe waited for. */
  begun?: () => void;
};

export type Traffic = {
  /**
   * Lets a call through, at once wherever that is possible. A live call is refused, with the time after which it is worth
   * trying again: `rate_limited` while the provider asked for a pause of this model, `unavailable` while the circuit is
   * open (`circuit_open`) or the queue is full or slow (`provider_busy`). A background call waits, after live ones and
   * not beyond its time. `heedsPauses` false: a pause that the provider asked for does not count for this call.
   */
  enter: (request: TrafficRequest, target: Target, heedsPauses?: boolean) => Pass | Promise<Pass>;
  /** Whether a call with this breaker would be turned away now; for choosing among targets. */
  isOpen: (target: Target, model: string, breaker: BreakerPolicy) => boolean;
  circuits: Circuits;
  stats: () => { inFlight: number; waitingLive: number; waitingBackground: number; paused: number };
  /** Ends all waits; new ones end at once. Idempotent. */
  stop: () => void;
};

type Deps = {
  clock: Clock;
  /** From 0 to 1: spreads those who waited for the same moment. */
  random: () => number;
  sleep?: (ms: number, signal: AbortSignal) => Promise<void>;
  /** Calls in flight with one credential. Default 256. */
  inFlightMax?: number;
  /** Live calls that wait for one of these places: as many again. Default 256. */
  waitingMax?: number;
  /** How long a live call waits for one: as long as for a connection. Default 10 s. */
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
  pausedUntilMs: number;
  /** Of all calls without a breaker, so that none is made for each. */
  pass: Pass;
};
type Channel = { queue: CallQueue; lanes: Map<string, Lane> };

// What is remembered of credentials and models, some 100 MB at the very most; of more, idle ones are forgotten first.
const channelsMax = 2_000;
const lanesMax = 200;
// A live call that comes this much too early waits instead of being refused: a client that comes back as it was told
// must not fail for a tick of its clock.
const earlyMsMax = 100;

/** Who may call a provider when: pauses, circuit breakers and bounded queues, by credential and model. */
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
      if (channel.lanes.size >= lanesMax) forgetOne(channel.lanes, (one) => one.pausedUntilMs <= clock.now());
      channel.lanes.set(model, lane);
    }
    return lane;
  };

  const createLane = (queue: CallQueue): Lane => {
    const lane: Lane = {
      queue,
      pausedUntilMs: 0,
      pass: {
        leave: (ended) => {
          noteRateLimit(lane, ended);
          queue.leave();
        },
      },
    };
    return lane;
  };

  /** A 429 that says for how long stops this model for so long, and no other. */
  const noteRateLimit = (lane: Lane, ended: Ended): void => {
    if (ended === null || 'error' in ended || ended.status !== 429) return;
    const now = clock.now();
    const waitMs = rateLimitWaitMs(ended, now);
    if (waitMs !== null) lane.pausedUntilMs = Math.max(lane.pausedUntilMs, now + waitMs);
  };

  /** What keeps a call from going now, and for how long. */
  const blockOf = (lane: Lane, call: TrafficCall, known: KnownCircuit | undefined) => {
    const now = clock.now();
    const pausedMs = call.heedsPauses ? lane.pausedUntilMs - now : 0;
    const openMs = known?.circuit.blockedMs(now) ?? 0;
    return { ms: Math.max(pausedMs, openMs, 0), isPause: pausedMs >= openMs };
  };

  const aborted = (call: TrafficCall) =>
    call.request.signal.aborted ? callAborted(call.target.label) : shuttingDown();

  /** Waits out a pause or an open circuit; returns when it is worth asking again. */
  const waitUntilUnblocked = async (
    call: TrafficCall,
    { ms, isPause }: ReturnType<typeof blockOf>,
    sinceMs: number,
  ): Promise<void> => {
    const { backgroundUntil, waitWithoutPermit, signal } = call.request;
    const now = clock.now();
    const isEarly = isPause && ms <= earlyMsMax && now - sinceMs < waitMsMax;
    const waits = backgroundUntil === undefined ? isEarly : now + ms < backgroundUntil;
    if (!waits) throw isPause ? refusals.paused(call, ms) : refusals.open(call, ms);
    const waitMs = spreadWait(ms, random);
    const wait = (end: AbortSignal): Promise<void> => sleep(waitMs, AbortSignal.any([end, stopping.signal]));
    if (waitWithoutPermit === undefined) await wait(signal);
    else await waitWithoutPermit(whatWaits(call, isPause ? 'rate_limited' : 'circuit_open', now + waitMs), wait);
    if (signal.aborted || stopping.signal.aborted) throw aborted(call);
  };

  const waitForPlace = async (call: TrafficCall, queue: CallQueue): Promise<void> => {
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
    let isPlaceTaken = false;
    try {
      await waitWithoutPermit(whatWaits(call, 'provider_busy', null), async (end) => {
        await wait(end);
        isPlaceTaken = true;
      });
    } catch (error) {
      // It was let in here, and then not where it came from.
      if (isPlaceTaken) queue.leave();
      throw error;
    }
  };

  const enterSlowly = async (call: TrafficCall, lane: Lane, known: KnownCircuit | undefined): Promise<Pass> => {
    const { queue } = lane;
    const sinceMs = clock.now();
    for (;;) {
      let block = blockOf(lane, call, known);
      if (block.ms === 0) {
        if (!queue.tryEnter()) await waitForPlace(call, queue);
        // Others may have failed, or been told to pause, while this one waited for its place.
        block = blockOf(lane, call, known);
        if (block.ms === 0) return known ? ticketOf(lane, known, call.request.breaker?.statuses ?? null) : lane.pass;
        queue.leave();
      }
      await waitUntilUnblocked(call, block, sinceMs);
    }
  };

  /** The pass of one call under a breaker. */
  const ticketOf = (lane: Lane, known: KnownCircuit, statuses: readonly number[] | null): Pass => {
    const { circuit } = known;
    const isProbe = circuit.start();
    let isJudged = false;
    const judge = (result: CallResult): void => {
      circuit.end(result, isProbe && !isJudged, clock.now());
      isJudged = true;
    };
    return {
      ...(isProbe ? { begun: () => judge('success') } : {}),
      leave: (ended) => {
        const result = resultOf(ended, statuses);
        if (result === 'failure') known.reason = reasonOf(ended);
        // Of a probe that began to stream only its death is news.
        if (!isJudged || result === 'failure') judge(result);
        noteRateLimit(lane, ended);
        lane.queue.leave();
      },
    };
  };

  return {
    enter: (request, target, heedsPauses = true) => {
      const model = target.model ?? request.model ?? '';
      const lane = laneOf(target.credentialId ?? '', shortModel(model));
      const { breaker } = request;
      if (breaker === undefined) {
        const isFree = lane.pausedUntilMs === 0 || !heedsPauses || lane.pausedUntilMs <= clock.now();
        if (isFree && lane.queue.tryEnter()) return lane.pass;
      }
      const known = breaker && circuits.of(target, model, breaker);
      return enterSlowly({ request, target, model, heedsPauses }, lane, known);
    },
    isOpen: (target, model, breaker) => circuits.of(target, model, breaker).circuit.blockedMs(clock.now()) > 0,
    circuits,
    stats: () => {
      const total = { inFlight: 0, waitingLive: 0, waitingBackground: 0, paused: 0 };
      const now = clock.now();
      for (const { queue, lanes } of channels.values()) {
        const { inFlight, waitingLive, waitingBackground } = queue.stats();
        total.inFlight += inFlight;
        total.waitingLive += waitingLive;
        total.waitingBackground += waitingBackground;
        for (const lane of lanes.values()) if (lane.pausedUntilMs > now) total.paused += 1;
      }
      return total;
    },
    stop: () => stopping.abort(),
  };
}
