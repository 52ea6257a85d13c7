import { createCallShares } from './call-shares.ts';

/**
 * How much a worker process has in flight at once: calls, and the bytes of their lines and results until these are
 * settled. Who has begun already goes before who has not, so that lines do not pile up half-done; but not for ever:
 * after `returningInARow` of them one that begins gets its turn. Of each kind, the groups take turns, and the lines of one
 * are served in their order. A line larger than all the bytes allowed gets in when nothing else is.
 */
export type Slots = Room & {
  /**
   * The same room for calls that belong together: by workspace, by where they go, and by batch, in this order. Each of
   * these groups leaves some to others (call-shares.ts), because a provider that hangs holds the calls of its batches
   * until they time out, and no other batch should wait for that.
   */
  of(...groups: string[]): Room;
  inFlight(): { calls: number; bytes: number; waiting: number };
};

export type Room = {
  /**
   * Resolves with true when there is room, which the caller gives back with `release`; with false, and nothing held, when
   * `signal` aborts before. `isReturning`: the line waited aside, and comes back.
   */
  acquire(bytes: number, options?: { signal?: AbortSignal; isReturning?: boolean }): Promise<boolean>;
  /** `isAnswered`: where a call is given back, that it was answered, in whichever way. */
  release(calls: number, bytes: number, isAnswered?: boolean): void;
};

type Waiter = { bytes: number; start: () => void };
/** By the name of their groups. These stand in the order of their turns; sets let go of a waiter in the middle. */
type Line = Map<string, { groups: readonly string[]; waiters: Set<Waiter> }>;

/** A healthy batch gets a quarter of the calls when thousands of lines come back only to be turned away again. */
const returningInARow = 3;
export function createSlots(limits: { callsMax: number; bytesMax: number }): Slots {
  let calls = 0;
  let bytes = 0;
  const shares = createCallShares(limits.callsMax);
  const returning: Line = new Map();
  const beginning: Line = new Map();
  let waiting = 0;
  let row = 0;

  const fits = (size: number): boolean => bytes + size <= limits.bytesMax || (calls === 0 && bytes === 0);
  const mayCall = (groups: readonly string[]): boolean => shares.mayBegin(groups, calls);
  const begin = (groups: readonly string[], size: number): void => {
    calls += 1;
    bytes += size;
    shares.begin(groups);
  };
  const nextTurn = (line: Line): string | undefined => {
    for (const [turn, { groups }] of line) if (mayCall(groups)) return turn;
    return undefined;
  };

  function join(line: Line, turn: string, groups: readonly string[], waiter: Waiter): void {
    const entry = line.get(turn) ?? { groups, waiters: new Set() };
    entry.waiters.add(waiter);
    line.set(turn, entry);
    waiting += 1;
  }
  function leave(line: Line, turn: string, waiter: Waiter): void {
    const entry = line.get(turn);
    if (entry?.waiters.delete(waiter) !== true) return;
    waiting -= 1;
    if (entry.waiters.size === 0) line.delete(turn);
  }

  /** Nobody overtakes the next one for its size, however small: a large line would wait for ever. */
  const admit = (): void => {
    while (waiting > 0) {
      const back = nextTurn(returning);
      const fresh = nextTurn(beginning);
      const isBack = back !== undefined && (row < returningInARow || fresh === undefined);
      const [line, turn] = isBack ? [returning, back] : [beginning, fresh];
      if (turn === undefined) return;
      const entry = line.get(turn) as NonNullable<ReturnType<Line['get']>>;
      const next = entry.waiters.values().next().value as Waiter;
      if (!fits(next.bytes)) return;
      row = isBack ? row + 1 : 0;
      leave(line, turn, next);
      // Its turn is over: it stands behind the others.
      if (line.delete(turn)) line.set(turn, entry);
      begin(entry.groups, next.bytes);
      next.start();
    }
  };

  const roomOf = (groups: readonly string[], turn: string): Room => ({
    acquire(size, { signal, isReturning = false } = {}) {
      if (signal?.aborted === true) return Promise.resolve(false);
      if (waiting === 0 && mayCall(groups) && fits(size)) {
        begin(groups, size);
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
        leave(line, turn, waiter);
        resolve(false);
        admit(); // a smaller one may have stood behind it
      };
      signal?.addEventListener('abort', onAbort, { once: true });
      join(line, turn, groups, waiter);
      // One that comes back may stand before a large one that does not fit yet, and others for their groups.
      admit();
      return promise;
    },
    release(releasedCalls, releasedBytes, isAnswered = false) {
      calls -= releasedCalls;
      for (let ended = 0; ended < releasedCalls; ended += 1) shares.end(groups, isAnswered);
      bytes -= releasedBytes;
      admit();
    },
  });

  return {
    ...roomOf([], ''),
    of: (...groups) => roomOf(groups, groups.join(' ')),
    inFlight: () => ({ calls, bytes, waiting }),
  };
}
