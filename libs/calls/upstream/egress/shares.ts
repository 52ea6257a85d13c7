/** How many slots one holder has. */
type Holding = { held: number };

/** A limited number of slots, of which no holder can take all. */
export type Shares = {
  /** Takes a slot. Returns false, and takes nothing, when the holder has its share. */
  take: (holder: string) => boolean;
  /** Gives back a slot that was taken. */
  give: (holder: string) => void;
  /** How many slots are taken, by everybody or by one holder. */
  held: (holder?: string) => number;
};

/**
 * Whether a holder may take another slot. It has at most three times as many as are free: a single one has three
 * quarters of all, and the next one can have three quarters of the rest. So no holder can use up a common limit.
 * (Dynamic thresholds, as network switches share their buffers: Choudhury and Hahne, 1998.)
 */
const shareOfFree = 3;

/** Shares `max` slots among holders with names. Only holders that have a slot are remembered. */
export function createShares(max: number): Shares {
  const holders = new Map<string, Holding>();
  let all = 0;
  return {
    take: (holder) => {
      const known = holders.get(holder);
      if ((known?.held ?? 0) >= shareOfFree * (max - all)) return false;
      all += 1;
      if (known === undefined) holders.set(holder, { held: 1 });
      else known.held += 1;
      return true;
    },
    give: (holder) => {
      const known = holders.get(holder);
      if (known === undefined) return;
      all -= 1;
      known.held -= 1;
      if (known.held === 0) holders.delete(holder);
    },
    held: (holder) => (holder === undefined ? all : (holders.get(holder)?.held ?? 0)),
  };
}
