/**
 * How much a worker process has in flight at once: calls, and the bytes of their lines and results until these are
 * settled. Who has begun already goes before who has not, so that lines do not pile up half-done; but not for ever:
 * after `returningInARow` of them one that begins gets its turn. Of each kind, the groups take turns, and the lines of one
 * are served in their order. A line larger than all the bytes allowed gets in when nothing else is.
 */
export type Slots = Room & {
  /**
   * The same room for the calls of one group, of which others keep some: it has at most `shareOfFree` times as many calls
   * as are free. A provider that hangs holds the calls of its batches until they time out, and no other batch waits for
   * that. (Dynamic thresholds, as switches share their buffers: Choudhury and Hahne, 1998.)
   */
  of(group: string): Room;
  inFlight(): { calls: number; bytes: number; waiting: number };
};

export type Room = {
  /**
   * Resolves with true when there is room, which the caller gives back with `release`; with false, and nothing held, when
   * `signal` aborts before. `isReturning`: the line waited aside, and comes back.
   */
  acquire(bytes: number, options?: { signal?: AbortSignal; isReturning?: boolean }): Promise<boolean>;
  release(calls: number, bytes: number): void;
};

type Waiter = { bytes: number; start: () => void };
/** By group; no group is one too. Groups stand in the order of their turns; sets let go of a waiter in the middle. */
type Line = Map<string | null, Set<Waiter>>;

/** A healthy batch gets a quarter of the calls when thousands of lines come back only to be turned away again. */
const returningInARow = 3;
/** One group alone has seven eighths of the calls, rounded up, and two have nearly half each. */
const shareOfFree = 7;

export function createSlots(limits: { callsMax: number; bytesMax: number }): Slots {
  let calls = 0;
  let bytes = 0;
  const callsOf = new Map<string | null, number>();
  const returning: Line = new Map();
  const beginning: Line = new Map();
  let waiting = 0;
  let row = 0;

  const fits = (size: number): boolean => bytes + size <= limits.bytesMax || (calls === 0 && bytes === 0);
  const mayCall = (group: string | null): boolean =>
    calls < limits.callsMax && (group === null || (callsOf.get(group) ?? 0) < shareOfFree * (limits.callsMax - calls));
  const count = (group: string | null, more: number): void => {
    calls += more;
    const now = (callsOf.get(group) ?? 0) + more;
    if (now === 0) callsOf.delete(group);
    else callsOf.set(group, now);
  };
  const nextGroup = (line: Line): string | null | undefined => line.keys().find(mayCall);

  function join(line: Line, group: string | null, waiter: Waiter): void {
    const waiters = line.get(group) ?? new Set();
    waiters.add(waiter);
    line.set(group, waiters);
    waiting += 1;
  }
  function leave(line: Line, group: string | null, waiter: Waiter): void {
    const waiters = line.get(group);
    if (waiters?.delete(waiter) !== true) return;
    waiting -= 1;
    if (waiters.size === 0) line.delete(group);
  }

  /** Nobody overtakes the next one for its size, however small: a large line would wait for ever. */
  const admit = (): void => {
    while (waiting > 0) {
      const back = nextGroup(returning);
      const fresh = nextGroup(beginning);
      const isBack = back !== undefined && (row < returningInARow || fresh === undefined);
      const [line, group] = isBack ? [returning, back] : [beginning, fresh];
      if (group === undefined) return;
      const waiters = line.get(group) as Set<Waiter>;
      const next = waiters.values().next().value as Waiter;
      if (!fits(next.bytes)) return;
      row = isBack ? row + 1 : 0;
      leave(line, group, next);
      // The group's turn is over: it stands behind the others.
      if (line.delete(group)) line.set(group, waiters);
      count(group, 1);
      bytes += next.bytes;
      next.start();
    }
  };

  const roomOf = (group: string | null): Room => ({
    acquire(size, { signal, isReturning = false } = {}) {
      if (signal?.aborted === true) return Promise.resolve(false);
      if (waiting === 0 && mayCall(group) && fits(size)) {
        count(group, 1);
        bytes += size;
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
        leave(line, group, waiter);
        resolve(false);
        admit(); // a smaller one may have stood behind it
      };
      signal?.addEventListener('abort', onAbort, { once: true });
      join(line, group, waiter);
      // One that comes back may stand before a large one that does not fit yet, and others for their groups.
      admit();
      return promise;
    },
    release(releasedCalls, releasedBytes) {
      count(group, -releasedCalls);
      bytes -= releasedBytes;
      admit();
    },
  });

  return { ...roomOf(null), of: roomOf, inFlight: () => ({ calls, bytes, waiting }) };
}
