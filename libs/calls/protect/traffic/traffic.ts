import type { ForwardRequest, Target, Wait } from '#libs/calls/call.ts';
import { callAborted, shuttingDown } from '#libs/calls/cancelled.ts';
import { spreadWait, type Ended } from '#libs/calls/retry-waits.ts';
import type { Clock } from '#libs/kernel/clock.ts';
import { sleep as realSleep } from '#libs/kernel/sleep.ts';
import type { CallResult } from './circuit.ts';
import { createCircuits, type Circuits, type KnownCircuit } from './circuits.ts';
import { createLanes, type Lane, type Lanes, type Permit } from './lanes.ts';
import { shortModel } from './short-model.ts';
import { GatewayError } from '#libs/kernel/errors.ts';

/** The members of a call's request that are used here. */
export type TrafficRequest = Pick<
  ForwardRequest,
  'model' | 'breaker' | 'isBackground' | 'turn' | 'waitWithoutPermit' | 'signal'
>;

type TrafficCall = { request: TrafficRequest; target: Target; model: string; obeysRateLimit: boolean };

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

const whatWaits = ({ target, model }: TrafficCall, reason: Wait['reason'], untilMs: number | null): Wait => ({
  reason,
  label: target.label,
  model,
  untilMs,
});

// A live call that comes this much too early waits instead of being rejected. A client that returns at the advised time
// must not fail because its clock is slightly fast.
const earlyMsMax = 100;

/** Decides when a provider can be called: rate-limit waits, circuit breakers and bounded queues, by credential and model. */
export function createTraffic(deps: Deps): Traffic {
  const { clock, wallClock = clock, random, sleep = realSleep } = deps;
  const { inFlightMax = Infinity, waitingMax = Infinity, waitMsMax = Infinity } = deps;
  const stopping = new AbortController();
  const circuits = createCircuits(clock);
  const { hasCapacity = () => true } = deps;
  const lanes = createLanes({ clock, wallClock, inFlightMax, waitingMax, hasCapacity });

  const aborted = (call: TrafficCall) =>
    call.request.signal.aborted ? callAborted(call.target.label) : shuttingDown();

  /** Waits for the end of a rate-limit wait or of an open circuit. Returns when it makes sense to try again. */
  const waitUntilUnblocked = async (
    call: TrafficCall,
    lane: Lane,
    { ms, limitMs, isRateLimit }: ReturnType<typeof blockOf>,
    sinceMs: number,
  ): Promise<void> => {
    const { isBackground = false, waitWithoutPermit, signal } = call.request;
    const now = clock.now();
    const isEarly = isRateLimit && limitMs <= earlyMsMax && now - sinceMs < waitMsMax;
    if (!isBackground && !isEarly) throw isRateLimit ? refusals.rateLimited(call, limitMs) : refusals.open(call, ms);
    const waitMs = spreadWait(ms, random);
    const changed = lanes.changeOf(call.target.credentialId ?? '');
    const wakes = isRateLimit ? [lane.probed.signal, changed] : [];
    const wait = (end: AbortSignal): Promise<void> => sleep(waitMs, AbortSignal.any([end, stopping.signal, ...wakes]));
    if (waitWithoutPermit === undefined) await wait(signal);
    else await waitWithoutPermit(whatWaits(call, isRateLimit ? 'rate_limited' : 'circuit_open', now + waitMs), wait);
    if (signal.aborted || stopping.signal.aborted) throw aborted(call);
    if (isBackground && changed.aborted) throw refusals.changed(call);
  };

  /** Waits for what `take` waits for. `giveBack`: the call has it, but could not get the permit of its batch again. */
  const waitFor = async <Taken>(
    call: TrafficCall,
    take: (signal: AbortSignal) => Promise<Taken>,
    giveBack: (taken: Taken) => void,
  ): Promise<Taken> => {
    const { isBackground = false, waitWithoutPermit, signal } = call.request;
    const wait = async (end: AbortSignal): Promise<Taken> => {
      const signals = [end, stopping.signal];
      if (!isBackground && waitMsMax < Infinity) signals.push(AbortSignal.timeout(waitMsMax));
      try {
        return await take(AbortSignal.any(signals));
      } catch {
        throw end.aborted || stopping.signal.aborted ? aborted(call) : refusals.busy(call);
      }
    };
    if (waitWithoutPermit === undefined) return await wait(signal);
    const taken: Taken[] = [];
    try {
      await waitWithoutPermit(whatWaits(call, 'provider_busy', null), async (end) => {
        taken.push(await wait(end));
      });
    } catch (error) {
      for (const one of taken) giveBack(one);
      throw error;
    }
    return taken[0] as Taken;
  };

  /**
   * Begins a call in its lane: a background call within the learned limit, any call within that of its credential. Returns
   * the number that `recordEnd` needs.
   */
  const begin = async (call: TrafficCall, { paced, queue }: Lane): Promise<number | undefined> => {
    const { isBackground = false, turn = '' } = call.request;
    let others: number | undefined;
    if (isBackground) {
      const giveBack = (number: number): void => paced.end('unknown', number);
      others = paced.tryBegin() ?? (await waitFor(call, (signal) => paced.wait(turn, signal), giveBack));
    } else paced.begin();
    try {
      if (queue.tryAcquire()) return others;
      if (!isBackground && queue.isFull()) throw refusals.busy(call);
      await waitFor(
        call,
        (signal) => queue.wait(!isBackground, signal),
        () => queue.release(),
      );
      return others;
    } catch (error) {
      paced.end('unknown', others);
      throw error;
    }
  };

  const acquireSlowly = async (call: TrafficCall, lane: Lane, known: KnownCircuit | undefined): Promise<Permit> => {
    const sinceMs = clock.now();
    for (;;) {
      let block = blockOf(lane, call, known, clock.now());
      if (block.ms === 0) {
        const others = await begin(call, lane);
        // Other calls may have failed or been rate-limited while this one waited for its permit.
        block = blockOf(lane, call, known, clock.now());
        if (block.ms === 0) {
          const end = (ended: Ended): void => lanes.recordEnd(lane, ended, others);
          const permit = known ? ticketOf(known, call.request, clock, end) : { release: end };
          return block.isProbe ? lanes.probe(lane, permit) : permit;
        }
        lanes.recordEnd(lane, null, others);
      }
      await waitUntilUnblocked(call, lane, block, sinceMs);
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
        if (isFree && request.isBackground !== true && lane.queue.tryAcquire()) {
          lane.paced.begin();
          return lane.permit;
        }
      }
      const known = breaker && circuits.of(target, model, breaker);
      return acquireSlowly({ request, target, model, obeysRateLimit }, lane, known);
    },
    credentialChanged: lanes.change,
    changeOf: lanes.changeOf,
    circuits,
    stats: lanes.stats,
    stop: () => stopping.abort(),
  };
}

/**
 * The reason that blocks a call, and for how long. `limitMs` is the rate-limit wait as the provider asked for it;
 * `isProbe`: the wait is not over yet, but this call is let through.
 */
function blockOf(lane: Lane, call: TrafficCall, known: KnownCircuit | undefined, nowMs: number) {
  const limitMs = call.obeysRateLimit ? lane.rateLimitedUntilMs - nowMs : 0;
  const rateLimitedMs = Math.min(limitMs, lane.probeAtMs - nowMs);
  const openMs = known?.circuit.blockedMs(nowMs) ?? 0;
  const ms = Math.max(rateLimitedMs, openMs, 0);
  return { ms, limitMs, isRateLimit: rateLimitedMs >= openMs, isProbe: ms === 0 && limitMs > 0 };
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

type Refused = { target: Target; model: string };

const what = ({ model }: Refused): string => (model === '' ? 'this operation' : model.slice(0, 200));

/** The errors of calls that are rejected. Each names its target and when to try again. */
const refusals = {
  rateLimited: (call: Refused, retryAfterMs: number): GatewayError =>
    new GatewayError(
      'rate_limited',
      'provider_rate_limited',
      `${call.target.label} is rate-limited for ${what(call)} and is not called until the limit has passed.`,
      { retryAfterMs },
    ),
  changed: ({ target }: Refused): GatewayError =>
    new GatewayError(
      'rate_limited',
      'credential_changed',
      `The credential of ${target.label} changed while this call was waiting. Send the request again.`,
      { retryAfterMs: 0 },
    ),
  open: (call: Refused, retryAfterMs: number): GatewayError =>
    new GatewayError(
      'unavailable',
      'circuit_open',
      `${call.target.label} is not called for ${what(call)} because its previous calls failed and its circuit breaker is open.`,
      { retryAfterMs },
    ),
  busy: ({ target }: Refused): GatewayError =>
    new GatewayError(
      'unavailable',
      'provider_busy',
      `Too many calls to ${target.label} are already in flight and waiting. Send the request again shortly.`,
      { retryAfterMs: 1_000 },
    ),
};
