import { WaitingGroups, type Waiter } from './waiting-groups.ts';

/** A limited number of units, such as slots or threads, of which no group can take all. */
export type FairPool = {
  /** Takes a unit. Returns false, with nothing taken, if there is none for the group now. */
  tryTake: (group: string) => boolean;
  /** Waits for a unit. Throws the reason of `signal` if that aborts first, and the refusal if too many wait already. */
  take: (group: string, signal?: AbortSignal) => Promise<void>;
  /** Gives back a unit that was taken. */
  give: (group: string) => void;
  /** How many units are taken, by all or by one group. */
  held: (group?: string) => number;
  waiting: () => number;
};

type Options = {
  units: number;
  /** Whether a group that holds `held` units may take another one while `free` are free. Default: `dynamicShare`. */
  mayTake?: (held: number, free: number) => boolean;
  /** How many may wait, of one group and of all, and the error for a group that has `own` waiters. Default: any number. */
  waitingMax?: { ofGroup: number; ofAll?: number; refusal: (own: number) => Error } | undefined;
};

/**
 * A group has at most three times as many units as are free: a single one has three quarters of all, and the next one can
 * have three quarters of the rest. So no group can use up a common limit. (Dynamic thresholds, as network switches share their
 * buffers: Choudhury and Hahne, 1998.)
 */
const dynamicShare = (held: number, free: number): boolean => held < 3 * free;

/** Groups that wait take turns, however many units each of them wants. Only groups that hold or want one are remembered. */
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
