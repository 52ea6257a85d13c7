/**
 * How much a worker process has in flight at once: calls, and the bytes of their lines and results until these are
 * settled. Who has begun already goes before who has not, so that lines do not pile up half-done; but not for ever:
 * after `returningInARow` of them one that begins gets its turn. Each kind is served in its order. A line larger than all
 * the bytes allowed gets in when nothing else is.
 */
export type Slots = {
  /**
   * Resolves with true when there is room, which the caller gives back with `release`; with false, and nothing held, when
   * `signal` aborts before. `isReturning`: the line waited aside, and comes back.
   */
  acquire(bytes: number, options?: { signal?: AbortSignal; isReturning?: boolean }): Promise<boolean>;
  release(calls: number, bytes: number): void;
  inFlight(): { calls: number; bytes: number; waiting: number };
};

type Waiter = { bytes: number; start: () => void };

/** A healthy batch gets a quarter of the calls when thousands of lines come back only to be turned away again. */
const returningInARow = 3;

export function createSlots(limits: { callsMax: number; bytesMax: number }): Slots {
  let calls = 0;
  let bytes = 0;
  // Sets keep their order, and let go of one in the middle.
  const returning = new Set<Waiter>();
  const beginning = new Set<Waiter>();
  let row = 0;

  const fits = (size: number): boolean =>
    calls < limits.callsMax && (bytes + size <= limits.bytesMax || (calls === 0 && bytes === 0));
  const nextLine = (): Set<Waiter> =>
    returning.size > 0 && (row < returningInARow || beginning.size === 0) ? returning : beginning;
  const enter = (size: number): void => {
    calls += 1;
    bytes += size;
  };
  /** Nobody overtakes the next one, however small: a large line would wait for ever. */
  const admit = (): void => {
    for (;;) {
      const line = nextLine();
      const [next] = line;
      if (next === undefined || !fits(next.bytes)) return;
      row = line === returning ? row + 1 : 0;
      line.delete(next);
      enter(next.bytes);
      next.start();
    }
  };

  return {
    acquire(size, { signal, isReturning = false } = {}) {
      if (signal?.aborted === true) return Promise.resolve(false);
      if (returning.size + beginning.size === 0 && fits(size)) {
        enter(size);
        return Promise.resolve(true);
      }
      const { promise, resolve } = Promise.withResolvers<boolean>();
      const line = isReturning ? returning : beginning;
      const waiter: Waiter = {
        bytes: size,
        start() {
          signal?.removeEventListener('abort', onAbort);
          resolve(true);
        },
      };
      const onAbort = (): void => {
        line.delete(waiter);
        resolve(false);
        admit(); // a smaller one may have stood behind it
      };
      signal?.addEventListener('abort', onAbort, { once: true });
      line.add(waiter);
      // One that comes back may stand before a large one that does not fit yet.
      admit();
      return promise;
    },
    release(releasedCalls, releasedBytes) {
      calls -= releasedCalls;
      bytes -= releasedBytes;
      admit();
    },
    inFlight: () => ({ calls, bytes, waiting: returning.size + beginning.size }),
  };
}
