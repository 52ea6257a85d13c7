import { WaitingGroups } from '#libs/kernel/sharing/waiting-groups.ts';
import { createCallShares } from './call-shares.ts';

/**
 * Limits the work that a worker process has in flight: calls, and the bytes of their lines and results until those are
 * settled. Lines that resume after a wait are served before lines that begin, so that half-done lines do not pile up. After
 * `resumingInARowMax` of them, though, a beginning line gets its turn. Within each of these two kinds, the groups take
 * turns, and the lines of a group are served in order. A line that needs more than the allowed bytes runs only while no
 * other line does.
 */
export type PermitPool = Permits & {
  /**
   * The pool's permits for the calls of these groups: a workspace, a destination and a batch, in this order. Each group gets
   * only a share (call-shares.ts): a provider that hangs holds the permits of its batches until its calls time out, and
   * other batches should not have to wait for that.
   */
  of(...groups: string[]): Permits;
  /** The running calls of a group. */
  callsOf(group: string): number;
  inFlight(): { calls: number; bytes: number; waiting: number };
};

export type Permits = {
  /**
   * Returns true when the permit is granted, with a promise if that takes a wait; the caller must then call `release`.
   * Returns false, holding no permit, when `signal` aborts first. `isResuming`: the line had a permit before and gave it
   * up to wait.
   */
  acquire(bytes: number, options?: { signal?: AbortSignal; isResuming?: boolean }): boolean | Promise<boolean>;
  /** `isAnswered`: the provider answered the calls, with any status. */
  release(calls: number, bytes: number, isAnswered?: boolean): void;
};

type Line = { groups: readonly string[]; bytes: number };

/**
 * With this value, a batch whose calls succeed gets a quarter of the permits while thousands of lines resume only to be
 * rate-limited again.
 */
const resumingInARowMax = 3;

export function createPermitPool(limits: { callsMax: number; bytesMax: number }): PermitPool {
  let calls = 0;
  let bytes = 0;
  const shares = createCallShares(limits.callsMax);
  const resuming = new WaitingGroups<string, Line>();
  const beginning = new WaitingGroups<string, Line>();
  let resumingInARow = 0;

  const fits = (size: number): boolean => bytes + size <= limits.bytesMax || (calls === 0 && bytes === 0);
  const mayCall = (groups: readonly string[]): boolean => shares.mayBegin(groups, calls);
  const begin = (line: Line): void => {
    calls += 1;
    bytes += line.bytes;
    shares.begin(line.groups);
  };
  const waiting = (): number => resuming.size + beginning.size;
  const canCall = ({ item }: { item: Line }): boolean => mayCall(item.groups);

  /** Serves the lines whose turn it is. A small line never overtakes a large one, which would otherwise wait forever. */
  const admit = (): void => {
    while (waiting() > 0) {
      const back = resuming.next(canCall);
      const fresh = beginning.next(canCall);
      const isResuming = back !== undefined && (resumingInARow < resumingInARowMax || fresh === undefined);
      const next = isResuming ? back : fresh;
      if (next === undefined || !fits(next.item.bytes)) return;
      resumingInARow = isResuming ? resumingInARow + 1 : 0;
      begin(next.item);
      (isResuming ? resuming : beginning).start(next);
    }
  };

  const permitsOf = (groups: readonly string[], turn: string): Permits => ({
    acquire(size, { signal, isResuming = false } = {}) {
      if (signal?.aborted === true) return false;
      const line = { groups, bytes: size };
      if (waiting() === 0 && mayCall(groups) && fits(size)) {
        begin(line);
        return true;
      }
      const started = (isResuming ? resuming : beginning).join(turn, line, signal);
      // A resuming line can be served while a large one is waiting to begin, and so can other groups.
      admit();
      return started.then((isStarted) => {
        if (!isStarted) admit(); // a smaller line may have been waiting behind it
        return isStarted;
      });
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
    callsOf: (group) => shares.calls(group),
    inFlight: () => ({ calls, bytes, waiting: waiting() }),
  };
}
