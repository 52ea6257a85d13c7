import type { BreakerPolicy } from '#libs/contracts/configs/circuit-breaker.ts';

/**
 * How a call counts. `none`: it contains no information about the provider (the caller left, a rate limit, a refusal
 * here).
 */
export type CallResult = 'success' | 'failure' | 'none';

export type CircuitChange = { state: 'open'; untilMs: number; failures: number } | { state: 'closed' };

export type Circuit = {
  state: (now: number) => 'closed' | 'open' | 'half_open';
  /** Returns the milliseconds until a call can start; 0: now. Changes nothing. */
  blockedMs: (now: number) => number;
  /**
   * Call this when a call starts, after `blockedMs` returned 0. Returns true if it is the probe of a half-open circuit:
   * no other call starts until the probe is over.
   */
  start: () => boolean;
  /** Call this when a call is over. `now` is in epoch milliseconds, here and in the other methods. */
  end: (result: CallResult, wasProbe: boolean, now: number) => void;
  /** Takes over a state that another process has found. `untilMs` null: calls succeed again. */
  adopt: (untilMs: number | null) => void;
  untilMs: () => number;
};

// The maximum time for the probe of a half-open circuit: enough for most answers, and too short to matter.
const probeWaitMs = 1_000;

/** Makes a circuit breaker. It opens after failures in a row, or when their share among the last calls is reached. */
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
      // A call that began before the circuit opened adds no information.
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

/**
 * The share of failures among the last calls. `add` returns whether it is reached; never with fewer than `callsMin`
 * calls.
 */
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
      // A little less, because a share like 0.3 of 10 calls is not an exact number.
      return last.length >= callsMin && failures >= (failureShare - 1e-9) * last.length;
    },
  };
}
