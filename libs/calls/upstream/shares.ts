/** How much of something one holder has. */
type Holding = { held: number };

/** A bounded number of places, of which nobody can take all. */
export type Shares = {
  /** Takes a place; false, and nothing taken, when the holder has its share. */
  take: (holder: string) => boolean;
  /** Gives back a place that was taken. */
  give: (holder: string) => void;
  /** Places taken by everybody, or by one holder. */
  held: (holder?: string) => number;
};

/**
 * A holder has at most three times as many places as are free: one alone has three quarters of all, and whoever comes
 * while somebody holds those can still have three quarters of the rest. So no bound for all can be used up by one.
 * (Dynamic thresholds, as switches share their buffers: Choudhury and Hahne, 1998.)
 */
const shareOfFree = 3;

/** Shares `max` places among holders that are known by name. Only holders with a place are remembered. */
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
