/**
 * Permits for the calls of one credential, and the calls that wait for one: live calls first, and within each kind in
 * order.
 */
export type CallQueue = {
  /** Acquires a permit if one is free. Returns whether it did. */
  tryAcquire: () => boolean;
  /**
   * Waits for a permit, and resolves when it is acquired. Rejects with the signal's reason when that aborts. For a live
   * call, check `isFull` before.
   */
  wait: (isLive: boolean, signal: AbortSignal) => Promise<void>;
  release: () => void;
  isFull: () => boolean;
  stats: () => { inFlight: number; waitingLive: number; waitingBackground: number };
};

type Waiter = { go: () => void };

/** `waitingMax` limits live calls. The senders of background calls limit those themselves. */
export function createCallQueue({ inFlightMax, waitingMax }: { inFlightMax: number; waitingMax: number }): CallQueue {
  let inFlight = 0;
  const live = new Set<Waiter>();
  const background = new Set<Waiter>();

  return {
    tryAcquire: () => {
      if (inFlight >= inFlightMax) return false;
      inFlight += 1;
      return true;
    },
    wait: (isLive, signal) => {
      const { promise, resolve, reject } = Promise.withResolvers<void>();
      if (signal.aborted) {
        reject(signal.reason as Error);
        return promise;
      }
      const line = isLive ? live : background;
      const waiter: Waiter = {
        go: () => {
          signal.removeEventListener('abort', onAbort);
          resolve();
        },
      };
      const onAbort = (): void => {
        line.delete(waiter);
        reject(signal.reason as Error);
      };
      signal.addEventListener('abort', onAbort, { once: true });
      line.add(waiter);
      return promise;
    },
    release: () => {
      const line = live.size > 0 ? live : background;
      const [next] = line;
      if (next === undefined) {
        inFlight -= 1;
        return;
      }
      // The permit is passed on directly, so that no later call can take it first.
      line.delete(next);
      next.go();
    },
    isFull: () => live.size >= waitingMax,
    stats: () => ({ inFlight, waitingLive: live.size, waitingBackground: background.size }),
  };
}
