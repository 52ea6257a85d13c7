/** A seeded source of choices: the same seed gives the same run. */
export type Random = {
  /** 0 inclusive to 1 exclusive. */
  next(): number;
  /** A whole number, both bounds inclusive. */
  between(low: number, high: number): number;
  /** True in this many per cent of cases. */
  chance(percent: number): boolean;
  pick<Item>(items: readonly Item[]): Item;
};

/** mulberry32: 32 bits of state, good enough to choose faults, and the same on every machine. */
export function createRandom(seed: number): Random {
  let state = seed >>> 0;
  const next = (): number => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4_294_967_296;
  };
  const between = (low: number, high: number): number => low + Math.floor(next() * (high - low + 1));
  return {
    next,
    between,
    chance: (percent) => next() * 100 < percent,
    pick(items) {
      if (items.length === 0) throw new Error('nothing to pick from');
      return items[between(0, items.length - 1)] as (typeof items)[number];
    },
  };
}
