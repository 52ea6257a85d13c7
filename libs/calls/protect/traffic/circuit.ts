import type { BreakerPolicy } from '#libs/contracts/circuit-breaker.ts';

/** How a call counts: `none` says nothing about the provider (the caller left, a rate limit, a refusal here). */
export type CallResult = 'success' | 'failure' | 'none';

export type CircuitChange = { state: 'open'; untilMs: number; failures: number } | { state: 'closed' };

export type Circuit = {
  state: (now: number) => 'closed' | 'open' | 'half_open';
  /** Milliseconds until it is worth asking again; 0: a call may go now. Changes nothing. */
  blockedMs: (now: number) => number;
  /** A call goes, `blockedMs` being 0. True: it is the probe of a half-open circuit, and nobody else goes until it is over. */
  start: () => boolean;
  /** A call is over. `now` as for all others, in epoch milliseconds. */
  end: (result: CallResult, wasProbe: boolean, now: number) => void;
  /** Another process found out. `untilMs` null: that calls succeed again. */
  adopt: (untilMs: number | null) => void;
  untilMs: () => number;
};

// While the probe is under way: long enough for most answers, short enough not to be noticed.
const probeWaitMs = 1_000;

/** A circuit breaker: opens after failures in a row, or when their share among the last calls is reached. */
export function createCircuit(policy: BreakerPolicy, onChange: (change: CircuitChange) => void): Circuit {
  let recent = createFailureWindow(policy);
  let openUntilMs: number | null = null;
  let isProbing = false;
  let failures = 0;

  const open = (now: number): void => {
    openUntilMs = now + policy.cooldownMs;
    onChange({ state: 'open', untilMs: openUntilMs, failures });
  };
  const close = (): void => {
    openUntilMs = null;
    isProbing = false;
    failures = 0;
    recent = createFailureWindow(policy);
  };

  return {
    state: (now) => {
      if (openUntilMs === null) return 'closed';
      return isProbing || now >= openUntilMs ? 'half_open' : 'open';
    },
    blockedMs: (now) => {
      if (openUntilMs === null) return 0;
      if (now < openUntilMs) return openUntilMs - now;
      return isProbing ? probeWaitMs : 0;
    },
    start: () => {
      if (openUntilMs === null) return false;
      isProbing = true;
      return true;
    },
    end: (result, wasProbe, now) => {
      if (wasProbe) {
        isProbing = false;
        if (openUntilMs === null || result === 'none') return;
        if (result === 'failure') {
          failures += 1;
          return open(now);
        }
        close();
        return onChange({ state: 'closed' });
      }
      // A call that began before the circuit opened says nothing new.
      if (openUntilMs !== null || result === 'none') return;
      if (result === 'success') {
        failures = 0;
        recent?.add(false);
        return;
      }
      failures += 1;
      const isShareReached = recent?.add(true) === true;
      if (isShareReached || (policy.failuresInRow !== null && failures >= policy.failuresInRow)) open(now);
    },
    adopt: (untilMs) => {
      if (untilMs === null) close();
      else openUntilMs = Math.max(openUntilMs ?? 0, untilMs);
    },
    untilMs: () => openUntilMs ?? 0,
  };
}

const windowCalls = 100;

/** The share of failures among the last calls. `add` returns whether it is reached; of fewer than `callsMin` calls never. */
type FailureWindow = { add: (hasFailed: boolean) => boolean };

function createFailureWindow({ failureShare, callsMin }: BreakerPolicy): FailureWindow | null {
  if (failureShare === null) return null;
  const last: boolean[] = [];
  const callsMax = Math.max(callsMin, windowCalls);
  let next = 0;
  let failures = 0;
  return {
    add(hasFailed) {
      if (last[next] === true) failures -= 1;
      if (hasFailed) failures += 1;
      last[next] = hasFailed;
      next = (next + 1) % callsMax;
      // A hair less, because a share like 0.3 of 10 calls is no exact number.
      return last.length >= callsMin && failures >= (failureShare - 1e-9) * last.length;
    },
  };
}
