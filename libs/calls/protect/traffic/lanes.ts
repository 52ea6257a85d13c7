import type { Target } from '#libs/calls/call.ts';
import { rateLimitWaitMs, type Ended } from '#libs/calls/retry-waits.ts';
import type { Clock } from '#libs/kernel/clock.ts';
import { forgetOne } from './forget-one.ts';
import { createCallQueue, type CallQueue } from './queue.ts';
import type { LimitedCalls, ReportedLimits } from './reported-limits.ts';

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
  calls: LimitedCalls;
  /** Shared by all calls without a breaker, so that no object is made for each of them. */
  permit: Permit;
};
type Channel = { queue: CallQueue; lanes: Map<string, Lane> };

export type Lanes = {
  /** `model` must be short. */
  of: (target: Target, model: string) => Lane;
  /** Notes what the end of a call says of the provider's limits. */
  noteEnd: (lane: Lane, ended: Ended) => void;
  stats: () => { inFlight: number; waitingLive: number; waitingBackground: number; rateLimited: number };
};

// Limits the memory for credentials and models to about 100 MB. Idle ones are forgotten first.
const channelsMax = 2_000;
const lanesMax = 200;

/** Makes the lanes of this process. Each credential has one queue, which its models share. */
export function createLanes(deps: {
  clock: Clock;
  reported: ReportedLimits;
  inFlightMax: number;
  waitingMax: number;
}): Lanes {
  const { clock, reported, inFlightMax, waitingMax } = deps;
  const channels = new Map<string, Channel>();

  /** A 429 that says how long to wait starts the rate-limit wait of this model only. */
  const noteEnd = ({ calls }: Lane, ended: Ended): void => {
    reported.note(calls, ended);
    if (ended === null || 'error' in ended || ended.status !== 429) return;
    const now = clock.now();
    const waitMs = rateLimitWaitMs(ended, now);
    if (waitMs !== null) calls.rateLimitedUntilMs = Math.max(calls.rateLimitedUntilMs, now + waitMs);
  };

  const createLane = (queue: CallQueue, calls: LimitedCalls): Lane => {
    const lane: Lane = {
      queue,
      calls,
      permit: {
        release: (ended) => {
          noteEnd(lane, ended);
          queue.release();
        },
      },
    };
    return lane;
  };

  return {
    of({ credentialId = '', workspaceId = '', label, provider }, model) {
      let channel = channels.get(credentialId);
      if (!channel) {
        channel = { queue: createCallQueue({ inFlightMax, waitingMax }), lanes: new Map() };
        if (channels.size >= channelsMax) forgetOne(channels, ({ queue }) => queue.stats().inFlight === 0);
        channels.set(credentialId, channel);
      }
      let lane = channel.lanes.get(model);
      if (!lane) {
        const calls = { workspaceId, credentialId, label, provider, model, rateLimitedUntilMs: 0 };
        lane = createLane(channel.queue, calls);
        if (channel.lanes.size >= lanesMax)
          forgetOne(channel.lanes, (one) => one.calls.rateLimitedUntilMs <= clock.now());
        channel.lanes.set(model, lane);
      }
      return lane;
    },
    noteEnd,
    stats: () => {
      const total = { inFlight: 0, waitingLive: 0, waitingBackground: 0, rateLimited: 0 };
      const now = clock.now();
      for (const { queue, lanes } of channels.values()) {
        const { inFlight, waitingLive, waitingBackground } = queue.stats();
        total.inFlight += inFlight;
        total.waitingLive += waitingLive;
        total.waitingBackground += waitingBackground;
        for (const { calls } of lanes.values()) if (calls.rateLimitedUntilMs > now) total.rateLimited += 1;
      }
      return total;
    },
  };
}
