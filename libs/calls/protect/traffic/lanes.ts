import type { Target } from '#libs/calls/call.ts';
import { isQuotaUsedUp, probeEveryMs, rateLimitWaitMs, type Ended } from '#libs/calls/retry-waits.ts';
import type { Clock } from '#libs/kernel/clock.ts';
import { forgetOne } from './forget-one.ts';
import type { CallEnd } from './learned-limit.ts';
import { PacedCalls, type Begun } from './paced-calls.ts';
import { callLimitName, type CallLimitName } from '#libs/limits/call-limit-store.ts';
import { createCallQueue, type CallQueue } from './queue.ts';

/** The right to make one call with a credential. It must be released exactly once. */
export type Permit = {
  /** Call this when the call is over; for a stream, when it has ended. */
  release: (ended: Ended) => void;
  /** Call this when a stream has begun, which is enough for a probe to succeed. */
  begun?: () => void;
};

/** The calls of one credential for one model. */
export type Lane = {
  queue: CallQueue;
  /** How many of its calls are in flight, and how many can be. */
  paced: PacedCalls;
  /** The limit that it shares with other processes; null: none. */
  shared: CallLimitName | null;
  /** The end of the rate-limit wait, by the clock of the traffic; 0: there is none. */
  rateLimitedUntilMs: number;
  /** During a rate-limit wait: when the next call goes through to find out whether the limit still holds. */
  probeAtMs: number;
  /** Aborts when the waiting calls have to check again, because a probe has ended. */
  probed: AbortController;
  /** Shared by all live calls without a breaker, so that no object is made for each of them. */
  permit: Permit;
};
export type SharedLane = Lane & { shared: CallLimitName };

/** What lanes tell other processes, and learn from them. */
export type Sharing = {
  /** Called when a call waits for the first grant of a limit. */
  onUngranted: () => void;
  /** Called when a rate-limit wait begins, gets longer, or is ended by a probe. */
  onWait: (lane: SharedLane) => void;
  /** When the rate-limit wait ends that another process has begun; 0: there is none. */
  waitUntilMs: (id: string) => number;
};

type Channel = {
  queue: CallQueue;
  lanes: Map<string, Lane>;
  /** Aborts when the credential changes. */
  changed: AbortController;
};

export type Lanes = {
  /** `model` must be short. */
  of: (target: Target, model: string) => Lane;
  /**
   * Notes the end of a call that has begun in a lane: starts the rate-limit wait if the answer asks for one. `begun`: what
   * `PacedCalls` returned when the call began.
   */
  recordEnd: (lane: Lane, ended: Ended, begun?: Begun) => void;
  /** The permit of a call that is let through during a rate-limit wait. If it succeeds, the wait is over. */
  probe: (lane: Lane, permit: Permit) => Permit;
  /** Aborts when the credential changes. */
  changeOf: (credentialId: string) => AbortSignal;
  /** The credential has changed: its rate-limit waits could be over, so each gets a probe immediately. */
  change: (credentialId: string) => void;
  /** From now on, lanes share their limits and rate-limit waits with other processes. */
  share: (sharing: Sharing) => void;
  /** The lanes that do. */
  shared: () => Iterable<SharedLane>;
  stats: () => { inFlight: number; waitingLive: number; waitingBackground: number; rateLimited: number };
};

// Limits the memory for credentials and models to about 100 MB. Idle ones are forgotten first.
const channelsMax = 2_000;
const lanesMax = 200;

/** A 429 of a background call stops live calls too if the provider asks for a longer wait than this. */
const momentMsMax = 2_000;

const never = new AbortController().signal;

/** Lets the calls that wait in a lane check again. */
function wake(lane: Lane): void {
  lane.probed.abort();
  lane.probed = new AbortController();
}

/** Begins the rate-limit wait of a lane, or extends it. */
export function beginWait(lane: Lane, untilMs: number, nowMs: number): void {
  if (lane.rateLimitedUntilMs <= nowMs) lane.probeAtMs = nowMs + probeEveryMs;
  lane.rateLimitedUntilMs = Math.max(lane.rateLimitedUntilMs, untilMs);
}

export function endWait(lane: Lane): void {
  lane.rateLimitedUntilMs = 0;
  wake(lane);
}

function probe(lane: Lane, permit: Permit, clock: Clock, onEnd: () => void): Permit {
  lane.probeAtMs = clock.now() + probeEveryMs;
  const open = (): void => {
    endWait(lane);
    onEnd();
  };
  return {
    begun: () => {
      open();
      permit.begun?.();
    },
    release: (ended) => {
      permit.release(ended);
      const status = ended === null || 'error' in ended ? null : ended.status;
      if (status === 429) return;
      if (status !== null && status < 400) return open();
      // The result contains no information about the limit, so the next call is the probe.
      lane.probeAtMs = clock.now();
      wake(lane);
    },
  };
}

/** Anthropic answers 529 when it is overloaded. A 503 says more about a failure than about a limit. */
const rejections: ReadonlySet<number> = new Set([429, 529]);

/** What the limit of a lane learns from the end of a call. */
function endOf(ended: Ended): CallEnd {
  if (ended === null || 'error' in ended) return 'unknown';
  return rejections.has(ended.status) && !isQuotaUsedUp(ended.errorCode) ? 'rejected' : 'answered';
}

const isShared = (lane: Lane): lane is SharedLane => lane.shared !== null;

/** Makes the lanes of this process. Each credential has one queue, which its models share. */
export function createLanes(deps: {
  clock: Clock;
  wallClock: Clock;
  inFlightMax: number;
  waitingMax: number;
  hasCapacity: () => boolean;
}): Lanes {
  const { clock, wallClock, inFlightMax, waitingMax, hasCapacity } = deps;
  const channels = new Map<string, Channel>();

  /**
   * A 429 with a retry time starts the rate-limit wait of this model only. If a batch line got it for trying one call
   * more, only background calls wait: live calls would be rejected, although the provider still accepts them.
   */
  const recordEnd = (lane: Lane, ended: Ended, begun?: Begun): void => {
    lane.paced.end(endOf(ended), ended, begun);
    lane.queue.release();
    if (ended === null || 'error' in ended || ended.status !== 429) return;
    const now = clock.now();
    const waitMs = rateLimitWaitMs(ended, wallClock.now());
    if (waitMs === null) return;
    if (begun !== undefined && waitMs <= momentMsMax) return lane.paced.pause(now + waitMs);
    beginWait(lane, now + waitMs, now);
    if (isShared(lane)) sharing?.onWait(lane);
  };

  let sharing: Sharing | undefined;

  const createLane = (queue: CallQueue, { credentialId, workspaceId }: Target, model: string): Lane => {
    const shared =
      sharing === undefined || credentialId === undefined || workspaceId === undefined
        ? null
        : callLimitName(workspaceId, credentialId, model);
    const lane: Lane = {
      queue,
      shared,
      paced: new PacedCalls({
        now: () => clock.now(),
        hasCapacity,
        onUngranted: shared === null ? undefined : sharing?.onUngranted,
      }),
      rateLimitedUntilMs: 0,
      probeAtMs: 0,
      probed: new AbortController(),
      permit: {
        release: (ended) => recordEnd(lane, ended),
      },
    };
    if (shared !== null) beginWait(lane, sharing?.waitUntilMs(shared.id) ?? 0, clock.now());
    return lane;
  };

  return {
    of(target, model) {
      const { credentialId = '' } = target;
      let channel = channels.get(credentialId);
      if (!channel) {
        channel = {
          queue: createCallQueue({ inFlightMax, waitingMax }),
          lanes: new Map(),
          changed: new AbortController(),
        };
        if (channels.size >= channelsMax) forgetOne(channels, ({ queue }) => queue.stats().inFlight === 0);
        channels.set(credentialId, channel);
      }
      let lane = channel.lanes.get(model);
      if (!lane) {
        lane = createLane(channel.queue, target, model);
        const isIdle = (one: Lane): boolean => one.paced.isIdle && one.rateLimitedUntilMs <= clock.now();
        if (channel.lanes.size >= lanesMax) forgetOne(channel.lanes, isIdle);
        channel.lanes.set(model, lane);
      }
      return lane;
    },
    recordEnd,
    probe: (lane, permit) =>
      probe(lane, permit, clock, () => {
        if (isShared(lane)) sharing?.onWait(lane);
      }),
    changeOf: (credentialId) => channels.get(credentialId)?.changed.signal ?? never,
    change(credentialId) {
      const channel = channels.get(credentialId);
      if (channel === undefined) return;
      for (const lane of channel.lanes.values()) lane.probeAtMs = clock.now();
      channel.changed.abort();
      channel.changed = new AbortController();
    },
    share(given) {
      sharing = given;
    },
    *shared() {
      for (const { lanes } of channels.values()) for (const lane of lanes.values()) if (isShared(lane)) yield lane;
    },
    stats: () => countCalls(channels, clock.now()),
  };
}

function countCalls(channels: ReadonlyMap<string, Channel>, nowMs: number): ReturnType<Lanes['stats']> {
  const total = { inFlight: 0, waitingLive: 0, waitingBackground: 0, rateLimited: 0 };
  for (const { queue, lanes } of channels.values()) {
    const { inFlight, waitingLive, waitingBackground } = queue.stats();
    total.inFlight += inFlight;
    total.waitingLive += waitingLive;
    total.waitingBackground += waitingBackground;
    for (const { rateLimitedUntilMs, paced } of lanes.values()) {
      total.waitingBackground += paced.waiting;
      if (rateLimitedUntilMs > nowMs) total.rateLimited += 1;
    }
  }
  return total;
}
