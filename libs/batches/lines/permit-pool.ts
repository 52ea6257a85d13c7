import { createCallShares } from './call-shares.ts';

/**
 * Limits what a worker process has in flight: calls, and the bytes of their lines and results until these are settled. Lines
 * that resume after a wait go before lines that begin, so that half-done lines do not pile up. But after
 * `resumingInARowMax` of them, a beginning line gets its turn. Within each kind, the groups take turns and the lines of a
 * group are served in order. A line larger than all the bytes allowed runs when nothing else does.
 */
export type PermitPool = Permits & {
  /**
   * The pool's permits for the calls of these groups: a workspace, a destination and a batch, in this order. Each group only
   * gets a share (call-shares.ts), because a provider that hangs holds the permits of its batches until its calls time out,
   * and other batches should not have to wait for that.
   */
  of(...groups: string[]): Permits;
  inFlight(): { calls: number; bytes: number; waiting: number };
};

export type Permits = {
  /**
   * Resolves with true when the permit is granted; the caller must then call `release`. Resolves with false, with nothing
   * held, when `signal` aborts first. `isResuming`: the line had a permit before, and waited without it.
   */
  acquire(bytes: number, options?: { signal?: AbortSignal; isResuming?: boolean }): Promise<boolean>;
  /** `isAnswered`: the calls were answered, with whatever status. */
  release(calls: number, bytes: number, isAnswered?: boolean): void;
};

type Waiter = { bytes: number; start: () => void };
/** By the joined name of their groups, in the order of their turns. Sets, so that a waiter in the middle can leave. */
type WaitingGroups = Map<string, { groups: readonly string[]; waiters: Set<Waiter> }>;

/** A working batch gets a quarter of the calls while thousands of lines resume only to be rate-limited again. */
const resumingInARowMax = 3;

export function createPermitPool(limits: { callsMax: number; bytesMax: number }): PermitPool {
  let calls = 0;
  let bytes = 0;
  const shares = createCallShares(limits.callsMax);
  const resuming: WaitingGroups = new Map();
  const beginning: WaitingGroups = new Map();
  let waiting = 0;
  let resumingInARow = 0;

  const fits = (size: number): boolean => bytes + size <= limits.bytesMax || (calls === 0 && bytes === 0);
  const mayCall = (groups: readonly string[]): boolean => shares.mayBegin(groups, calls);
  const begin = (groups: readonly string[], size: number): void => {
    calls += 1;
    bytes += size;
    shares.begin(groups);
  };
  const nextTurn = (queue: WaitingGroups): string | undefined => {
    for (const [turn, { groups }] of queue) if (mayCall(groups)) return turn;
    return undefined;
  };

  function join(queue: WaitingGroups, turn: string, groups: readonly string[], waiter: Waiter): void {
    const entry = queue.get(turn) ?? { groups, waiters: new Set() };
    entry.waiters.add(waiter);
    queue.set(turn, entry);
    waiting += 1;
  }
  function leave(queue: WaitingGroups, turn: string, waiter: Waiter): void {
    const entry = queue.get(turn);
    if (entry?.waiters.delete(waiter) !== true) return;
    waiting -= 1;
    if (entry.waiters.size === 0) queue.delete(turn);
  }

  /** Serves the waiters whose turn it is. A small line never overtakes a large one, which would otherwise wait for ever. */
  const admit = (): void => {
    while (waiting > 0) {
      const back = nextTurn(resuming);
      const fresh = nextTurn(beginning);
      const isResuming = back !== undefined && (resumingInARow < resumingInARowMax || fresh === undefined);
      const [queue, turn] = isResuming ? [resuming, back] : [beginning, fresh];
      if (turn === undefined) return;
      const entry = queue.get(turn) as NonNullable<ReturnType<WaitingGroups['get']>>;
      const next = entry.waiters.values().next().value as Waiter;
      if (!fits(next.bytes)) return;
      resumingInARow = isResuming ? resumingInARow + 1 : 0;
      leave(queue, turn, next);
      // Its turn is over: move the group behind the others.
      if (queue.delete(turn)) queue.set(turn, entry);
      begin(entry.groups, next.bytes);
      next.start();
    }
  };

  const permitsOf = (groups: readonly string[], turn: string): Permits => ({
    acquire(size, { signal, isResuming = false } = {}) {
      if (signal?.aborted === true) return Promise.resolve(false);
      if (waiting === 0 && mayCall(groups) && fits(size)) {
        begin(groups, size);
        return Promise.resolve(true);
      }
      const { promise, resolve } = Promise.withResolvers<boolean>();
      const queue = isResuming ? resuming : beginning;
      const waiter: Waiter = {
        bytes: size,
        start() {
          signal?.removeEventListener('abort', onAbort);
          resolve(true);
        },
      };
      const onAbort = (): void => {
        leave(queue, turn, waiter);
        resolve(false);
        admit(); // a smaller line may have been waiting behind it
      };
      signal?.addEventListener('abort', onAbort, { once: true });
      join(queue, turn, groups, waiter);
      // A resuming line may be served although a large one is waiting to begin, and so may other groups.
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
    ...permitsOf([], ''),
    of: (...groups) => permitsOf(groups, groups.join(' ')),
    inFlight: () => ({ calls, bytes, waiting }),
  };
}
