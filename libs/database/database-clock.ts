import type { Clock } from '#libs/kernel/clock.ts';

/**
 * The clock of the database, as far as this process knows it. All deadlines use it, so that a process with a wrong clock
 * neither ends anything early nor keeps it alive.
 */
export type DatabaseClock = Clock & {
  /**
   * Takes a time that the database has returned, with the start and end of that query by `performance.now()`. The result of a
   * query that took more than a second is inaccurate, and is ignored if there is an earlier one.
   */
  set(databaseMs: number, askedAtMs: number, answeredAtMs: number): void;
  /** Converts a time of the database into one of this process's own clock, to compare it with that. */
  toOwnTime(databaseMs: number): number;
};

const slowAnswerMs = 1_000;
/** Smaller differences come from the round trip, and do not adjust the clock. */
const toleranceMs = 50;

/**
 * Between two results, and during outages, the clock advances with the monotonic clock. Before the first result it is the
 * process's own clock.
 */
export function createDatabaseClock(
  deps: { ownTime: () => number; monotonicMs: () => number } = {
    ownTime: Date.now,
    monotonicMs: () => performance.now(),
  },
): DatabaseClock {
  /** The database's time at zero of the monotonic clock. */
  let zeroMs: number | undefined;
  const now = (): number => (zeroMs === undefined ? deps.ownTime() : Math.floor(zeroMs + deps.monotonicMs()));
  return {
    now,
    set(databaseMs, askedAtMs, answeredAtMs) {
      const tookMs = answeredAtMs - askedAtMs;
      const measuredMs = databaseMs - askedAtMs - tookMs / 2;
      if (zeroMs !== undefined && (tookMs > slowAnswerMs || Math.abs(measuredMs - zeroMs) <= toleranceMs + tookMs / 2))
        return;
      zeroMs = measuredMs;
    },
    toOwnTime: (databaseMs) => databaseMs - now() + deps.ownTime(),
  };
}
