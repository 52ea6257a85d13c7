import type { Clock } from '#libs/kernel/clock.ts';

/**
 * The database's clock as this process knows it. All deadlines are times of it, so that a process whose own clock is wrong
 * neither ends anything early nor keeps it alive.
 */
export type DatabaseClock = Clock & {
  /**
   * Takes a time that the database told, and when it was asked and had answered by `performance.now()`. An answer that
   * took more than a second tells too little, and is passed over when an earlier one is known.
   */
  set(databaseMs: number, askedAtMs: number, answeredAtMs: number): void;
  /** A time of the database's clock as a time of this process's own, for what is compared with `Date.now()`. */
  toOwnTime(databaseMs: number): number;
};

const slowAnswerMs = 1_000;
/** Smaller differences are those of the way there and back: the clock does not move back and forth for them. */
const toleranceMs = 50;

/**
 * Goes on by the monotonic clock between two answers of the database, and through its outages; before the first answer it
 * is the process's own clock.
 */
export function createDatabaseClock(
  deps: { ownTime: () => number; monotonicMs: () => number } = {
    ownTime: Date.now,
    monotonicMs: () => performance.now(),
  },
): DatabaseClock {
  /** The database's time at the zero of the monotonic clock. */
  let zeroMs: number | undefined;
  const now = (): number => (zeroMs === undefined ? deps.ownTime() : Math.floor(zeroMs + deps.monotonicMs()));
  return {
    now,
    set(databaseMs, askedAtMs, answeredAtMs) {
      const tookMs = answeredAtMs - askedAtMs;
      const told = databaseMs - askedAtMs - tookMs / 2;
      if (zeroMs !== undefined && (tookMs > slowAnswerMs || Math.abs(told - zeroMs) <= toleranceMs + tookMs / 2))
        return;
      zeroMs = told;
    },
    toOwnTime: (databaseMs) => databaseMs - now() + deps.ownTime(),
  };
}
