/**
 * How much a worker process has in flight at once: calls, and the bytes of their lines and results until these are
 * settled. Waiters are served in order. A line larger than all the bytes allowed gets in when nothing else is.
 */
export type Slots = {
  /** Resolves when there is room; the caller gives back with `release`. */
  acquire(bytes: number): Promise<void>;
  release(calls: number, bytes: number): void;
  inFlight(): { calls: number; bytes: number; waiting: number };
};

export function createSlots(limits: { callsMax: number; bytesMax: number }): Slots {
  let calls = 0;
  let bytes = 0;
  const waiters: { bytes: number; start: () => void }[] = [];
  const fits = (size: number): boolean =>
    calls < limits.callsMax && (bytes + size <= limits.bytesMax || (calls === 0 && bytes === 0));
  const admit = (): void => {
    for (let next = waiters[0]; next && fits(next.bytes); next = waiters[0]) {
      waiters.shift();
      calls += 1;
      bytes += next.bytes;
      next.start();
    }
  };
  return {
    acquire(size) {
      if (waiters.length === 0 && fits(size)) {
        calls += 1;
        bytes += size;
        return Promise.resolve();
      }
      return new Promise((start) => void waiters.push({ bytes: size, start }));
    },
    release(releasedCalls, releasedBytes) {
      calls -= releasedCalls;
      bytes -= releasedBytes;
      admit();
    },
    inFlight: () => ({ calls, bytes, waiting: waiters.length }),
  };
}
