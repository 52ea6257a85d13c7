import type { Aside, Wait } from '#libs/calls/call.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { Room } from './slots.ts';

/**
 * One line's room among the calls of its process: held while the line calls, free while it waits. `calling` when it is
 * made, which takes the room over from whoever acquired it.
 */
export type LinePlace = {
  /** For the line's request. After it has thrown, the line is over: it has no outcome, and its place is free. */
  aside: Aside;
  /** The line was ended in a wait; whoever has its chunk next does it. */
  isLeft: () => boolean;
  /** The call is over; of the line's bytes, `keptBytes` stay counted. Once, and also for a line that was left. */
  end: (keptBytes: number, isAnswered?: boolean) => void;
};

/** Told of every wait; the function it returns, of its end. */
export type OnWait = (what: Wait) => () => void;

/**
 * `stop` ends all waits of the line: its batch starts no more lines, its claim is lost, or its worker stops. A line that
 * only waits is not worth waiting for; what is under way may finish.
 */
export function createLinePlace(deps: { room: Room; bytes: number; stop: AbortSignal; onWait: OnWait }): LinePlace {
  const { room, bytes, stop, onWait } = deps;
  let state: 'calling' | 'waiting' | 'left' | 'ended' = 'calling';

  const leave = (): GatewayError => {
    state = 'left';
    return new GatewayError('unavailable', 'call_aborted', 'The line was left to be done later while it waited.');
  };

  return {
    async aside(what, wait) {
      // A line that was left must not call again, whoever tries.
      if (state !== 'calling' || stop.aborted) {
        if (state === 'calling') room.release(1, bytes);
        throw leave();
      }
      state = 'waiting';
      // A rate limit is an answer; an error that is worth a retry may be that there was none.
      room.release(1, bytes, what.reason === 'rate_limited');
      const waited = onWait(what);
      try {
        await wait(stop);
      } catch {
        throw leave();
      } finally {
        waited();
      }
      if (!(await room.acquire(bytes, { signal: stop, isReturning: true }))) throw leave();
      state = 'calling';
      // Given room in the very moment of the stop.
      if (stop.aborted) {
        room.release(1, bytes);
        throw leave();
      }
    },
    isLeft: () => state === 'left',
    end(keptBytes, isAnswered = false) {
      if (state === 'calling') {
        state = 'ended';
        room.release(1, bytes - keptBytes, isAnswered);
      } else if (keptBytes > 0) room.release(0, -keptBytes);
    },
  };
}
