import type { Target } from '#libs/calls/call.ts';
import type { Ended } from '#libs/calls/retry-waits.ts';
import type { Clock } from '#libs/kernel/clock.ts';
import { sleep as realSleep } from '#libs/kernel/sleep.ts';
import { blockOf, CallWaits, type TrafficCall, type TrafficRequest } from './call-waits.ts';
import type { CallResult } from './circuit.ts';
import { createCircuits, type Circuits, type KnownCircuit } from './circuits.ts';
import { createLanes, type Lane, type Lanes, type Permit } from './lanes.ts';
import { shortModel } from './short-model.ts';

export type Traffic = {
  /**
   * Acquires a permit, synchronously if one is free. A live call is rejected with the time after which to try again:
   * `rate_limited` during the rate-limit wait of this credential and model, `unavailable` while the circuit is open
   * (`circuit_open`) or the queue is full or slow (`provider_busy`). A background call waits, behind live ones, until
   * its signal ends it; it gets `rate_limited` (`credential_changed`) when it must resolve its target again. During a
   * rate-limit wait, one call is let through every few minutes. `obeysRateLimit` false: this call ignores the
   * rate-limit wait.
   */
  acquire: (request: TrafficRequest, target: Target, obeysRateLimit?: boolean) => Permit | Promise<Permit>;
  /** Call this when a credential has changed, so that waiting calls try again. */
  credentialChanged: (credentialId: string) => void;
  /** Aborts when the credential changes. */
  changeOf: (credentialId: string) => AbortSignal;
  circuits: Circuits;
  /** For `createSharedLimits`. */
  lanes: Pick<Lanes, 'share' | 'shared'>;
  stats: Lanes['stats'];
  /** Ends all waits, and any new ones immediately. Idempotent. */
  stop: () => void;
};

type Deps = {
  /** The clock of waits and circuits. */
  clock: Clock;
  /** The system's clock, for a Retry-After that is a date. Default: `clock`. */
  wallClock?: Clock;
  /** Returns a number from 0 to 1, to spread calls that waited for the same time. */
  random: () => number;
  sleep?: (ms: number, signal: AbortSignal) => Promise<void>;
  /** Calls in flight with one credential. Absent: no limit. */
  inFlightMax?: number;
  /** Live calls that wait for a permit. Absent: no limit. */
  waitingMax?: number;
  /** How long a live call waits for a permit. Absent: no limit. */
  waitMsMax?: number;
  /** Whether this process could handle more calls. Default: it always can. */
  hasCapacity?: () => boolean;
};

/** Decides when a provider can be called: rate-limit waits, circuit breakers and bounded queues, by credential and model. */
export function createTraffic(deps: Deps): Traffic {
  const { clock, wallClock = clock, random, sleep = realSleep } = deps;
  const { inFlightMax = Infinity, waitingMax = Infinity, waitMsMax = Infinity, hasCapacity = () => true } = deps;
  const stopping = new AbortController();
  const circuits = createCircuits(clock);
  const lanes = createLanes({ clock, wallClock, inFlightMax, waitingMax, hasCapacity });
  const waits = new CallWaits({ clock, random, sleep, waitMsMax, stopping: stopping.signal, changeOf: lanes.changeOf });

  const acquireSlowly = async (call: TrafficCall, lane: Lane, known: KnownCircuit | undefined): Promise<Permit> => {
    const sinceMs = clock.now();
    for (;;) {
      let block = blockOf(lane, call, known, clock.now());
      if (block.ms === 0) {
        const begun = await waits.begin(call, lane);
        // Other calls may have failed or been rate-limited while this one waited for its permit.
        block = blockOf(lane, call, known, clock.now());
        if (block.ms === 0) {
          const end = (ended: Ended): void => lanes.recordEnd(lane, ended, begun);
          const permit = known ? ticketOf(known, call.request, clock, end) : { release: end };
          return block.isProbe ? lanes.probe(lane, permit) : permit;
        }
        lanes.recordEnd(lane, null, begun);
      }
      await waits.untilUnblocked(call, lane, block, sinceMs);
    }
  };

  return {
    acquire: (request, target, obeysRateLimit = true) => {
      const model = target.model ?? request.model ?? '';
      const lane = lanes.of(target, shortModel(model));
      const { breaker } = request;
      if (breaker === undefined) {
        const { rateLimitedUntilMs } = lane;
        const isFree = rateLimitedUntilMs === 0 || !obeysRateLimit || rateLimitedUntilMs <= clock.now();
        const permit = isFree ? tryBegin(lanes, lane, request) : null;
        if (permit !== null) return permit;
      }
      const known = breaker && circuits.of(target, model, breaker);
      return acquireSlowly({ request, target, model, obeysRateLimit }, lane, known);
    },
    credentialChanged: lanes.change,
    changeOf: lanes.changeOf,
    circuits,
    lanes,
    stats: lanes.stats,
    stop: () => stopping.abort(),
  };
}

/** Begins a call in its lane if it does not have to wait. Returns its permit, or null. */
function tryBegin(lanes: Lanes, lane: Lane, { isBackground = false, place }: TrafficRequest): Permit | null {
  if (!lane.queue.tryAcquire()) return null;
  if (!isBackground) {
    lane.paced.beginLive();
    return lane.permit;
  }
  const begun = lane.paced.tryBegin(place);
  if (begun !== null) return { release: (ended) => lanes.recordEnd(lane, ended, begun) };
  lane.queue.release();
  return null;
}

/** The permit of one call with a breaker. */
function ticketOf(known: KnownCircuit, { breaker }: TrafficRequest, clock: Clock, end: (ended: Ended) => void): Permit {
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
      const result = classifyCall(ended, breaker?.statuses ?? null);
      if (result === 'failure') known.reason = reasonOf(ended);
      // A probe that began to stream has succeeded. After that, only a failure changes the circuit.
      if (!isJudged || result === 'failure') judge(result);
      end(ended);
    },
  };
}

/**
 * Returns how a call counts for a breaker. A call without an answer is a failure, and so are the listed statuses (null:
 * 500 and above). A rate limit causes a wait and is not a failure. A call that was refused here or left by its caller
 * does not count.
 */
function classifyCall(ended: Ended, statuses: readonly number[] | null): CallResult {
  if (ended === null) return 'none';
  if ('error' in ended) {
    const { kind } = ended.error;
    return kind === 'provider_failed' || kind === 'provider_timeout' ? 'failure' : 'none';
  }
  const { status } = ended;
  if (status === 429) return 'none';
  return (statuses === null ? status >= 500 : statuses.includes(status)) ? 'failure' : 'success';
}

/** Describes a failure in one word, for people: an error code, or `http_503`. */
function reasonOf(ended: Ended): string {
  if (ended === null) return '';
  return 'error' in ended ? (ended.error.code ?? ended.error.kind) : `http_${ended.status}`;
}
