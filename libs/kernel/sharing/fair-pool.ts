import { WaitingGroups, type Waiter } from './waiting-groups.ts';

/** A limited number of units, such as slots or threads, that no single group can use up. */
export type FairPool = {
  /** Takes a unit. Returns false, taking nothing, if none is available to the group now. */
  tryTake: (group: string) => boolean;
  /** Waits for a unit. Throws the reason of `signal` if it aborts first, and the refusal if too many are already waiting. */
  take: (group: string, signal?: AbortSignal) => Promise<void>;
  /** Returns a unit that was taken. */
  give: (group: string) => void;
  /** How many units are taken, in total or by one group. */
  held: (group?: string) => number;
  waiting: () => number;
};

type Options = {
  units: number;
  /** Whether a group that holds `held` units can take another one while `free` are free. Default: `dynamicShare`. */
  mayTake?: (held: number, free: number) => boolean;
  /**
   * How many waiters one group and all groups can have, and the error for a group that has `own` waiters. Default: no limit.
   */
  waitingMax?: { ofGroup: number; ofAll?: number; refusal: (own: number) => Error } | undefined;
};

/**
 * A group has at most three times as many units as are free: a single group gets three quarters of all units, and the next
 * one can get three quarters of the rest. So no group can use up a common limit. (These are dynamic thresholds, as network
 * switches use to share their buffers: Choudhury and Hahne, 1998.)
 */
const dynamicShare = (held: number, free: number): boolean => held < 3 * free;

/**
 * Groups that wait take turns, no matter how many units each of them wants. Only groups that hold or want a unit are
 * remembered.
 */
export function createFairPool({ units, mayTake = dynamicShare, waitingMax }: Options): FairPool {
  const held = new Map<string, number>();
  const waiting = new WaitingGroups<string, null>();
  let taken = 0;

  const tryTake = (group: string): boolean => {
    const own = held.get(group) ?? 0;
    if (taken >= units || !mayTake(own, units - taken)) return false;
    taken += 1;
    held.set(group, own + 1);
    return true;
  };
  const takeFor = ({ group }: Waiter<string, null>): boolean => tryTake(group);

  return {
    tryTake,
    async take(group, signal) {
      signal?.throwIfAborted();
      if (tryTake(group)) return;
      if (waitingMax !== undefined) {
        const { ofGroup, ofAll = Infinity, refusal } = waitingMax;
        const own = waiting.sizeOf(group);
        if (own >= ofGroup || waiting.size >= ofAll) throw refusal(own);
      }
      if (!(await waiting.join(group, null, signal))) signal?.throwIfAborted();
    },
    give(group) {
      const own = held.get(group);
      if (own === undefined) return;
      taken -= 1;
      if (own === 1) held.delete(group);
      else held.set(group, own - 1);
      while (waiting.size > 0) {
        const next = waiting.next(takeFor);
        if (next === undefined) return;
        waiting.start(next);
      }
    },
    held: (group) => (group === undefined ? taken : (held.get(group) ?? 0)),
    waiting: () => waiting.size,
  };
}
