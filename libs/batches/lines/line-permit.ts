import type { HeldPlace, WaitWithoutPermit, Wait } from '#libs/calls/call.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { Permits } from './permit-pool.ts';

/**
 * The permit of one line: held while the line calls, released while it waits. It is created by a caller that has acquired it
 * (state `calling`), and takes over releasing it.
 */
export type LinePermit = {
  /** Passed to the line's request. It is given back when the line waits. */
  place: HeldPlace | undefined;
  /** Passed to the line's request. Once it has thrown, the line is over: it has no outcome and holds no permit. */
  waitWithoutPermit: WaitWithoutPermit;
  /** The line was stopped while it waited. It is run again with the next claim of its chunk. */
  isAbandoned: () => boolean;
  /**
   * Call this exactly once, when the call is over, even for an abandoned line. `keptBytes` of the line's bytes stay
   * counted.
   */
  end: (keptBytes: number, isAnswered?: boolean) => void;
};

/** Called when a wait begins. Returns a function to call when the wait is over. */
export type OnWait = (what: Wait) => () => void;

/**
 * `stop` ends all waits of the line, because its batch starts no more lines, its claim was lost or its worker stops.
 * Only a line that is calling can finish after that.
 */
export function createLinePermit(deps: {
  permits: Permits;
  bytes: number;
  stop: AbortSignal;
  onWait: OnWait;
  place?: HeldPlace | undefined;
}): LinePermit {
  const { permits, bytes, stop, onWait, place } = deps;
  let state: 'calling' | 'waiting' | 'abandoned' | 'ended' = 'calling';

  const abandon = (): GatewayError => {
    state = 'abandoned';
    return new GatewayError(
      'unavailable',
      'call_aborted',
      'The worker stopped while this line was waiting. The line will be called later.',
    );
  };

  return {
    place,
    async waitWithoutPermit(what, wait) {
      place?.release();
      // An abandoned line must never call again.
      if (state !== 'calling' || stop.aborted) {
        if (state === 'calling') permits.release(1, bytes);
        throw abandon();
      }
      state = 'waiting';
      // A provider's rate limit is an answer. Other retries can follow an error without an answer.
      permits.release(1, bytes, what.reason === 'rate_limited' && what.untilMs !== null);
      const endWait = onWait(what);
      try {
        await wait(stop);
      } catch {
        throw abandon();
      } finally {
        endWait();
      }
      if (!(await permits.acquire(bytes, { signal: stop, isResuming: true }))) throw abandon();
      state = 'calling';
      // The permit can be granted at the same moment as the stop.
      if (stop.aborted) {
        permits.release(1, bytes);
        throw abandon();
      }
    },
    isAbandoned: () => state === 'abandoned',
    end(keptBytes, isAnswered = false) {
      place?.release();
      if (state === 'calling') {
        state = 'ended';
        permits.release(1, bytes - keptBytes, isAnswered);
      } else if (keptBytes > 0) permits.release(0, -keptBytes);
    },
  };
}
